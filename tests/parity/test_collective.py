"""Several processes that add numbers together, over real gloo."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.parity

ROOT = Path(__file__).parents[2]
TIMEOUT = 5.0
MEET = """
import sys, time
import numpy as np
from rebar.errors import CollectiveError
from rebar.hal.collective import Place, join
rank, size, port = map(int, sys.argv[1:4])
group = join(Place(rank, size, port=port), timeout=5.0)
"""


def start(size: int, body: str) -> list[subprocess.Popen[str]]:
    """Ranks that run `body` once they have met."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = MEET + textwrap.dedent(body)
    return [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(size), str(port)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip


def ended(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    found = []
    for process in ranks:
        out, err = process.communicate(timeout=60)
        found.append((process.returncode, out, err))
    return found


def test_a_sum_is_in_the_order_of_ranks_on_every_rank() -> None:
    """1e8 + 1 - 1e8 is 0 or 1 in float32 by order: all ranks must say what rank order says, over
    pieces that do not divide the length.
    """
    ranks = start(3, """
        n = (1 << 20) + 7
        values = np.full(n, [1e8, -1e8, 1.0][rank], np.float32)
        values[-1] = [1.0, 1e8, -1e8][rank]
        group.add(values)
        print(sorted(set(values[:-1].tolist())), values[-1], group.gather(float(2**53 - rank)))
        group.close()
    """)  # fmt: skip
    assert np.float32(1) + np.float32(1e8) + np.float32(-1e8) == 0
    for code, out, err in ended(ranks):
        assert code == 0, err
        assert out.strip() == f"[1.0] 0.0 {[float(2**53 - r) for r in range(3)]}"


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_ends_or_hangs_ends_all(sign: signal.Signals) -> None:
    """A-j5: the others waited in all-reduce for ever. They end with a message, in time."""
    ranks = start(3, """
        values = np.ones(8, np.float32)
        group.add(values)
        print("met", flush=True)
        if rank == 1:
            time.sleep(600)
        try:
            group.add(values)
        except CollectiveError as error:
            print(error)
    """)  # fmt: skip
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "met\n"
        os.kill(ranks[1].pid, sign)
        begun = time.monotonic()
        for rank in (0, 2):
            code, out, err = ended([ranks[rank]])[0]
            assert code == 0, err
            assert out.startswith(f"rank {rank}: another of the 3 ranks ended")
            assert out.strip().endswith("start all of them again with --resume.")
        # Time-out, and some for interpreters that end on a busy machine.
        assert time.monotonic() - begun < TIMEOUT + 30
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_a_rank_that_never_comes_is_named() -> None:
    ranks = start(2, "")
    ranks[1].kill()
    ranks[1].communicate()
    ((code, _, err),) = ended(ranks[:1])
    assert code != 0
    assert "the 2 ranks did not meet at tcp://127.0.0.1:" in err


def test_a_port_that_is_taken_is_told() -> None:
    """By a program that listens and says nothing: the library waited for it without end, and its
    advice was none.
    """
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = str(stranger.getsockname()[1])
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", MEET, str(rank), "2", port],
                cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        for code, _, err in ended(ranks):
            assert code == 1
            assert f"holds port {port}: start all ranks with another MASTER_PORT" in err


def test_who_waits_for_a_rank_that_hangs_hears_ctrl_c() -> None:
    """Inside of the library no signal is seen: Ctrl-C did nothing for the whole time-out."""
    ranks = start(2, """
        group._timeout = 600.0  # the library's own is 5 s
        group._torch.distributed.all_gather = lambda *_: time.sleep(600)
        print("waits", flush=True)
        try:
            group.gather(1.0)
        except KeyboardInterrupt:
            print("heard")
            group.close()
    """)  # fmt: skip
    for process in ranks:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
    for code, out, err in ended(ranks):
        assert (code, out) == (0, "heard\n"), err


def test_a_group_can_be_left_at_once_and_met_again() -> None:
    """A rank that is done leaves while the others still read its last number."""
    ranks = start(4, """
        for round in range(20):
            assert group.gather(float(rank + round)) == [float(r + round) for r in range(4)]
        group.close()
        print("done")
    """)  # fmt: skip
    assert [(code, out) for code, out, _ in ended(ranks)] == [(0, "done\n")] * 4


def test_texts_of_any_length_are_told_in_order() -> None:
    ranks = start(3, """
        print(group.gather_text("ü" * (2 * rank)))
        print(group.gather_text(""))
        group.close()
    """)  # fmt: skip
    for code, out, err in ended(ranks):
        assert code == 0, err
        assert out.splitlines() == ["['', 'üü', 'üüüü']", "['', '', '']"]
