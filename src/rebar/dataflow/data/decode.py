"""Decode: the bytes of a record to what its JSON says."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

from rebar.dataflow.data.faults import Faults, OnError, Where
from rebar.dataflow.data.footprint import INT, LARGEST_INT, LIST, SLOT, SMALLEST_INT, items_bytes
from rebar.dataflow.data.parse import NO_JSON, Json, Raw, Records, parse, parse_records
from rebar.dataflow.data.stage import Item, RawItems, Stage

# No part is tried a second time: a text costs as many steps as it has escapes, not characters.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]:,]|[^\s"{}\[\]:,]++', re.DOTALL)
_SMALL_INT = re.compile(rb"-?\d+")
_ASCII = sys.getsizeof("")  # header of a text that is all ASCII
_FLOAT = sys.getsizeof(0.5)
_SMALL_DICT, _NO_DICT = sys.getsizeof(parse(b'{"a":0}')), sys.getsizeof({})


class Decode(Stage[Raw, Json]):
    """Bytes to dict, list, text, number. A record that is no JSON meets the rule `on_error`."""

    def __init__(self, where: Where, on_error: OnError = "raise") -> None:
        """where: names a sample's place in errors (MMapDataset.where)."""
        super().__init__()
        self._faults = Faults(on_error, where, self.tally)
        self._on_error = on_error

    @property
    def settings(self) -> Mapping[str, str | int]:
        """The rule for faults."""
        return {"on_error": self._on_error}

    def process_batch(self, batch: Sequence[Item[Raw]]) -> list[Item[Json]]:
        """One item for each record that is JSON."""
        if isinstance(batch, RawItems) and isinstance(batch.raws, Records):
            values, unread = batch.raws.parsed()
        else:
            values, unread = parse_records([item.value for item in batch])
        broken = [number for number in unread if not self._read(batch[number], values, number)]
        done: list[Item[Json]] = (
            batch.having(values)
            if isinstance(batch, RawItems)
            else list(map(Item.having, batch, values))
        )
        for number in reversed(broken):
            del done[number]
        return done

    def _read(self, item: Item[Raw], values: list[Json], number: int) -> bool:
        try:
            values[number] = parse(item.value)
        except NO_JSON as error:
            self._faults.meet(item.sample, ValueError(f"no JSON: {error}. Mend the line."))
            return False
        return True

    def get_memory_footprint(self, batch: Sequence[Item[Raw]]) -> int:
        """Bytes of the decoded trees, by the marks in the text."""
        return items_bytes(len(batch)) + sum(tree_bytes(item.value) for item in batch)


def tree_bytes(record: Raw) -> int:
    """Bytes of what the JSON in `record` becomes. Nothing is decoded but texts that hold escapes
    or are not ASCII, whose width hangs on their characters.
    """
    total = 0
    open_: list[int] = []  # elements of each list or object that is open
    text = 0  # bytes of the text just read: a key, if a colon follows, and keys are shared
    for match in _TOKEN.finditer(record):
        token = match[0]
        mark = token[0]
        if mark == 34:  # "
            total += text
            text = _text_bytes(token)
        elif mark == 58:  # :
            text = 0
        elif mark in b"{[":
            open_.append(0)
        elif mark == 44 and open_:  # ,
            open_[-1] += 1
        elif mark in b"}]" and open_:
            commas = open_.pop()
            empty = record[match.start() - 1] in b"{["
            total += _container(mark == 125, 0 if empty else commas + 1)
        else:
            total += _number(token)
    return total + text


def _container(is_dict: bool, count: int) -> int:
    """A dict of `count` keys, or a list of as many elements; what is in them left out. CPython
    grows a list by an eighth and a little, a dict by doubling its table, two thirds of it usable.
    """
    if not count:
        return _NO_DICT if is_dict else LIST
    if not is_dict:
        room = 0
        while room < count:
            room = (room + 1 + (room + 1 >> 3) + 6) & ~3
        return LIST + SLOT * room
    slots = 8
    while slots * 2 // 3 < count:
        slots *= 2
    wide = 1 if slots <= 128 else 2 if slots <= 32768 else 4
    return _SMALL_DICT + slots * wide - 8 + (slots * 2 // 3 - 5) * 2 * SLOT


def _number(token: bytes) -> int:
    """A number; true, false and null exist once, and what is no JSON becomes nothing."""
    if not token[-1:].isdigit():
        return 0
    if b"." in token or b"e" in token or b"E" in token:
        return _FLOAT
    if len(token) < 10:
        small = len(token) < 5 and _SMALL_INT.fullmatch(token)
        return 0 if small and SMALLEST_INT <= int(token) <= LARGEST_INT else INT
    return INT + (len(token) * 3322 // 1000 // 30) * 4  # 30 bits in each 4 bytes


def _text_bytes(token: bytes) -> int:
    if b"\\" not in token and token.isascii():
        return _ASCII + len(token) - 2
    try:
        return sys.getsizeof(parse(token))
    except NO_JSON:
        return 0
