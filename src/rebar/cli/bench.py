"""rebar bench engine"""

from __future__ import annotations

from cyclopts import App

from rebar.cli.models import open_named
from rebar.cli.options import DEFAULT_MODEL, EngineFlags, Json, Model, Offline
from rebar.cli.output import emit
from rebar.cli.settings import places

bench = App(name="bench", help="Measure the engine on this machine.", version_flags=[])


@bench.command
def engine(
    model: Model = DEFAULT_MODEL,
    *,
    flags: EngineFlags | None = None,
    json: Json = False,
    offline: Offline = False,
) -> None:
    """Tokens per second of prompt (512 at once) and decode (1 and 8 rows), load time, memory.

    No server in between: these are the layers below it. Medians of several runs.
    """
    from rebar.insight.bench import bench_engine

    path = open_named(model, offline=offline).path
    options = (flags or EngineFlags()).runner_options(places().isa)
    emit(bench_engine(path, options), json=json)
