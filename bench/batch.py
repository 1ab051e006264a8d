"""A batch without a server, as deep as somebody else's was: python -m bench.batch MODEL DEPTH STEPS

16 rows that begin behind DEPTH positions, STEPS steps, in a process of their own as a served engine
has; prints {"tok_s": the median of three runs}.
"""

from __future__ import annotations

import json
import statistics
import sys

from rebar.cli.models import open_named
from rebar.graph import RunnerOptions, load_runner
from rebar.insight.figures import EngineBench, Figure

ROWS = 16


def rate(model: str, depth: int, steps: int) -> float:
    """Tokens a second."""
    runner = load_runner(open_named(model), RunnerOptions())
    figure = Figure("batch", rows=ROWS, depth=depth, steps=steps)
    runs = EngineBench(runner).run(figure, 4)[1:]  # the first one touches what no other has
    runner.close()
    return statistics.median(runs)


if __name__ == "__main__":
    print(json.dumps({"tok_s": rate(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))}))
