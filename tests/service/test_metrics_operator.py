"""What an operator's rules rely on: series that are there before anything happens, processor time
that only grows, gauges that fall back.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rebar.dataflow.models import convert
from rebar.graph import RunnerOptions
from rebar.service.engine_process import EngineProcess
from rebar.service.http.loop_guard import LoopGuard
from rebar.service.http.metrics import ServiceMetrics
from rebar.service.messages import EngineSpec, StepReport
from rebar.service.router import ServiceRouter
from rebar.service.supervisor import EngineSupervisor
from tests.service.fakes import ScriptedRunner
from tests.service.live import Live, scripted_service, serving
from tests.tiny import tiny_gguf

CAUSES = {
    "rebar_request_success_total": {"stop", "length"},
    "rebar_request_failures_total": {
        "caller", "engine", "stopping", "timeout", "engine_ended", "deadline_exceeded",
    },
    "rebar_request_rejections_total": {"queue_full"},
    "rebar_request_aborts_total": {"client_left"},
}  # fmt: skip


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(ScriptedRunner()) as live:
        yield live


def series(text: str) -> dict[tuple[str, str], float]:
    """(name, labels) to value."""
    lines = re.findall(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$", text, re.M)
    return {(name, labels): float(value) for name, labels, value in lines}


def test_every_cause_is_there_before_it_happens() -> None:
    """`increase` sees nothing of a series that begins at 1, so the first failure of a night made no
    alert; and a sum with a series that is missing is no number at all."""
    router = ServiceRouter([scripted_service(ScriptedRunner())])
    text = ServiceMetrics(router, LoopGuard(1.0)).text().decode()
    found = series(text)
    for name, causes in CAUSES.items():
        values = {
            re.sub(r'.*(?:cause|finished_reason)="(\w+)".*', r"\1", labels): value
            for (metric, labels), value in found.items()
            if metric == name
        }
        assert values == dict.fromkeys(causes, 0.0), name


def test_processes_and_cores_are_told(live: Live) -> None:
    found = series(live.http.get("/metrics").text)
    front = 'model_name="",process="front"'
    assert found["rebar_process_cpu_seconds_total", front] > 0
    assert found["rebar_process_resident_memory_bytes", front] > 1 << 20
    assert found["rebar_cores", ""] >= 1
    engines = [labels for _, labels in found if 'process="engine"' in labels]
    assert engines == [], "an engine in a thread has no process of its own"


def test_processor_time_of_engines_only_grows(tmp_path: Path) -> None:
    """A counter that goes back when an engine dies reads as an hour of work within a second."""
    target = tmp_path / "tiny.rebar"
    convert(tiny_gguf(tmp_path, "llama", "Q8_0", context_length=256), target)
    spec = EngineSpec(str(target), RunnerOptions(threads=1, memory=64 << 20), 2, 2)

    async def run() -> list[float]:
        reports: list[StepReport] = []
        supervisor = EngineSupervisor(EngineProcess(spec), spec, reports.append)
        supervisor.start()
        found = []
        async with asyncio.timeout(60):
            for kills in range(3):
                while not (supervisor.alive and supervisor.restarts == kills):
                    await asyncio.sleep(0.01)
                found.append(supervisor.cpu_seconds)
                assert supervisor.pid is not None
                if kills < 2:
                    os.kill(supervisor.pid, signal.SIGKILL)
        assert await asyncio.to_thread(supervisor.stop)
        return found

    first, second, third = asyncio.run(run())
    # Each engine needs some tenths of a second to load; the kernel counts in hundredths.
    assert 0 < first < second < third


def test_an_idle_server_says_no_old_numbers(live: Live) -> None:
    assert live.complete(max_tokens=3).status_code == 200
    live.at_rest()
    found = series(live.http.get("/metrics").text)
    name = 'model_name="scripted"'
    assert found["rebar_num_requests_running", name] == 0
    assert found["rebar_queue_age_seconds", name] == 0
    assert found["rebar_kv_blocks_free", name] == found["rebar_kv_blocks", name]
