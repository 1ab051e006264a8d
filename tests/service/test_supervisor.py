"""An engine process is killed, stopped, poisoned; no open choice may notice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from llguidance import LLMatcher

from rebar.dataflow.models import convert
from rebar.errors import ContextLengthError, EngineError, MemoryBudgetError
from rebar.graph import RunnerOptions
from rebar.graph.sequence import SamplingParams
from rebar.graph.weights import open_model
from rebar.service import supervisor as supervisor_module
from rebar.service.engine_process import EngineProcess
from rebar.service.loading import load_engine
from rebar.service.messages import (
    AdapterOrder,
    Delta,
    EngineSpec,
    Failure,
    Orders,
    RequestPacket,
    StepReport,
)
from rebar.service.succession import new_memory
from rebar.service.supervisor import EngineSupervisor, Told
from tests.tiny import tiny_gguf

STREAMS = 32
OPTIONS = RunnerOptions(threads=1, max_rows=64, memory=256 << 20, kv_tokens=1 << 16)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> EngineSpec:
    folder = tmp_path_factory.mktemp("engine")
    target = folder / "tiny.rebar"
    convert(tiny_gguf(folder, "llama", "Q8_0", context_length=4096), target)
    return EngineSpec(str(target), OPTIONS, max_running=STREAMS, max_waiting=64)


def packet(i: int, max_tokens: int = 400) -> RequestPacket:
    """Greedy, seeded, penalised, scored, stopped by text, held to a grammar, of any priority."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_p": 0.9, "seed": i},
        {"temperature": 0.7, "repetition_penalty": 1.2, "frequency_penalty": 0.4, "seed": i},
        {"temperature": 1.2, "seed": i, "logprobs": 2},
    ]
    grammar = LLMatcher.grammar_from_regex("([a-f ]{3,9}[0-9]{2}){90,200}")
    return RequestPacket(
        ticket=i + 1,
        request_id=f"r{i}",
        trace_id=f"t{i}",
        prompt=[(7 * i + j) % 300 + 40 for j in range(5 + 3 * i)],
        sampling=SamplingParams(**kinds[i % 4]),
        max_tokens=max_tokens + 10 * i,
        stop=("qu", "the lazy") if i % 8 == 7 else (),
        score_prompt=i % 8 == 3,
        priority=i % 3 - 1,
        grammar=grammar if i % 4 == 1 else "",
    )


def alone(spec: EngineSpec, packets: list[RequestPacket]) -> dict[int, Told | str]:
    """What each choice says when nothing happens, each in an engine of its own turn that computes
    everything, one id a step.
    """
    file = open_model(Path(spec.path))
    engine = load_engine(file, spec.options, spec.max_running, sharing=False, speculation=0).engine
    said: dict[int, list[Delta]] = {p.ticket: [] for p in packets}
    for p in packets:
        assert engine.obey(Orders(submit=[p])) == []
        while not engine.idle:
            for delta in engine.step():
                said[delta.ticket].append(delta)
    engine.close()
    return {ticket: summary(deltas) for ticket, deltas in said.items()}


def summary(deltas: list[Delta]) -> Any:
    """Everything a client could see of a choice."""
    return (
        "".join(d.text for d in deltas),
        [i for d in deltas for i in d.ids],
        [s for d in deltas for s in d.scores],
        [s for d in deltas for s in d.prompt_scores],
        [d.finish for d in deltas if d.last],
        [d.failure for d in deltas if d.failure],
    )


class Heard:
    """Gathers what a supervisor reports."""

    def __init__(self) -> None:
        self.deltas: dict[int, list[Delta]] = {}
        self.ended = 0
        self.reports: list[StepReport] = []
        self.last_time: dict[int, float] = {}
        self.longest_gap = 0.0

    def __call__(self, report: StepReport) -> None:
        now = time.monotonic()
        self.reports.append(report)
        for delta in report.deltas:
            self.deltas.setdefault(delta.ticket, []).append(delta)
            self.longest_gap = max(self.longest_gap, now - self.last_time.get(delta.ticket, now))
            self.last_time[delta.ticket] = now
            self.ended += delta.last


Trouble = Callable[[EngineSupervisor, Heard], Coroutine[None, None, None]]


def kills(count: int, most: int, *, seed: int) -> Trouble:
    """SIGKILL for so many engines, each after fewer than `most` reports, not after some time: every
    engine says something on any machine.
    """
    chance = random.Random(seed)

    async def kill(supervisor: EngineSupervisor, heard: Heard) -> None:
        for killed in range(1, count + 1):
            until = len(heard.reports) + chance.randrange(1, most)
            while len(heard.reports) < until or not supervisor.alive or supervisor.pid is None:
                await asyncio.sleep(0.001)
            os.kill(supervisor.pid, signal.SIGKILL)
            while supervisor.restarts < killed or not supervisor.alive:
                await asyncio.sleep(0.001)

    return kill


def supervised(
    spec: EngineSpec,
    packets: list[RequestPacket],
    trouble: Trouble,
    adapters: list[AdapterOrder] | None = None,
    begun: int | None = None,
) -> tuple[Heard, EngineSupervisor]:
    """Runs the packets to their end under `trouble`, which gives those after the first `begun`.

    In the server's own event loop: plain asyncio drops what is written to a closed connection,
    where uvloop raises.
    """

    async def run() -> tuple[Heard, EngineSupervisor]:
        heard = Heard()
        supervisor = EngineSupervisor(EngineProcess(spec, new_memory()), spec, heard)
        supervisor.start()
        assert supervisor.give(Orders(submit=packets[:begun], adapters=adapters or []))
        troubled = asyncio.create_task(trouble(supervisor, heard))
        async with asyncio.timeout(120):
            while heard.ended < len(packets):
                await asyncio.sleep(0.01)
        troubled.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await troubled
        assert await asyncio.to_thread(supervisor.stop)
        assert not supervisor.give(Orders())
        return heard, supervisor

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def test_twenty_kills_under_32_streams_change_no_byte(spec: EngineSpec) -> None:
    """SIGKILL at random moments, also while the next engine starts or has only begun. Most come
    after so many reports, not so much time: engines that take over what was computed got so quick
    that the streams were over after four kills.
    """
    packets = [packet(i, max_tokens=1000) for i in range(STREAMS)]
    expected = alone(spec, packets)
    chance = random.Random(5)
    kills = 0

    async def kill(supervisor: EngineSupervisor, heard: Heard) -> None:
        nonlocal kills
        killed = None
        while kills < 20:
            if chance.random() < 0.25:
                await asyncio.sleep(chance.uniform(0.0, 0.15))
            else:
                until = len(heard.reports) + chance.randrange(1, 30)
                while len(heard.reports) < until:
                    await asyncio.sleep(0.001)
            while not supervisor.alive or supervisor.pid in (None, killed):
                await asyncio.sleep(0.001)
            killed = supervisor.pid
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            kills += 1

    heard, supervisor = supervised(spec, packets, kill)
    assert kills >= 5, "the streams were over before anything happened"
    assert supervisor.restarts == kills
    assert {t: summary(d) for t, d in heard.deltas.items()} == expected
    steps = [report.stats.steps for report in heard.reports]
    assert steps == sorted(steps), "a counter went back when an engine was replaced"


def test_orders_given_at_the_very_moment_of_an_end_are_not_lost(spec: EngineSpec) -> None:
    """Requests that came while a killed engine's end was not yet read got a 500: the first write
    closed the connection on our side, the second raised out of `give`.
    """
    packets = [packet(i, max_tokens=40) for i in range(24)]

    async def kill(supervisor: EngineSupervisor, heard: Heard) -> None:
        while heard.reports == []:
            await asyncio.sleep(0.001)
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        late = packets[4:]
        while late or supervisor.restarts == 0:
            assert supervisor.give(Orders(submit=[late.pop()] if late else []))
            await asyncio.sleep(0)

    heard, supervisor = supervised(spec, packets, kill, begun=4)
    assert supervisor.restarts >= 1
    assert {ticket: summary(d) for ticket, d in heard.deltas.items()} == alone(spec, packets)


def test_a_stopped_engine_is_noticed_and_replaced(spec: EngineSpec) -> None:
    """SIGSTOP: it lives and says nothing."""
    packets = [packet(i, max_tokens=300) for i in range(4)]
    expected = alone(spec, packets)

    async def stop(supervisor: EngineSupervisor, heard: Heard) -> None:
        while not heard.deltas:
            await asyncio.sleep(0.001)
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGSTOP)

    heard, supervisor = supervised(spec, packets, stop)
    assert supervisor.restarts == 1
    assert {t: summary(d) for t, d in heard.deltas.items()} == expected


def test_a_choice_that_ends_engines_fails_alone(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One packet kills every engine that is given it before anything is said. The others go on;
    it fails after so many turns alone that chance is ruled out. Once such a packet made an engine
    restart for ever.
    """
    packets = [packet(i, max_tokens=60) for i in range(6)]
    expected = alone(spec, packets)
    poison = packets[2].ticket
    sent = supervisor_module.EngineSupervisor._send

    def send(self: EngineSupervisor, orders: Orders) -> None:
        if any(p.ticket == poison for p in orders.submit) and self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        else:
            sent(self, orders)

    monkeypatch.setattr(supervisor_module.EngineSupervisor, "_send", send)

    async def nothing(_s: EngineSupervisor, _h: Heard) -> None:
        return None

    heard, supervisor = supervised(spec, packets, nothing)
    said = {t: summary(d) for t, d in heard.deltas.items()}
    (failure,) = said.pop(poison)[-1]
    assert isinstance(failure, Failure)
    assert failure.code == "engine_ended"
    del expected[poison]
    assert said == expected
    # with all, then alone MAX_STRIKES times, after the others
    assert supervisor.restarts == 1 + supervisor_module.MAX_STRIKES


def test_cancelled_choices_are_not_taken_up_again(spec: EngineSpec) -> None:
    packets = [packet(0, max_tokens=200), packet(1, max_tokens=4000)]

    async def leave(supervisor: EngineSupervisor, heard: Heard) -> None:
        while 2 not in heard.deltas:
            await asyncio.sleep(0.001)
        supervisor.give(Orders(cancel=[2]))
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        heard.ended += 1

    heard, _ = supervised(spec, packets, leave)
    assert summary(heard.deltas[1]) == alone(spec, packets[:1])[1]
    assert len([i for d in heard.deltas[2] for i in d.ids]) < 4000


def test_what_loading_raises_is_raised_here(spec: EngineSpec, tmp_path: Path) -> None:
    small = EngineSpec(spec.path, RunnerOptions(memory=1000), 1, 1)
    with pytest.raises(MemoryBudgetError, match="the weights alone do not leave room"):
        EngineProcess(small)
    long = EngineSpec(spec.path, RunnerOptions(max_context=1 << 20), 1, 1)
    with pytest.raises(ContextLengthError, match="the model was made for 1 to 4,096"):
        EngineProcess(long)


def test_an_engine_that_dies_while_loading_says_what_to_do(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebar.service.engine_process.COMMAND", "import os; os._exit(9)")
    with pytest.raises(EngineError, match="ended with code 9 while it loaded the model"):
        EngineProcess(spec)


def test_the_process_leaves_when_the_front_is_gone(spec: EngineSpec) -> None:
    """However the front ends, the end of the connection is the end of the engine."""
    process = EngineProcess(spec)
    process.sock.close()
    assert process.process.wait(5) == 0
