"""rebar convert"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rebar.cli.options import Json, Model, Offline, format_size
from rebar.cli.output import emit, progress
from rebar.cli.settings import places
from rebar.errors import InputError


def convert(
    source: Model,
    target: Annotated[Path, Parameter(help="The file to write.")],
    *,
    force: Annotated[bool, Parameter(help="Replace the file if there is one.")] = False,
    json: Json = False,
    offline: Offline = False,
) -> None:
    """Write a model as a .rebar file."""
    from rebar.dataflow.models import convert as write
    from rebar.graph.weights.source import resolve

    if target.is_dir():
        raise InputError(
            f"{target} is a folder. Name the file to write, like {target}/model.rebar."
        )
    if target.exists() and not force:
        raise InputError(f"{target} exists. Choose another name, or --force to replace it.")
    where = places()
    begin = time.perf_counter()
    with progress() as shown:
        found = resolve(source, where.cache, hub=where.hub, progress=shown, offline=offline)
        write(found, target, shown)
    nbytes = target.stat().st_size
    seconds = round(time.perf_counter() - begin, 3)
    emit(
        {
            "target": str(target),
            "nbytes": nbytes,
            "size": format_size(nbytes),
            "seconds": seconds,
        },
        json=json,
    )
