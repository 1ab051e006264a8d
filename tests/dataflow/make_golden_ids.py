"""Writes golden_ids.json: what the reference makes of a few texts, for the three real models.

Run from the repository's root with the package `tokenizers` installed:
    python -m tests.dataflow.make_golden_ids SMOLLM2.gguf QWEN2.gguf GEMMA3.gguf
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tokenizers
from rebar.graph.weights.open import open_model
from tests.parity.reference_tokenizers import reference

TEXTS = [
    "",
    "Hello, world!",
    "It's 12345.67 o'clock; we'LL see, don't\u017f you?",
    "  leading, trailing  \n\n\t tabs\r\n   and    runs     of      spaces",
    "def f(x):\n\treturn {'a': [1, 2.5e-3]}  # done\n\n\n",
    "北京欢迎你。こんにちは、世界!안녕하세요",
    "مرحبا بالعالم שלום עולם नमस्ते สวัสดี",
    "👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 👍🏽 1️⃣ 🫩",
    "e\u0301 \u1e9b\u0323 q\u0323\u0307 >\u0338 ﬁ Å",
    "\x00\x01\x04\x1f\x7f\x85\xa0\u200b\ufeff\ufffd\U000f0000",
    "<|im_start|>user<|im_end|><tool_call>{}</tool_call><b>x</b><bos><0x41>",
    "=" * 70 + " " * 70 + "\n" * 70 + "a" * 70,
    "▁the▁▁a",
]


def main(paths: list[str]) -> None:
    """One list of ids a text and model, without special parsing."""
    golden: dict[str, object] = {"tokenizers": tokenizers.__version__, "texts": TEXTS}
    for name, path in zip(("smollm2", "qwen2", "gemma3"), paths, strict=True):
        data = open_model(Path(path)).tokenizer
        assert data is not None
        tokenizer = reference(data)
        tokenizer.encode_special_tokens = True
        golden[name] = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    target = Path(__file__).with_name("golden_ids.json")
    target.write_text(json.dumps(golden, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
