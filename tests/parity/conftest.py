"""The reference libraries live in the environment of `./test parity` alone. Elsewhere a file that
imports them at its top cannot even be read; all of its tests are marked `parity` and would not run.
"""

from importlib.util import find_spec

NEEDS = {
    "test_tokenizer_parity.py": "tokenizers",
    "test_adapters_peft.py": "peft",
    "test_hf_folders.py": "transformers",
}
collect_ignore = [name for name, library in NEEDS.items() if find_spec(library) is None]
