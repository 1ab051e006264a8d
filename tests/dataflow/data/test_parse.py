"""Records parsed together say what each says alone, whatever stands in them."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rebar.dataflow.data import Decode, Item
from rebar.dataflow.data.parse import (
    LONG,
    MARK,
    NO_JSON,
    TOGETHER,
    Json,
    Raw,
    parse,
    parse_together,
)
from rebar.errors import DataError


def alone(record: bytes) -> Json:
    """(what it says,), or () where it is no JSON."""
    try:
        return (parse(record),)
    except NO_JSON:
        return ()


def items(records: list[bytes]) -> list[Item[Raw]]:
    return [Item(0, n, n, record) for n, record in enumerate(records)]


# Halves of values that other records complete, and several values in one record: joined by commas,
# many a row of these is one good array with as many places as there are records.
PIECES = [
    *(b"1],[2", b"[1", b"2]", b"1,2", b"{}", b'{"a":1', b'"b":2}', b'{"a":', b"3}", b'"x', b'y"'),
    *(b'"', b"\\", b'"\\', b"[", b"]", b"{", b"}", b",", b":", b" ", b"", b"1", b"-", b"1e", b".5"),
    *(b"null", b"[]", b'"a,b"', b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"tru", b"e", b"0"),
    *(b"[[", b"]]", b"}],[{", b"1}", b'{"a":[1]}', b"[1,[2", b"3],4]"),
]
RECORDS = st.lists(st.sampled_from(PIECES), max_size=3).map(b"".join)


@given(st.lists(RECORDS, max_size=8))
@example([b"[1", b"2]", b"3,4"])
@example([b'{"a":1', b'"b":2}', b"3,4"])
@example([b'"a', b'b"', b"3,4"])
@example([b"1],[2", b"3"])
@example([b"1] ", b" [2"])
@example([b"", b"1,2"])
@settings(max_examples=500, deadline=None)
def test_rows_that_complete_each_other(records: list[bytes]) -> None:
    """`[1`, `2]` and `3,4` in a row are [1,2],3,4: three good places for three records, of which
    none is JSON.
    """
    each = [alone(record) for record in records]
    found = parse_together(records)
    if len(records) < 2 or not all(each):
        assert found is None
    else:
        assert repr(found) == repr([value for (value,) in each])


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)


@given(st.lists(TREES, min_size=2, max_size=2 * TOGETHER), st.booleans())
@settings(deadline=None)
def test_whole_records(trees: list[Json], ascii_only: bool) -> None:
    """Integers of any size are refused by the one as by the other."""
    records = [json.dumps(tree, ensure_ascii=ascii_only).encode() for tree in trees]
    each = [alone(record) for record in records]
    expected = repr([value for (value,) in each]) if all(each) else repr(None)
    assert repr(parse_together(records)) == expected


def test_the_mark_has_one_spelling() -> None:
    """No float equals it, and it fits into what every parser reads as a whole number."""
    assert float(MARK) != MARK
    assert 2**62 < MARK < 2**63
    assert parse(b"%d" % MARK) == MARK


def test_long_records_are_not_copied() -> None:
    short, long = b"1", b'"%b"' % (b"x" * (2 * LONG))
    assert parse_together([short, long]) is None
    assert parse_together([short, short, long]) is not None


def test_the_deepest_record_is_read_in_company_too() -> None:
    """Together it lies one bracket deeper, and the limit of depth counts brackets."""
    depth = next(n for n in range(1, 10**6) if not alone(b"[" * n + b"]" * n)) - 1
    records = [b"[" * depth + b"]" * depth, b"1"]
    found = [item.value for item in Decode(str).process_batch(items(records))]
    assert found == [parse(record) for record in records]


@pytest.mark.parametrize("place", [0, 5, TOGETHER, 2 * TOGETHER])
def test_one_broken_record_is_told_and_no_other_is_lost(place: int) -> None:
    records = [b'{"n":%d}' % n for n in range(2 * TOGETHER + 1)]
    records[place] = b"1],[2"
    batch = items(records)
    with pytest.raises(DataError, match=f"number {place}: no JSON: .*trailing"):
        Decode("number {}".format).process_batch(batch)
    skipping = Decode("number {}".format, "skip")
    found = skipping.process_batch(batch)
    assert [(i.sample, i.value) for i in found] == [
        (n, {"n": n}) for n in range(len(records)) if n != place
    ]
    assert skipping.tally.counts == {"invalid": 1}
