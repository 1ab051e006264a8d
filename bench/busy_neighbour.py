"""What is left of one row's decode while another process keeps a core busy.

python -m bench.busy_neighbour PEERS MODEL.gguf: our engine and llama.cpp in turns, each quiet and
then beside a process that counts on the first core. A thread pool that waits for its slowest thread
stands still whenever that thread has no core; one that hands out small pieces loses a share.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.compare_peers import Comparison
from bench.harness import Command, Facts, measure, median, note, number

FIGURE = "decode1"
BOUND_S = 120  # the busy process ends by itself, should this one be killed
BUSY = """
import os, sys, time
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {int(sys.argv[2])})
print(flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    pass
"""


@contextmanager
def busy_process(bound_s: float = BOUND_S) -> Iterator[subprocess.Popen[bytes]]:
    """A process that takes all it gets of the first core, until the block ends."""
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    command = [sys.executable, "-c", BUSY, str(bound_s), str(core)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def shares(engines: Mapping[str, Command], count: int) -> dict[str, Facts]:
    """By engine: tokens a second quiet and busy (medians of `count` rounds), and the share kept."""
    quiet: dict[str, list[Facts]] = {name: [] for name in engines}
    busy: dict[str, list[Facts]] = {name: [] for name in engines}
    for number_ in range(count):
        for name, command in engines.items():
            note(f"round {number_ + 1} of {count}: {name}, quiet, then busy")
            if facts := measure(command, BOUND_S):
                quiet[name].append(facts)
            with busy_process():
                if facts := measure(command, BOUND_S):
                    busy[name].append(facts)
    found: dict[str, Facts] = {}
    for name in engines:
        before, during = (median(runs[name], "figures", FIGURE, "tok_s") for runs in (quiet, busy))
        if before and during:
            found[name] = {"quiet_tok_s": before, "busy_tok_s": during, "kept": during / before}
    return found


def engines(peers: Path, model: Path, threads: int) -> dict[str, Command]:
    """Ours and those peers that decode given ids a step at a time."""
    commands = Comparison(peers, model, None, threads, (FIGURE,)).commands()
    return {name.partition(": ")[0]: command for name, command in commands.items()}


def table(found: Mapping[str, Facts]) -> list[str]:
    """A line an engine."""
    lines = [f"{'tok/s, one row':<16}{'quiet':>10}{'busy':>10}{'kept':>8}"]
    return lines + [
        f"{name:<16}{number(f['quiet_tok_s']):>10}{number(f['busy_tok_s']):>10}{f['kept']:>8.0%}"
        for name, f in found.items()
    ]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=Path, help="folder with the peers' virtual environments")
    parser.add_argument("model", type=Path, help="a .gguf file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = shares(engines(given.peers, given.model.resolve(), given.threads), given.rounds)
    print(json.dumps(found) if given.json else "\n".join(table(found)))


if __name__ == "__main__":
    main()
