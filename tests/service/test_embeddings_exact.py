"""Vectors of a real graph: the same bytes whatever happens to the engine that computes them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rebar.dataflow.models import convert
from rebar.graph import Row, RunnerOptions, load_runner
from rebar.graph.sequence import SamplingParams, Sequence
from rebar.graph.weights import open_model
from rebar.service.embedding import unit
from rebar.service.loading import load_engine
from rebar.service.messages import EngineSpec, Orders, RequestPacket
from rebar.service.supervisor import EngineSupervisor
from tests.service.test_supervisor import Heard, supervised
from tests.tiny import tiny_gguf

TEXTS = 24
OPTIONS = RunnerOptions(threads=1, max_rows=64, memory=256 << 20, kv_tokens=1 << 14)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> EngineSpec:
    folder = tmp_path_factory.mktemp("engine")
    target = folder / "tiny.rebar"
    convert(tiny_gguf(folder, "gemma3", "Q8_0", context_length=4096), target)
    return EngineSpec(str(target), OPTIONS, max_running=8, max_waiting=64)


def packet(i: int) -> RequestPacket:
    return RequestPacket(
        ticket=i + 1,
        request_id=f"r{i}",
        trace_id=f"t{i}",
        prompt=[(7 * i + j) % 300 + 40 for j in range(40 + 90 * i)],
        sampling=SamplingParams(),
        max_tokens=1,
        pooling="last" if i % 5 == 4 else "mean",
    )


def by_hand(spec: EngineSpec, packets: list[RequestPacket]) -> dict[int, bytes]:
    """One position a step, added in order: what the law says and nothing else."""
    runner = load_runner(open_model(Path(spec.path)), OPTIONS)
    found = {}
    for p in packets:
        sequence = Sequence.of(p.prompt, len(p.prompt), p.sampling)
        sequence.blocks = runner.kv.allocate(runner.kv.blocks_for(len(p.prompt)))
        total = np.zeros(runner.width)
        for at in range(len(p.prompt)):
            ((answer,),) = runner.step([Row(sequence, at, 1, range(at, at + 1), hidden=True)])
            state = np.frombuffer(answer.hidden, np.float32).astype(np.float64)
            total = state if p.pooling == "last" else total + state
        found[p.ticket] = unit(total).tobytes()
        runner.kv.release(sequence.blocks)
    return found


def test_kills_change_no_byte(spec: EngineSpec) -> None:
    """SIGKILL while vectors are computed: the next engine gives those that were not told."""
    packets = [packet(i) for i in range(TEXTS)]
    kills = 0

    async def kill(supervisor: EngineSupervisor, heard: Heard) -> None:
        nonlocal kills
        while kills < 4:
            told = heard.ended
            while heard.ended == told or not supervisor.alive or supervisor.pid is None:
                await asyncio.sleep(0.001)
            os.kill(supervisor.pid, signal.SIGKILL)
            kills += 1

    heard, supervisor = supervised(spec, packets, kill)
    assert kills >= 2, "all was over before anything happened"
    assert supervisor.restarts == kills
    found = {ticket: deltas[-1].vector for ticket, deltas in heard.deltas.items()}
    assert found == by_hand(spec, packets)
    assert all(len(deltas) == 1 for deltas in heard.deltas.values()), "a vector was told twice"


def test_little_memory_and_known_beginnings_change_no_byte(spec: EngineSpec) -> None:
    """Urgent texts take the memory of others in the middle of their sums, and begin alike."""
    patient = [packet(i) for i in range(8)]
    common = patient[-1].prompt[:200]
    urgent = [
        msgspec.structs.replace(p, ticket=100 + p.ticket, prompt=common + p.prompt, priority=-1)
        for p in patient
    ]
    everything = [*patient, *urgent]
    small = RunnerOptions(threads=1, max_rows=48, memory=256 << 20, kv_tokens=1600)
    engine = load_engine(open_model(Path(spec.path)), small, max_running=8).engine
    found: dict[int, bytes] = {}
    deltas = engine.obey(Orders(submit=patient))
    while not engine.idle:
        deltas += engine.step()
        found |= {delta.ticket: delta.vector for delta in deltas}
        deltas = engine.obey(Orders(submit=urgent[:1])) if len(found) else []
        urgent = urgent[1:] if len(found) else urgent
    assert engine.stats().preemptions > 0
    assert engine.stats().cached_tokens > 0
    engine.close()
    assert found == by_hand(spec, everything)
