"""What an engine leaves to the next: taken over after deaths that cannot mean a corrupt process,
left alone after all others, and in no case a changed byte.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rebar.dataflow.models import convert
from rebar.errors import EngineError
from rebar.graph import RunnerOptions
from rebar.graph.sequence import SamplingParams
from rebar.hal import Machine, SharedMemory
from rebar.service import succession, supervisor
from rebar.service.engine_process import EngineProcess
from rebar.service.memory_budget import SPARE_BYTES
from rebar.service.messages import Delta, EngineSpec, Orders, RequestPacket
from rebar.service.succession import Succession
from rebar.service.supervisor import EngineSupervisor
from tests.service.test_supervisor import Heard, alone, summary, supervised
from tests.tiny import tiny_gguf

STREAMS = 6
PROMPT = 70
DEADLY = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
HARMLESS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> EngineSpec:
    folder = tmp_path_factory.mktemp("succession")
    convert(tiny_gguf(folder, "llama", "Q8_0", context_length=4096), folder / "tiny.rebar")
    options = RunnerOptions(threads=1, max_rows=64, memory=256 << 20, kv_tokens=1 << 14)
    return EngineSpec(str(folder / "tiny.rebar"), options, max_running=STREAMS, max_waiting=64)


def packet(i: int, max_tokens: int = 800) -> RequestPacket:
    """Nothing in common with the others."""
    return RequestPacket(
        ticket=i + 1, request_id=f"r{i}", trace_id="", max_tokens=max_tokens,
        prompt=[(7 * i + 3 * j) % 300 + 40 for j in range(PROMPT)],
        sampling=SamplingParams(temperature=0.8, seed=i),
    )  # fmt: skip


@functools.cache
def expected(spec: EngineSpec) -> dict[int, Any]:
    """What the streams say when nothing happens."""
    return alone(spec, [packet(i) for i in range(STREAMS)])


async def all_decode(supervisor: EngineSupervisor, heard: Heard) -> int:
    """Waits until every stream has ids of this engine; its process."""
    until = {ticket: len(deltas) for ticket, deltas in heard.deltas.items()}
    while len(heard.deltas) < STREAMS or any(
        len(deltas) <= until.get(ticket, 0) + 20 for ticket, deltas in heard.deltas.items()
    ):
        await asyncio.sleep(0.001)
    assert supervisor.pid is not None
    return supervisor.pid


@pytest.mark.parametrize("number", [*HARMLESS, *DEADLY])
def test_only_a_harmless_end_leaves_something(spec: EngineSpec, number: signal.Signals) -> None:
    """After it no stream has more to compute than its last block; after another one everything."""
    packets = [packet(i) for i in range(STREAMS)]

    async def trouble(supervisor: EngineSupervisor, heard: Heard) -> None:
        os.kill(await all_decode(supervisor, heard), number)

    heard, ended = supervised(spec, packets, trouble)
    assert ended.restarts == 1
    assert {t: summary(d) for t, d in heard.deltas.items()} == expected(spec)
    last = heard.reports[-1].stats
    known = STREAMS * ((PROMPT + 20) // 16)
    if number in HARMLESS:
        assert last.adopted_blocks >= known
        assert last.cached_tokens >= 16 * known
        # prompts are computed once, but for the tail of a stream that ends in its prompt
        assert last.prompt_tokens == STREAMS * PROMPT
    else:
        assert last.adopted_blocks == last.cached_tokens == 0
        assert last.prompt_tokens == 2 * STREAMS * PROMPT


def test_a_stopped_engine_is_dead_before_the_next_maps_its_memory(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that write one cache would be the end of every promise."""
    states: list[bool] = []

    class Watched(EngineProcess):
        def __init__(self, spec: EngineSpec, kept: SharedMemory | None = None) -> None:
            states.extend(Path(f"/proc/{pid}").exists() for pid in stopped)
            super().__init__(spec, kept)

    monkeypatch.setattr(supervisor, "EngineProcess", Watched)
    stopped: list[int] = []

    async def stop(supervisor: EngineSupervisor, heard: Heard) -> None:
        stopped.append(await all_decode(supervisor, heard))
        os.kill(stopped[0], signal.SIGSTOP)

    heard, replaced = supervised(spec, [packet(i) for i in range(STREAMS)], stop)
    assert replaced.restarts == 1
    assert states == [False]
    assert heard.reports[-1].stats.adopted_blocks > 0


def test_who_left_before_a_kill_leaves_blocks_that_nobody_holds(spec: EngineSpec) -> None:
    """Cancelled, then killed: the others go on, and in the end every block is free."""
    packets = [packet(i, 800 if i < 4 else 3000) for i in range(STREAMS)]

    async def leave(supervisor: EngineSupervisor, heard: Heard) -> None:
        pid = await all_decode(supervisor, heard)
        supervisor.give(Orders(cancel=[5, 6]))
        heard.ended += 2
        os.kill(pid, signal.SIGKILL)

    heard, _ = supervised(spec, packets, leave)
    told = {ticket: summary(heard.deltas[ticket]) for ticket in range(1, 5)}
    assert told == {t: told for t, told in expected(spec).items() if t <= 4}
    last = heard.reports[-1].stats
    assert last.free_blocks == last.total_blocks
    assert last.adopted_blocks > 0


def test_the_checks_of_the_books_hold_after_a_succession(
    spec: EngineSpec, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle engine looks through its ledger and its table; wrong ones would fail all that is
    open, and this run has many ends.
    """
    caplog.set_level(logging.INFO, "rebar.service.supervisor")
    packets = [packet(i, 40 + 90 * i) for i in range(STREAMS)]

    async def kill(supervisor: EngineSupervisor, heard: Heard) -> None:
        for _ in range(3):
            before = len(heard.reports)
            while len(heard.reports) < before + 30 or supervisor.pid is None:
                await asyncio.sleep(0.001)
            os.kill(supervisor.pid, signal.SIGKILL)

    heard, _ = supervised(spec, packets, kill)
    said = {t: summary(d) for t, d in heard.deltas.items()}
    assert said == alone(spec, packets)
    assert any("the next engine goes on: " in line for line in caplog.messages)
    assert any("blocks taken over; ready " in line for line in caplog.messages)


@pytest.fixture
def left() -> Iterator[Succession]:
    """Memory in which something stands."""
    memory = SharedMemory.create("rebar-test-succession")
    memory.map(4096).bytes()[:] = 7
    made = Succession(memory)
    yield made
    assert made.memory is not None
    made.memory.close()


def standing(left: Succession) -> int:
    return left.memory.resident_bytes if left.memory is not None else 0


def ended(left: Succession, code: int | None, *, sound: bool = True, fruitful: bool = True) -> int:
    left.ended(code, sound=sound, fruitful=fruitful, waiting=[])
    return standing(left)


@pytest.mark.parametrize("code", [0, -signal.SIGKILL, -signal.SIGTERM])
def test_ends_that_are_trusted(left: Succession, code: int) -> None:
    assert ended(left, code) == 4096


@pytest.mark.parametrize("code", [1, 2, 134, None, *(-number for number in DEADLY)])
def test_ends_that_are_not_trusted(left: Succession, code: int | None) -> None:
    """1: an exception that nobody caught."""
    before = left.memory
    assert ended(left, code) == 0
    assert left.memory is not before


def test_an_engine_that_said_nonsense_or_was_stuck_leaves_nothing(left: Succession) -> None:
    assert ended(left, -signal.SIGKILL, sound=False) == 0


def test_two_engines_in_a_row_that_brought_nothing_leave_nothing(left: Succession) -> None:
    """Something that was kept may be what ends them."""
    assert ended(left, -signal.SIGKILL, fruitful=False) == 4096
    assert ended(left, -signal.SIGKILL) == 4096
    assert ended(left, -signal.SIGKILL, fruitful=False) == 4096
    assert ended(left, -signal.SIGKILL, fruitful=False) == 0


def test_a_machine_without_memory_gets_it_back(
    left: Succession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system kills the largest process for its memory. Here most of that is held by the front:
    it would have come back into the same need, again and again.
    """
    for available, stands in ((SPARE_BYTES, 4096), (SPARE_BYTES - 1, 0)):
        machine = Machine("a", 1, 1 << 30, available)
        monkeypatch.setattr(succession, "read_machine", lambda machine=machine: machine)
        assert ended(left, -signal.SIGKILL) == stands


def test_a_system_that_shares_no_memory_serves_without(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: str) -> SharedMemory:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(SharedMemory, "create", refuse)
    assert succession.new_memory() is None
    assert "will not outlive an engine" in caplog.text
    packets = [packet(i) for i in range(STREAMS)]

    async def kill(supervisor: EngineSupervisor, heard: Heard) -> None:
        os.kill(await all_decode(supervisor, heard), signal.SIGKILL)

    heard, replaced = supervised(spec, packets, kill)
    assert replaced.restarts == 1
    assert {t: summary(d) for t, d in heard.deltas.items()} == expected(spec)
    assert heard.reports[-1].stats.adopted_blocks == 0


def test_garbage_on_the_connection_is_not_trusted(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes from a process that writes where it should not is no message any more."""
    packets = [packet(i) for i in range(STREAMS)]
    real = EngineSupervisor._take
    spoilt: list[int] = []

    def take(self: EngineSupervisor, process: EngineProcess, message: object) -> None:
        if not spoilt and len(heard_by_then.deltas) == STREAMS:
            spoilt.append(process.pid)
            raise EngineError("A message cannot be read.")
        real(self, process, message)  # type: ignore[arg-type]

    heard_by_then = Heard()
    monkeypatch.setattr(EngineSupervisor, "_take", take)

    async def watch(_: EngineSupervisor, heard: Heard) -> None:
        while True:
            heard_by_then.deltas = heard.deltas
            await asyncio.sleep(0.001)

    heard, replaced = supervised(spec, packets, watch)
    assert (replaced.restarts, len(spoilt)) == (1, 1)
    assert {t: summary(d) for t, d in heard.deltas.items()} == expected(spec)
    assert heard.reports[-1].stats.adopted_blocks == 0


def test_the_way_back_is_told_when_all_have_something(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rebar.service.supervisor")
    following = Succession(None)
    following.ended(-9, sound=True, fruitful=True, waiting=[1, 2, 3])
    following.ready(5, 9)
    following.said(Delta(ticket=1, ids=[4]))
    following.said(Delta(ticket=2))
    following.left([3])
    assert not caplog.messages
    following.said(Delta(ticket=2, ids=[4]))
    following.said(Delta(ticket=2, ids=[4]))
    (line,) = caplog.messages
    assert line.startswith("the next engine goes on: 5 of 9 blocks taken over; ready 0.0")
