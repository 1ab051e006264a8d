"""Adapters in the engine: whatever is computed beside a choice, before it or again after a death,
it says what it says alone. Equality is `==` on everything a client could see.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rebar.dataflow.adapters import AdapterStore
from rebar.dataflow.models import convert
from rebar.graph import RunnerOptions
from rebar.graph.lora import Adapter
from rebar.graph.weights import open_model
from rebar.service.engine import InferenceEngine
from rebar.service.loading import load_engine
from rebar.service.messages import (
    AdapterNews,
    AdapterOrder,
    Delta,
    EngineSpec,
    Orders,
    RequestPacket,
)
from rebar.service.supervisor import EngineSupervisor
from tests.service.test_supervisor import Heard, kills, packet, summary, supervised
from tests.tiny import tiny_gguf
from tests.tiny.adapter import tiny_adapter

STREAMS = 16
OPTIONS = RunnerOptions(
    threads=1, max_rows=64, memory=256 << 20, kv_tokens=1 << 14, max_adapters=3, max_rank=8
)
TASTES: list[dict[str, Any]] = [
    {"r": 8, "seed": 1},
    {"r": 4, "seed": 2, "targets": ("q_proj", "v_proj")},
    {"r": 2, "seed": 3, "targets": ("down_proj",)},
]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> EngineSpec:
    target = tmp_path_factory.mktemp("engine") / "tiny.rebar"
    convert(tiny_gguf(target.parent, "llama", "Q8_0", context_length=1024), target)
    return EngineSpec(str(target), OPTIONS, max_running=STREAMS, max_waiting=64)


@pytest.fixture(scope="module")
def adapters(spec: EngineSpec, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    config = open_model(Path(spec.path)).config
    room = OPTIONS.room
    assert room is not None
    store = AdapterStore(folder / "cache", config, room)
    return [store.take(tiny_adapter(folder / str(i), config, **t)) for i, t in enumerate(TASTES)]


def orders_of(adapters: list[Adapter]) -> list[AdapterOrder]:
    return [AdapterOrder(a.digest, str(a.path)) for a in adapters]


def asked(i: int, adapters: list[Adapter], max_tokens: int = 60) -> RequestPacket:
    """As in test_supervisor.py; two beginnings, each with every adapter and with none."""
    one = packet(i, max_tokens)
    digest = ["", *(a.digest for a in adapters)][i % 4]
    prompt = [(11 * j + i // 4 % 2) % 200 + 40 for j in range(50)]
    return msgspec.structs.replace(one, prompt=prompt, adapter=digest, grammar="")


def run(engine: InferenceEngine, packets: list[RequestPacket]) -> dict[int, list[Delta]]:
    """Runs packets to their end."""
    said: dict[int, list[Delta]] = {p.ticket: [] for p in packets}
    deltas = engine.obey(Orders(submit=packets))
    while True:
        for delta in deltas:
            said[delta.ticket].append(delta)
        if engine.idle:
            engine.step()  # checks its books
            return said
        deltas = engine.step()


def engine_of(spec: EngineSpec, adapters: list[Adapter], **options: Any) -> InferenceEngine:
    engine = load_engine(
        open_model(Path(spec.path)), spec.options, spec.max_running, **options
    ).engine
    engine.obey(Orders(adapters=orders_of(adapters)))
    return engine


def alone(
    spec: EngineSpec, adapters: list[Adapter], packets: list[RequestPacket]
) -> dict[int, Any]:
    """What each choice says by itself, computed whole, one id a step, with its adapter the only
    one there is.
    """
    found: dict[int, Any] = {}
    for p in packets:
        own = [a for a in adapters if a.digest == p.adapter]
        engine = engine_of(spec, own, sharing=False, speculation=0)
        found[p.ticket] = summary(run(engine, [p])[p.ticket])
        engine.close()
    return found


def test_a_mixed_batch_says_what_each_says_alone(spec: EngineSpec, adapters: list[Adapter]) -> None:
    """With what was computed before shared, and guesses: only between those of one adapter."""
    packets = [asked(i, adapters) for i in range(STREAMS)]
    expected = alone(spec, adapters, packets)
    assert len({repr(v) for v in expected.values()}) == STREAMS
    engine = engine_of(spec, adapters)
    assert {t: summary(d) for t, d in run(engine, packets).items()} == expected
    again = [msgspec.structs.replace(p, ticket=p.ticket + 100) for p in packets]
    before = engine.stats().cached_tokens
    repeated = {t - 100: summary(d) for t, d in run(engine, again).items()}
    assert repeated == expected
    unscored = [p for p in packets if not p.score_prompt]  # who scores reads every position
    assert engine.stats().cached_tokens - before == 48 * len(unscored)
    assert engine.stats().accepted_tokens > 0, "no guess was right"


def test_what_one_adapter_computed_is_no_other_ones(
    spec: EngineSpec, adapters: list[Adapter]
) -> None:
    engine = engine_of(spec, adapters)
    prompt = [(11 * j) % 200 + 40 for j in range(50)]
    for i, digest in enumerate(["", adapters[0].digest, adapters[1].digest, adapters[0].digest]):
        one = msgspec.structs.replace(
            packet(0, 4), ticket=i + 1, prompt=prompt, adapter=digest, grammar=""
        )
        before = engine.stats().cached_tokens
        run(engine, [one])
        assert engine.stats().cached_tokens - before == (48 if i == 3 else 0)


def test_pre_emption_keeps_the_adapter(spec: EngineSpec, adapters: list[Adapter]) -> None:
    packets = [asked(i, adapters, max_tokens=150) for i in range(8)]
    expected = alone(spec, adapters, packets)
    options = msgspec.structs.replace(spec, options=small(spec.options))
    engine = engine_of(options, adapters)
    assert {t: summary(d) for t, d in run(engine, packets).items()} == expected
    assert engine.stats().preemptions > 0, "void: nobody gave way"


def small(options: RunnerOptions) -> RunnerOptions:
    return dataclasses.replace(options, kv_tokens=500)


def test_adapters_come_and_go_under_open_choices(spec: EngineSpec, adapters: list[Adapter]) -> None:
    """One leaves when its last choice has ended, and not before; it comes back, and a choice that
    came before it waits. Who decodes beside it all notices nothing.
    """
    first, second, third = adapters
    lasting = [asked(i, adapters, max_tokens=200) for i in (1, 2)]
    brief = asked(3, adapters, max_tokens=30)
    after = asked(7, adapters, max_tokens=30)
    expected = alone(spec, adapters, [*lasting, brief, after])
    engine = engine_of(spec, [first, second, third])
    said: dict[int, list[Delta]] = {p.ticket: [] for p in (*lasting, brief, after)}

    def step(until: Callable[[], bool]) -> None:
        while not until():
            for delta in engine.step():
                said[delta.ticket].append(delta)

    engine.obey(Orders(submit=[*lasting, brief]))
    step(lambda: bool(said[brief.ticket]))
    engine.obey(Orders(adapters=[AdapterOrder(third.digest)]))
    assert engine.stats().adapters == 3, "it left under an open choice"
    step(lambda: any(d.last for d in said[brief.ticket]))
    assert engine.stats().adapters == 2
    engine.obey(Orders(adapters=orders_of([third]), submit=[after]))
    assert not said[after.ticket]
    step(lambda: engine.idle)
    assert {t: summary(d) for t, d in said.items()} == expected
    engine.step()
    assert [n.error for n in engine.adapters.news()] == [""] * 4


def test_an_adapter_that_is_not_there_fails_its_choice_alone(
    spec: EngineSpec, adapters: list[Adapter]
) -> None:
    engine = engine_of(spec, adapters[:1])
    ghost = msgspec.structs.replace(asked(0, adapters), ticket=50, adapter="00" * 32)
    others = [asked(i, adapters) for i in (0, 1)]
    expected = alone(spec, adapters, others)
    said = run(engine, [*others, ghost])
    failure = said.pop(50)[0].failure
    assert failure is not None
    assert "The adapter is not loaded" in failure.message
    assert {t: summary(d) for t, d in said.items()} == expected


def test_what_cannot_be_loaded_is_told_and_leaves_no_trace(
    spec: EngineSpec, adapters: list[Adapter], tmp_path: Path
) -> None:
    engine = engine_of(spec, adapters[:2])
    while engine.adapters.busy:
        engine.step()
    engine.adapters.news()
    lost = AdapterOrder("11" * 32, str(tmp_path / "nowhere"))
    waiting = msgspec.structs.replace(asked(0, adapters), ticket=9, adapter=lost.digest)
    said = run_with(engine, Orders(adapters=[lost], submit=[waiting]))
    assert said[9][0].failure is not None
    (news,) = engine.adapters.news()
    assert news.digest == lost.digest
    assert "adapter_config.json" in news.error
    # four for three slots: the fourth is refused, and one that is given up on the way frees its own
    more = [*orders_of(adapters), AdapterOrder("22" * 32, str(adapters[0].path))]
    engine.obey(Orders(adapters=more))
    while engine.adapters.busy:
        engine.step()
    told = {n.digest: n.error for n in engine.adapters.news()}
    assert "all 3 slots hold adapters" in told.pop("22" * 32)
    assert told == {a.digest: "" for a in adapters}
    away = [AdapterOrder(a.digest) for a in adapters]
    engine.obey(Orders(adapters=away))
    engine.obey(Orders(adapters=[*orders_of(adapters)]))
    engine.adapters.advance(lambda: 1e9)  # one layer of the first
    engine.obey(Orders(adapters=away))
    assert not engine.adapters.busy
    engine.step()
    assert engine.stats().adapters == 0


def run_with(engine: InferenceEngine, orders: Orders) -> dict[int, list[Delta]]:
    said: dict[int, list[Delta]] = {p.ticket: [] for p in orders.submit}
    deltas = engine.obey(orders)
    while deltas or not engine.idle:
        for delta in deltas:
            said[delta.ticket].append(delta)
        deltas = [] if engine.idle else engine.step()
    return said


def test_an_engine_without_room_says_so(spec: EngineSpec, adapters: list[Adapter]) -> None:
    bare = msgspec.structs.replace(spec, options=dataclasses.replace(spec.options, max_adapters=0))
    engine = engine_of(bare, adapters[:1])
    while engine.adapters.busy:
        engine.step()
    assert "--max-adapters" in engine.adapters.news()[0].error


def test_kills_change_nothing(spec: EngineSpec, adapters: list[Adapter]) -> None:
    """The next engine is told its adapters first; streams of all of them go on with the same
    bits.
    """
    packets = [asked(i, adapters, max_tokens=300) for i in range(12)]
    expected = alone(spec, adapters, packets)
    heard, supervisor = supervised(spec, packets, kills(8, 40, seed=5), orders_of(adapters))
    assert {t: summary(d) for t, d in heard.deltas.items()} == expected
    assert supervisor.restarts > 3


def test_news_of_a_load_come_once_an_engine(spec: EngineSpec, adapters: list[Adapter]) -> None:
    engine = engine_of(spec, adapters[:1])
    while engine.adapters.busy:
        engine.step()
    assert engine.adapters.news() == [AdapterNews(adapters[0].digest)]
    engine.obey(Orders(adapters=orders_of(adapters[:1])))
    assert engine.adapters.news() == [AdapterNews(adapters[0].digest)]


def test_an_adapter_that_ends_every_engine_is_let_go(
    spec: EngineSpec, adapters: list[Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every engine ends while it is on its way (it never arrives: on no machine can one load it
    before it is killed). After eight the service goes on without it, and says so.
    """
    base, news = asked(0, adapters), list[AdapterNews]()
    send = EngineSupervisor._send

    def lost(supervisor: EngineSupervisor, orders: Orders) -> None:
        send(supervisor, msgspec.structs.replace(orders, adapters=[]))

    monkeypatch.setattr(EngineSupervisor, "_send", lost)

    async def kill(supervisor: EngineSupervisor, heard: Heard) -> None:
        for killed in range(1, 9):
            while not supervisor.alive or supervisor.pid is None:
                await asyncio.sleep(0.001)
            os.kill(supervisor.pid, signal.SIGKILL)
            while supervisor.restarts < killed:
                await asyncio.sleep(0.001)
        news.extend(n for report in heard.reports for n in report.adapters)
        supervisor.give(Orders(submit=[base]))

    heard, supervisor = supervised(spec, [base], kill, orders_of(adapters[:1]), begun=0)
    assert {t: summary(d) for t, d in heard.deltas.items()} == alone(spec, adapters, [base])
    assert [n.digest for n in news] == [adapters[0].digest]
    assert "ended 8 times while it loaded this adapter" in news[0].error
    assert supervisor.restarts == 8
