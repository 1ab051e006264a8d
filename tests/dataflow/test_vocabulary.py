"""The mapped tables: what goes in comes out, and nothing hostile gets past open()."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar.dataflow.text import Tokenizer, build_vocabulary
from rebar.dataflow.text.vocabulary import read_vocabulary
from rebar.errors import CorruptFileError
from rebar.graph.weights.model_file import TokenizerData
from tests.dataflow.vocabularies import bpe, bpe_data, sealed, spm, spm_data

HEADER = 64  # then 13 sections of (offset, count), 8 bytes each
NAMES = "text offsets types scores merges initial chars pairs nodes edges words ends pre"
SECTIONS = NAMES.split()
TEXT = "the other foxes <|im_end|> don't \n\n é😀 " * 3
BPE, SPM = build_vocabulary(bpe_data()), build_vocabulary(spm_data())


def edited(table: bytes, at: int, value: int, size: int = 8) -> bytes:
    """`table` with a number replaced and its checksum put right."""
    changed = bytearray(table)
    changed[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    return sealed(changed)


def section_at(name: str) -> int:
    """Where the header says where `name` is."""
    return HEADER + 16 * SECTIONS.index(name)


def section(table: bytes, name: str) -> tuple[int, int]:
    """(offset, count)."""
    offset, count = struct.unpack_from("<QQ", table, section_at(name))
    return offset, count


def test_the_tests_seal_is_the_tables_seal() -> None:
    assert sealed(bytearray(BPE)) == BPE
    assert sealed(bytearray(SPM)) == SPM


def test_building_is_a_function_of_the_lists() -> None:
    assert build_vocabulary(bpe_data()) == BPE
    assert bpe().fingerprint == Tokenizer(BPE).fingerprint != spm().fingerprint


def test_tables_are_used_where_they_lie(tmp_path: Path) -> None:
    """A slice of a memoryview, a mapped file and an array do, and are kept open."""
    path = tmp_path / "vocabulary"
    path.write_bytes(bytes(4096) + BPE)
    mapped = np.memmap(path, dtype=np.uint8, mode="r", offset=4096)
    for table in (memoryview(bytes(64) + BPE)[64:], mapped, np.frombuffer(BPE, np.uint8)):
        tokenizer = Tokenizer(table)
        del table
        assert tokenizer.encode(TEXT) == bpe().encode(TEXT)


def test_properties_come_out_as_they_went_in() -> None:
    assert (bpe().bos_id, bpe().eos_id, bpe().pad_id) == (1, 2, 0)
    assert bpe().end_ids == {0, 2}
    assert (spm().bos_id, spm().unknown_id, spm().add_bos, spm().pre) == (2, 3, True, "default")
    assert bpe().unknown_id is None
    assert bpe().control_texts() == [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|><|im_end|>",
    ]


def test_unused_tokens_at_the_end_are_left_out() -> None:
    """Embeddings are padded to round sizes; padding must be neither sampled nor decoded."""
    data = bpe_data()
    padded = replace(data, tokens=[*data.tokens, "[PAD1]", "[PAD2]"], types=[*data.types, 5, 5])
    assert Tokenizer(build_vocabulary(padded)).vocab_size == len(data.tokens)


def test_a_cut_table_is_refused() -> None:
    for size in [*range(0, 400, 7), len(BPE) // 2, len(BPE) - 8, len(BPE) - 1]:
        with pytest.raises(CorruptFileError):
            Tokenizer(BPE[:size])
    with pytest.raises(CorruptFileError):
        Tokenizer(BPE + bytes(8))


@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, len(BPE) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed(at: int, bit: int) -> None:
    table = bytearray(BPE)
    table[at] ^= 1 << bit
    with pytest.raises(CorruptFileError):
        Tokenizer(bytes(table))


def test_a_table_that_begins_at_an_odd_address_is_refused() -> None:
    with pytest.raises(CorruptFileError, match="multiple of 8"):
        Tokenizer(memoryview(b"x" + BPE)[1:])


def test_a_table_of_another_version_is_refused_by_name() -> None:
    with pytest.raises(CorruptFileError, match="version 2"):
        Tokenizer(edited(BPE, 8, 2, 4))


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize("table", [BPE, SPM])
def test_sections_outside_of_the_table_are_refused(table: bytes, name: str) -> None:
    at = section_at(name)
    for offset in (0, 8, 3, len(table) + 8, 1 << 62, -8):
        with pytest.raises(CorruptFileError):
            Tokenizer(edited(table, at, offset))
    for count in (1 << 32, 1 << 60, (1 << 64) - 1):
        with pytest.raises(CorruptFileError):
            Tokenizer(edited(table, at + 8, count))


@pytest.mark.parametrize(
    ("name", "at", "size"),
    [("offsets", 4, 4), ("types", 5, 1), ("initial", 0, 4), ("edges", 0, 4), ("edges", 4, 4),
     ("nodes", 0, 4), ("nodes", 4, 4), ("nodes", 8, 4), ("ends", 0, 4)],
)  # fmt: skip
@pytest.mark.parametrize("table", [BPE, SPM])
def test_numbers_that_lead_outside_are_refused(table: bytes, name: str, at: int, size: int) -> None:
    offset, _ = section(table, name)
    with pytest.raises(CorruptFileError):
        Tokenizer(edited(table, offset + at, 0xFFFFFFF0 % (1 << 8 * size), size))


@pytest.mark.parametrize(
    ("name", "slot", "id_at"), [("merges", 16, 12), ("words", 8, 4), ("chars", 8, 4)]
)
@pytest.mark.parametrize("bad", [10**6, 1])
def test_look_ups_lead_neither_outside_nor_to_control_tokens(
    name: str, slot: int, id_at: int, bad: int
) -> None:
    """Id 1 is a control token: a table that merges text into it would let a user write it."""
    offset, count = section(SPM, name)
    slots = (SPM[offset + slot * i : offset + slot * (i + 1)] for i in range(count))
    empty = b"\xff" * 4
    used = next(i for i, s in enumerate(slots) if empty not in (s[:4], s[id_at : id_at + 4]))
    with pytest.raises(CorruptFileError):
        Tokenizer(edited(SPM, offset + slot * used + id_at, bad, 4))


def test_a_circle_in_the_tree_is_refused() -> None:
    offset, _ = section(BPE, "edges")
    with pytest.raises(CorruptFileError, match="tree"):
        Tokenizer(edited(BPE, offset + 4, 0, 4))


def test_a_name_that_is_no_text_is_damage() -> None:
    """The name is shown to people: bytes that are no UTF-8 were a UnicodeDecodeError once."""
    offset, _ = section(BPE, "pre")
    with pytest.raises(CorruptFileError, match="name"):
        Tokenizer(edited(BPE, offset, 0xFF, 1))


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(["bpe", "spm"]),
    edits=st.lists(
        st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8)),
        min_size=1,
        max_size=4,
    ),
)
def test_any_sealed_table_is_refused_or_works(kind: str, edits: list[tuple[int, bytes]]) -> None:
    """With the checksum put right, only the checks behind it stand between the table and memory."""
    changed = bytearray(BPE if kind == "bpe" else SPM)
    for at, value in edits:
        at %= len(changed) - 8
        changed[at : at + len(value)] = value
    try:
        tokenizer = Tokenizer(sealed(changed))
    except CorruptFileError:
        return
    for special in (False, True):
        ids = tokenizer.encode(TEXT, special=special)
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        assert isinstance(tokenizer.decode(ids), str)


CONTRADICTIONS = [
    {"types": [1]},
    {"tokens": [], "types": []},
    {"types": [9] * 515},
    {"types": [-1] * 515},
    {"bos_id": 515},
    {"bos_id": -1},
    {"end_ids": (2, 10**9)},
    {"merges": ["nospace"]},
    {"merges": ["t nosuchtoken"]},
    {"tokens": ["\ud800"] * 515},
    {"tokens": ["x" * 300] * 515, "types": [3] * 515, "merges": []},
]


@pytest.mark.parametrize("change", CONTRADICTIONS)
def test_lists_that_contradict_each_other_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(CorruptFileError):
        build_vocabulary(replace(bpe_data(), **change))  # type: ignore[arg-type]


def test_pieces_without_scores_are_refused() -> None:
    with pytest.raises(CorruptFileError, match="score"):
        build_vocabulary(replace(spm_data(), scores=[0.0]))


def test_a_vocabulary_of_one_token_works() -> None:
    data = TokenizerData(kind="bpe", pre="gpt-2", tokens=["a"], types=[1], merges=[])
    tokenizer = Tokenizer(build_vocabulary(data))
    assert tokenizer.encode("abca") == [0, 0]
    assert tokenizer.bos_id is None
    assert len(tokenizer.missing_bytes) == 255


@pytest.mark.parametrize(
    "data",
    [*map(bpe_data, ("smollm", "gpt-2", "qwen2", "llama-bpe")), spm_data(), spm_data(prefix=True)],
    ids=["smollm", "gpt-2", "qwen2", "llama-bpe", "spm", "prefix"],
)
def test_tables_say_what_they_were_built_of(data: TokenizerData) -> None:
    """Whoever writes a tokenizer in another format reads it from them; built again they are the
    same bytes. Only merges are told for SentencePiece too, where they were derived from scores.
    """
    tables = build_vocabulary(data)
    read = read_vocabulary(tables)
    assert build_vocabulary(read) == tables
    if data.kind == "spm":
        data = replace(data, tokens=[t.replace(" ", "\u2581") for t in data.tokens])
        assert read.merges
        assert all(len(merge.split(" ")) == 2 for merge in read.merges)
        data = replace(data, merges=read.merges, scores=read.scores)
    assert read == data


def test_damaged_tables_are_not_read() -> None:
    with pytest.raises(CorruptFileError, match="Convert the model again"):
        read_vocabulary(BPE[:-8])
