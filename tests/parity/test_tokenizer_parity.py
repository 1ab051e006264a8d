"""Ids of three real models equal to those of `tokenizers`, over 3 MB of all kinds of text."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

from rebar.dataflow.text import Tokenizer
from rebar.graph.weights.model_file import TokenizerData
from rebar.graph.weights.open import open_model
from tests.parity.mixed_text import mixed_text, own_sources
from tests.parity.reference_tokenizers import reference

pytestmark = pytest.mark.parity
ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests/dataflow/golden_ids.json").read_text())
MODELS = ("smollm2", "qwen2", "gemma3")


@pytest.fixture(scope="module")
def paths(smollm2_path: Path, qwen05_path: Path, gemma3_path: Path) -> dict[str, Path]:
    """The model files by name."""
    return dict(zip(MODELS, (smollm2_path, qwen05_path, gemma3_path), strict=True))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """At least 3 MB, the same on every run but for this project's own files."""
    texts = [*mixed_text(2_000_000, seed=20261130), *own_sources(ROOT)]
    assert sum(len(text.encode()) for text in texts) > 3_000_000
    return texts


def data_of(path: Path) -> TokenizerData:
    """The tokenizer's lists in a model file."""
    data = open_model(path).tokenizer
    assert data is not None
    return data


@pytest.mark.parametrize("name", MODELS)
def test_ids_are_those_of_the_reference(
    name: str, paths: dict[str, Path], texts: list[str]
) -> None:
    ours, theirs = Tokenizer.of(open_model(paths[name])), reference(data_of(paths[name]))
    for special in (False, True):
        theirs.encode_special_tokens = not special
        expected = [e.ids for e in theirs.encode_batch(texts, add_special_tokens=False)]
        for text, ids in zip(texts, expected, strict=True):
            assert ours.encode(text, special=special, bos=False) == ids


@pytest.mark.parametrize("name", MODELS)
def test_valid_text_decodes_as_in_the_reference(
    name: str, paths: dict[str, Path], texts: list[str]
) -> None:
    """For broken bytes the rules differ: the reference marks more of them for gemma3."""
    ours, theirs = Tokenizer.of(open_model(paths[name])), reference(data_of(paths[name]))
    for text in texts[:300]:
        ids = ours.encode(text, bos=False)
        decoded = ours.decode(ids)
        assert decoded == theirs.decode(ids, skip_special_tokens=False)
        if name == "gemma3":
            assert decoded == text.replace("▁", " ")


@pytest.mark.parametrize("name", MODELS)
def test_every_character_alone_and_between_letters(name: str, paths: dict[str, Path]) -> None:
    """All code points: the classes of the pre-tokenizers and NFC are the reference's own."""
    ours, theirs = Tokenizer.of(open_model(paths[name])), reference(data_of(paths[name]))
    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    if name != "smollm2":  # the other two differ in nothing that planes 4 to 16 could show
        points = [c for c in points if c < 0x40000]
    texts = [
        "".join(f"a{chr(c)} {chr(c)}1{chr(c)}" for c in points[i : i + 256])
        for i in range(0, len(points), 256)
    ]
    theirs.encode_special_tokens = True
    for text, encoding in zip(
        texts, theirs.encode_batch(texts, add_special_tokens=False), strict=True
    ):
        assert ours.encode(text, bos=False) == encoding.ids, hex(ord(text[1]))


@pytest.mark.parametrize("name", MODELS)
def test_golden_ids_are_still_what_the_reference_says(name: str, paths: dict[str, Path]) -> None:
    ours, theirs = Tokenizer.of(open_model(paths[name])), reference(data_of(paths[name]))
    theirs.encode_special_tokens = True
    for text, ids in zip(GOLDEN["texts"], GOLDEN[name], strict=True):
        assert theirs.encode(text, add_special_tokens=False).ids == ids
        assert ours.encode(text, bos=False) == ids


def test_nfc_is_the_references_not_pythons(paths: dict[str, Path]) -> None:
    """U+07FD came with Unicode 11: Python moves it before U+07F3, the reference leaves it."""
    tokenizer = Tokenizer.of(open_model(paths["qwen2"]))
    text = "\u07ca\u07f3\u07fd"
    assert unicodedata.normalize("NFC", text) != text
    assert tokenizer.decode(tokenizer.encode(text)) == text
