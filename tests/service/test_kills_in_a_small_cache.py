"""Kills where most is at stake: a cache for a few of many choices, beginnings in common, guesses
under way, deadlines. What a client was told must be what it would have been told alone.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from rebar.dataflow.models import convert
from rebar.graph import RunnerOptions
from rebar.graph.sequence import SamplingParams
from rebar.service.messages import DEADLINE, EngineSpec, RequestPacket
from tests.service.test_supervisor import alone, kills, packet, summary, supervised
from tests.tiny import tiny_gguf

STREAMS = 18
KV_TOKENS = 1200  # five choices of some 240 positions
COMMON = [(11 * j) % 200 + 40 for j in range(70)]
KILLS = 12


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> EngineSpec:
    target = tmp_path_factory.mktemp("engine") / "tiny.rebar"
    convert(tiny_gguf(target.parent, "gemma3", "Q8_0", context_length=1024), target)
    options = RunnerOptions(threads=1, max_rows=64, memory=256 << 20, kv_tokens=KV_TOKENS)
    return EngineSpec(str(target), options, max_running=STREAMS, max_waiting=64)


def asked(i: int) -> RequestPacket:
    """As in test_supervisor.py, every third of them greedy, so that it falls into loops, and most
    of them with the same beginning; one in four has time enough, one in four may not.
    """
    one = packet(i, max_tokens=100)
    changes: dict[str, Any] = {"prompt": COMMON[: 60 + i % 9] + [300 + i] * (i % 4)}
    if i % 3 == 0 and not one.grammar:
        changes["sampling"] = SamplingParams(temperature=0.0, logprobs=2 if i % 2 else None)
    if i % 4 == 1:
        changes["deadline"] = time.monotonic() + 1000
    if i % 4 == 3:
        changes["deadline"] = time.monotonic() + 1.5 + 0.3 * i
    return msgspec.structs.replace(one, **changes)


def test_kills_under_pre_emption_sharing_guesses_and_deadlines(spec: EngineSpec) -> None:
    packets = [asked(i) for i in range(STREAMS)]
    expected: dict[int, Any] = alone(
        spec, [msgspec.structs.replace(p, deadline=None) for p in packets]
    )
    heard, supervisor = supervised(spec, packets, kills(KILLS, 60, seed=8))
    assert supervisor.restarts >= 4, "the streams were over before anything happened"
    late = 0
    for one in packets:
        said = summary(heard.deltas[one.ticket])
        (failure,) = said[-1] or [None]
        if failure is None:
            assert said == expected[one.ticket]
            continue
        assert failure.code == DEADLINE
        assert one.deadline is not None
        late += 1
        for told, all_of_it in zip(said[:4], expected[one.ticket][:4], strict=True):
            assert told == all_of_it[: len(told)], "not a beginning of what it would have said"
    assert late <= STREAMS // 4
    last = heard.reports[-1].stats
    assert last.preemptions > 0, "memory was never short"
    assert last.cached_tokens > 0, "nothing was shared"
    assert last.draft_tokens >= last.accepted_tokens > 0, "nothing was guessed right"
