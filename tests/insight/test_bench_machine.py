"""The machine's ceilings: every fact is there in its unit, and the table shows each."""

from __future__ import annotations

import json

from rebar import _native
from rebar.insight import bench_machine as bm


def test_counts_of_threads_double() -> None:
    assert bm.thread_counts(1) == [1]
    assert bm.thread_counts(2) == [1, 2]
    assert bm.thread_counts(12) == [1, 2, 4, 8, 12]
    assert bm.thread_counts(16) == [1, 2, 4, 8, 16]


def test_numbers_for_people() -> None:
    assert [bm.figure(v) for v in (0.311, 6.876, 23.71, 116.4, 123456.0)] == [
        "0.311", "6.88", "23.7", "116", "123,456",
    ]  # fmt: skip
    assert bm.cell({"median": 2.0, "low": 1.5, "high": 300.0}) == "2 (1.5-300)"
    assert [bm.size_name(n) for n in (16 << 10, 1 << 20, 256 << 20)] == [
        "16 KiB", "1 MiB", "256 MiB",
    ]  # fmt: skip


def test_all_of_it_on_this_machine() -> None:
    said: list[str] = []
    facts = bm.bench_machine(2, "scalar", report=said.append, sizes=(16 << 10, 1 << 20))
    json.dumps(facts, allow_nan=False)
    assert (facts["threads"], facts["isa"]) == (2, "scalar")
    read = {(r["pages"], r["threads"], r["bytes"]): r["median"] for r in facts["read"]}
    assert len(read) == 2 * 2 * 2
    kinds = {(o["isa"], o["kind"], o["threads"]) for o in facts["operations"]}
    assert kinds == {(i, k, t) for i in _native.isas() for k in ("int8", "f32") for t in (1, 2)}
    rates = [*facts["read"], *facts["operations"], *facts["meeting_us"].values()]
    for rate in (*rates, facts["launch_ns"], facts["call_ns"]):
        assert 0 < rate["low"] <= rate["median"] <= rate["high"]
    assert said[-1] == "launches"
    text = "\n".join(bm.table(facts))
    for pages, threads, _ in read:
        assert f"{pages}, {threads} thread" in text
    for isa, kind, _ in kinds:
        assert f"{isa} {kind}" in text
    assert len({len(line) for line in text.splitlines() if line.startswith(("16 Ki", "1 Mi"))}) == 1
