"""The shared live server of the scripted model; every test that takes it ends with PROBE."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.fakes import ScriptedRunner
from tests.service.live import Live, serving


@pytest.fixture(scope="session")
def running_server() -> Iterator[Live]:
    with serving(ScriptedRunner()) as server:
        yield server


@pytest.fixture
def live(running_server: Live) -> Iterator[Live]:
    running_server.runner.reset()
    yield running_server
    running_server.probe()
