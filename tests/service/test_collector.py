"""A serving process and the garbage collector.

With Python's own thresholds a front with 1,000 open streams spent half of its time in it: each
report made thousands of objects that were dead a millisecond later, and each collection walked
through everything that was open.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPORTS = """
import gc, sys
from rebar.service.collector import settle
from rebar.service.frames import FrameReader, frame
from rebar.service.messages import Delta, EngineStats, FromEngine, StepReport
if sys.argv[1] == "settled":
    settle()
report = frame(StepReport(EngineStats(), [Delta(i, "a", [97]) for i in range(1000)]))
open_streams = [[] for _ in range(1000)]
before = sum(g["collections"] for g in gc.get_stats())
for _ in range(200):
    (message,) = FrameReader(FromEngine).feed(report)
    open_streams[0].append(message.deltas[0].text)
print(sum(g["collections"] for g in gc.get_stats()) - before)
"""
SERVED = """
import gc
from rebar.service import server
from tests.service.fakes import ScriptedRunner
from tests.service.live import scripted_service
server.GracefulServer.run = lambda self, sockets: print(gc.get_threshold()[0], gc.get_freeze_count() > 0)
server.serve(lambda: scripted_service(ScriptedRunner()), port=0)
"""  # noqa: E501


def said(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def test_reports_of_a_thousand_streams_do_not_set_it_off() -> None:
    assert int(said(REPORTS, "as it was")) > 200
    assert int(said(REPORTS, "settled")) <= 2


def test_a_server_settles_once_its_model_is_there() -> None:
    assert said(SERVED) == "100000 True"
