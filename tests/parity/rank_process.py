"""One rank of a data-parallel run over the line of tests/graph/line.py: started as a process.

rank_process.py RANK COUNT PORT FOLDER BATCHES [DIE_AT | HANG_AT]: trains on BATCHES batches of its
own and prints its steps as JSON, then the bytes of its parameters.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from rebar.errors import RebarError
from rebar.graph.checkpoint import CheckpointStore
from rebar.graph.optimizer import AdamW, Optimizer
from rebar.graph.schedules import Schedule
from rebar.graph.trainer import Trainer, TrainerOptions
from rebar.hal.collective import Place, join
from tests.graph.harness import open_device
from tests.graph.line import Line, Points, Source, points

TIMEOUT = 8.0


def main(rank: int, count: int, port: int, folder: str, batches: str, *fate: str) -> None:
    ranks = join(Place(rank, count, port=port), TIMEOUT)
    sizes = [int(n) for n in batches.split(",")]
    data = points(4 * sum(sizes), seed=5)
    begin = 4 * sum(sizes[:rank])
    mine = slice(begin, begin + 4 * sizes[rank])
    source = Source(Points(data.x[mine], data.y[mine]), epochs=1 if sizes[rank] else 0, seed=None)
    line = Line()
    optimizer = Optimizer(open_device("ref"), line.parameters, AdamW())
    made = Trainer(
        line,
        optimizer,
        Schedule("constant", 0.05),
        Shared(source, batches),
        TrainerOptions(checkpoint_every=2, evaluate_every=2),
        held_out=[points(3, seed=i) for i in range(5)],
        store=CheckpointStore(Path(folder)),
        ranks=ranks,
    )
    if fate[:1] == ("resume",):
        saved = CheckpointStore(Path(folder)).newest()
        assert saved is not None
        made.resume(saved)
    for record in made.run():
        fact = [record.step, record.loss, record.tokens, record.gradient_norm, record.evaluation]
        print(json.dumps(fact), flush=True)
        if fate == ("die", str(record.step)):
            os.kill(os.getpid(), signal.SIGKILL)
        if fate == ("hang", str(record.step)):
            os.kill(os.getpid(), signal.SIGSTOP)
        if fate == ("stop", str(record.step)):
            made.stop()
    print(json.dumps(line.parameters.values.tobytes().hex()), flush=True)
    ranks.close()


class Shared(Source):
    """A rank's share: the digest is that of all of the data."""

    def __init__(self, own: Source, digest: str) -> None:
        super().__init__(own.data, own.window, own.micro, own.epochs, own.seed)
        self._digest = digest

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def windows(self) -> int | None:
        return None


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:4]), *sys.argv[4:])  # type: ignore[arg-type]
    except RebarError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
