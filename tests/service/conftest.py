"""Shared servers: the scripted model in a thread of the test, and `rebar serve` with a small random
model in its own processes. Every test that takes one ends with PROBE.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.fakes import ScriptedRunner
from tests.service.live import Client, Live, serving
from tests.service.rebar_process import RebarProcess, serving_process
from tests.tiny import tiny_gguf


@pytest.fixture(scope="session")
def running_server() -> Iterator[Live]:
    with serving(ScriptedRunner()) as server:
        yield server


@pytest.fixture
def live(running_server: Live) -> Iterator[Live]:
    running_server.runner.reset()
    yield running_server
    running_server.probe()


@pytest.fixture(scope="session")
def running_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RebarProcess]:
    folder = tmp_path_factory.mktemp("served")
    with serving_process(tiny_gguf(folder, "llama", "Q8_0"), folder / "cache") as server:
        yield server


@pytest.fixture
def processes(running_processes: RebarProcess) -> Iterator[RebarProcess]:
    yield running_processes
    running_processes.probe()


@pytest.fixture(params=["thread", "processes"])
def anywhere(request: pytest.FixtureRequest) -> Client:
    """Both servers in turn, for what either must stand."""
    server: Client = request.getfixturevalue("live" if request.param == "thread" else "processes")
    return server
