"""The native reader of records against msgspec: the same of the same bytes, or nothing."""

from __future__ import annotations

import gc
import json
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rebar.dataflow.data import Decode, Item
from rebar.dataflow.data.parse import NO_JSON, Json, Raw, Records, parse, parse_records
from rebar.dataflow.data.stage import RawItems
from rebar.errors import DataError

QUIET = settings(deadline=None)


def check(record: bytes) -> None:
    """repr tells types, order of keys, -0.0 and lone surrogates apart."""
    (value,), unread = parse_records([memoryview(record)])
    if unread:
        assert (value, unread) == (None, [0])
    else:
        assert repr(value) == repr(parse(record)), record


PIECES = [
    *(b"1],[2", b"[1", b"2]", b"1,2", b"{}", b'{"a":1', b'"b":2}', b'{"a":', b"3}", b'"x', b'y"'),
    *(b'"', b"\\", b'"\\', b"[", b"]", b"{", b"}", b",", b":", b" ", b"", b"1", b"-", b"1e", b".5"),
    *(b"null", b"[]", b'"a,b"', b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"tru", b"e", b"0"),
    *(b"true", b"false", b"\\u", b"d83d", b"\\ude00", b"00e9", b"\\n", b"\\/", b"\xc3\xa9", b"E+"),
    *(b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\x7f", b"\x1f", b"-0", b"0.0", b"x" * 15, b"x" * 16),
]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join) | st.binary(max_size=40))
@settings(max_examples=1000, deadline=None)
@example(b"[1,]")
@example(b'{"a":1,}')
@example(b"01")
@example(b"-")
@example(b"1.")
@example(b"1e5")
@example(b"-0.0")
@example(b"1e999")
@example(b"1e-999")
@example(b'"\\ud800"')
@example(b'"\\ud83d\\ude00"')
@example(b'"\\ud83d\\u0041"')
@example(b'"\x1f"')
@example(b'"' + b"a" * 16 + b"\xff" + b"a" * 16 + b'"')
@example(b"{} {}")
def test_any_bytes(record: bytes) -> None:
    check(record)


@given(st.text(max_size=70), st.integers(0, 20), st.booleans())
@QUIET
def test_texts_of_any_width_and_place(text: str, before: int, ascii_only: bool) -> None:
    """Sixteen bytes are looked at together; what ends a text may be any of them."""
    record = b" " * before + json.dumps(text, ensure_ascii=ascii_only).encode()
    assert parse_records([record]) == ([text], [])
    (value,), _ = parse_records([record])
    assert sys.getsizeof(value) == sys.getsizeof(parse(record))


ORDINARY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18) + 1, 10**18 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=40), inner),
    max_leaves=30,
)


@given(st.lists(ORDINARY, max_size=5), st.booleans(), st.sampled_from([None, 1]))
@QUIET
def test_ordinary_records_are_all_read(
    trees: list[Json], ascii_only: bool, indent: int | None
) -> None:
    """And are what Python's own reader makes of them."""
    records = [json.dumps(t, ensure_ascii=ascii_only, indent=indent).encode() for t in trees]
    values, unread = parse_records(records)
    assert unread == []
    assert repr(values) == repr([json.loads(record) for record in records])
    for record in records:
        check(record)


@pytest.mark.parametrize("number", [10**18, -(10**18), 2**63, 2**64, 2**70, 10**4000])
def test_large_numbers_are_left_to_others(number: int) -> None:
    assert parse_records([b"[%d]" % number, b"1"]) == ([None, 1], [0])


def test_depth_is_left_to_others() -> None:
    records = [b"[" * depth + b"]" * depth for depth in (64, 66, 10**6)]
    assert parse_records(records)[1] == [1, 2]
    batch: list[Item[Raw]] = [Item(0, n, n, record) for n, record in enumerate(records)]
    done = Decode(str, "skip").process_batch(batch)
    assert [item.sample for item in done] == [0, 1]
    assert repr(done[1].value) == "[" * 66 + "]" * 66


def test_keys_are_shared_and_never_mistaken() -> None:
    """A key is looked for by its length and its ends: `aXb` and `aYb` have one place."""
    records = [b'{"a%cb":1}' % c for c in range(33, 127) if c not in b'"\\'] * 2
    expected = [list(parse(record)) for record in records]
    assert [list(value) for value in parse_records(records)[0]] == expected
    first, second = parse_records([b'{"key":1}', b'{"key":2}'])[0]
    assert next(iter(first)) is next(iter(second))


def test_nothing_is_kept_of_records() -> None:
    """References are counted by hand there: of good records, of broken ones at every byte."""
    whole = b'{"text": "a\\n\xc3\xa9 b", "n": [1, 2.5, null, true, {"k": "v"}]}'
    records = [whole[:end] for end in range(len(whole) + 1)] * 20
    parse_records(records)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(20):
        parse_records(records)
    gc.collect()
    assert sys.getallocatedblocks() < before + 100


def test_what_holds_no_bytes_is_an_error() -> None:
    with pytest.raises(TypeError):
        parse_records([b"1", 5])  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [0, 5, 64])
def test_one_broken_record_is_told_and_no_other_is_lost(place: int) -> None:
    records: list[Raw] = [b'{"n":%d}' % n for n in range(65)]
    records[place] = b"1],[2"
    records[place - 3] = b"12345678901234567890"
    batch = [Item(0, n, n, record) for n, record in enumerate(records)]
    with pytest.raises(DataError, match=f"number {place}: no JSON: .*trailing"):
        Decode("number {}".format).process_batch(batch)
    skipping = Decode("number {}".format, "skip")
    found = [(item.sample, item.value) for item in skipping.process_batch(batch)]
    assert found == [(n, parse(record)) for n, record in enumerate(records) if n != place]
    assert skipping.tally.counts == {"invalid": 1}


def test_the_errors_are_msgspecs() -> None:
    for record in (b"", b"{", b'"\xff"', b"[" * 10**5):
        assert parse_records([record]) == ([None], [0])
        with pytest.raises(NO_JSON):
            parse(record)


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.integers(-9, 9), st.integers(-9, 9))
@QUIET
def test_records_where_they_lie(records: list[bytes], begin: int, end: int) -> None:
    """Parsed together without a view of any, they say what a list of them does; so do parts."""
    data = np.frombuffer(b"".join(records), np.uint8)
    ends = np.cumsum([len(record) for record in records], dtype=np.uint64)
    begins = np.concatenate(([0], ends[:-1])).astype(np.uint64)[: len(ends)]
    lying = Records(data, np.stack((begins, ends), axis=1))
    for some, due in ((lying, records), (lying[begin:end], records[begin:end])):
        assert [bytes(view) for view in some] == due
        assert [bytes(some[n]) for n in range(len(some))] == due
        assert some.nbytes.tolist() == list(map(len, due))
        assert repr(some.parsed()) == repr(parse_records(due))


@pytest.mark.parametrize("span", [(0, 4), (3, 2), (4, 5), (2**64 - 1, 2**64 - 1), (0, 2**64 - 1)])
def test_nothing_outside_of_the_data_is_read(span: tuple[int, int]) -> None:
    spans = np.array([(0, 1), span], np.uint64)
    with pytest.raises(IndexError, match="outside of the data"):
        Records(np.frombuffer(b"123", np.uint8), spans).parsed()


def test_items_that_are_made_when_looked_at() -> None:
    """A stage of a user's goes through them as through any list, the probe of a pipeline through
    the first ones.
    """
    records: list[Raw] = [b"%d" % n for n in range(10)]
    lazy = RawItems(3, 70, [n * n for n in range(10)], records)
    made = [Item(3, 70 + n, n * n, record) for n, record in enumerate(records)]
    assert list(lazy) == made == [lazy[n] for n in range(10)]
    assert list(lazy[2:5]) == made[2:5] == [lazy[2:5][n] for n in range(3)]
    assert lazy[-1] == made[-1]
    assert lazy.having(range(10)) == [item.having(n) for n, item in enumerate(made)]
    assert Decode(str).process_batch(lazy) == Decode(str).process_batch(made)
    with pytest.raises(IndexError):
        lazy[10]
    with pytest.raises(ValueError, match="consecutive"):
        lazy[::2]
