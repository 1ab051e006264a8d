"""rebar bench engine, rebar bench machine, rebar bench serve"""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import App, Parameter

from rebar.cli.load import LoadFlags
from rebar.cli.models import open_named
from rebar.cli.options import DEFAULT_MODEL, EngineFlags, Json, Model, Offline
from rebar.cli.output import emit, note
from rebar.cli.settings import places

bench = App(
    name="bench",
    help="Measure this machine, the engine on it, or a running server.",
    version_flags=[],
)


@bench.command
def machine(
    *,
    threads: Annotated[int | None, Parameter(help="Threads; default: one per core.")] = None,
    json: Json = False,
) -> None:
    """What this machine can give: read bandwidth, operations per second, the price of a launch.

    The ceilings of every figure of the engine, measured with its own threads and vector code.
    """
    from rebar.insight.bench_machine import bench_machine, table

    facts = bench_machine(threads, places().isa, report=_report)
    if json:
        emit(facts, json=True)
    else:
        sys.stdout.write("\n".join(table(facts)) + "\n")


@bench.command
def engine(
    model: Model = DEFAULT_MODEL,
    *,
    only: Annotated[
        tuple[str, ...], Parameter(help="Figures, or beginnings of their names; repeatable.")
    ] = (),
    repeats: Annotated[int, Parameter(help="Runs of each figure.")] = 5,
    flags: EngineFlags | None = None,
    json: Json = False,
    offline: Offline = False,
) -> None:
    """Tokens per second of prompts and decode, load time, memory, each beside its ceiling.

    Prompts of 128, 512 and 2048; one row at depth 0, 1024 and 4096; 4, 8, 16 and 32 rows. No
    server in between: these are the layers below it. Medians of several runs. The ceiling is what
    this machine, measured in the same run, would give if the bytes and operations that no engine
    can avoid were all there was.
    """
    from rebar.insight.bench import bench_engine, table

    path = open_named(model, offline=offline).path
    options = (flags or EngineFlags()).runner_options(places().isa)
    facts = bench_engine(path, options, only=only, repeats=repeats, report=_report)
    if json:
        emit(facts, json=True)
    else:
        sys.stdout.write("\n".join(table(facts)) + "\n")


@bench.command
def serve(
    url: Annotated[str, Parameter(help="Of any server with the OpenAI API.")],
    *,
    flags: LoadFlags | None = None,
    find_rate: Annotated[
        bool, Parameter(help="Search the highest rate that keeps the service level.")
    ] = False,
    json: Json = False,
) -> int:
    """Load on a running server, as users make it: Poisson arrivals, streams read as they come.

    Prints TTFT, ITL, TPOT and E2E (P50 to P99, formulas below the table), goodput under --slo,
    errors by cause and refusals. Ctrl-C ends it with what there is. With --find-rate: the highest
    rate at which P99 TTFT is under 350 ms (or --slo ttft=...), errors under 0.3 % and the cores
    more than 65 % busy.
    """
    from rebar.cli.load import find, measure

    return (find if find_rate else measure)(url, flags or LoadFlags(), json=json)


def _report(line: str) -> None:
    note(f"bench: {line}")
