"""Several processes train as one: over gloo, so in the environment that has torch (A-j5)."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rebar.graph.optimizer import AdamW, Optimizer
from rebar.graph.schedules import Schedule
from rebar.graph.trainer import Trainer
from tests.graph.harness import open_device
from tests.graph.line import Line, Source, points
from tests.parity.rank_process import TIMEOUT

pytestmark = pytest.mark.parity
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def start(folder: Path, batches: list[int], fates: dict[int, list[str]]) -> list[Any]:
    port, count = free_port(), len(batches)
    told = ",".join(map(str, batches))
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.parity.rank_process", str(rank), str(count), str(port),
             str(folder), told, *fates.get(rank, [])],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip


def ended(processes: list[Any]) -> list[tuple[int, list[Any], str]]:
    out = []
    for process in processes:
        told, errors = process.communicate(timeout=60)
        out.append((process.returncode, [json.loads(s) for s in told.splitlines()], errors))
    return out


def test_ranks_with_uneven_data_end_together(tmp_path: Path) -> None:
    """A-j5: five batches, four and none: a rank at its end adds zero and keeps stepping. What comes
    out is, to the rounding of another order of sums, one process with windows of both.
    """
    done = ended(start(tmp_path, [5, 4, 0], {}))
    assert [code for code, *_ in done] == [0, 0, 0], done
    facts = [told for _, told, _ in done]
    assert facts[0] == facts[1] == facts[2]  # steps, losses, norms and parameters: the same bits
    assert [step for step, *_ in facts[0][:-1]] == [1, 2, 3, 4, 5]
    assert [tokens for _, _, tokens, *_ in facts[0][:-1]] == [8, 8, 8, 8, 4]
    data = points(36, seed=5)
    order = [i for s in range(4) for b in (s, s + 5) for i in range(4 * b, 4 * b + 4)]
    order += range(16, 20)
    line = Line()
    optimizer = Optimizer(open_device("ref"), line.parameters, AdamW())
    together = Source(type(data)(data.x[order], data.y[order]), window=8, micro=8, seed=None)
    alone = Trainer(line, optimizer, Schedule("constant", 0.05), together)
    losses = [record.loss for record in alone.run()]
    np.testing.assert_allclose([loss for _, loss, *_ in facts[0][:-1]], losses, rtol=1e-5)


@pytest.mark.parametrize("fate", ["die", "hang"])
def test_a_dead_rank_ends_all_with_a_message(tmp_path: Path, fate: str) -> None:
    """A-j5: killed, its connections break at once; stopped, the others wait for the time-out and no
    longer. The checkpoint of step 2 is there to go on from.
    """
    began = time.monotonic()
    processes = start(tmp_path, [6, 6], {1: [fate, "3"]})
    code, told, errors = ended(processes[:1])[0]
    waited = time.monotonic() - began
    processes[1].send_signal(signal.SIGKILL)
    processes[1].communicate()
    assert code == 2
    assert "another of the 2 ranks ended" in errors
    assert "--resume" in errors
    assert told[-1][0] == 3
    assert waited < TIMEOUT + 50  # against waiting for ever; the start of two processes included
    resumed = ended(start(tmp_path, [6, 6], {0: ["resume"], 1: ["resume"]}))
    whole = ended(start(tmp_path / "whole", [6, 6], {}))
    assert [c for c, *_ in resumed + whole] == [0] * 4
    assert resumed[0][1] == whole[0][1][2:]


def test_one_rank_asked_to_stop_stops_all_at_one_step(tmp_path: Path) -> None:
    done = ended(start(tmp_path, [6, 6], {1: ["stop", "3"]}))
    assert [code for code, *_ in done] == [0, 0], done
    assert done[0][1] == done[1][1]
    assert len(done[0][1]) == 3 + 1
    resumed = ended(start(tmp_path, [6, 6], {0: ["resume"], 1: ["resume"]}))
    whole = ended(start(tmp_path / "whole", [6, 6], {}))
    assert resumed[1][1] == whole[0][1][3:]
