"""Hugging Face's tokenizers: python peer_tokenizers.py TOKENIZER.json TEXT, one line of JSON."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

from text_work import measure

from tokenizers import Tokenizer


def main() -> None:
    """Measures and prints."""
    tokenizer = Tokenizer.from_file(sys.argv[1])

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    facts = measure(encode, Path(sys.argv[2]).read_text(encoding="utf-8"))
    print(json.dumps(facts | {"engine": "tokenizers", "version": version("tokenizers")}))


if __name__ == "__main__":
    main()
