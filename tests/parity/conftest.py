"""The reference libraries live in the environment of `./test parity` alone. Elsewhere a file that
imports them at its top cannot even be read; all of its tests are marked `parity` and would not run.
"""

from importlib.util import find_spec

collect_ignore = [] if find_spec("tokenizers") else ["test_tokenizer_parity.py"]
