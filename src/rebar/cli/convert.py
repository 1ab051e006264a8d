"""rebar convert"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rebar.cli.models import find_named, open_named
from rebar.cli.options import Json, Model, Offline
from rebar.cli.output import emit, progress
from rebar.cli.targets import As, Force, Type, check_target, folder_type, written_facts
from rebar.errors import InputError


def convert(
    source: Model,
    target: Annotated[Path, Parameter(help="The file or folder to write.")],
    *,
    form: As = "rebar",
    kind: Annotated[
        Type, Parameter(name="--type", help="Of all matrices; auto: as they are stored.")
    ] = "auto",
    types_of: Annotated[
        str | None,
        Parameter(help="A model of the same sizes: each matrix in the type that it has there."),
    ] = None,
    force: Force = False,
    json: Json = False,
    offline: Offline = False,
) -> None:
    """Write a model as a .rebar file, or as a Hugging Face folder.

    --type and --types-of quantize a model that was trained in float32 again. A folder has one float
    type: auto is F16 or BF16 where this holds every weight as it is, F32 otherwise.
    """
    from rebar.dataflow.models import convert as write
    from rebar.dataflow.models import write_folder
    from rebar.graph.weights import open_model

    begin = time.perf_counter()
    found = find_named(source, offline=offline)
    check_target(target, form, found, force=force)
    if types_of is not None and (form == "hf" or kind != "auto"):
        raise InputError("--types-of goes with --as rebar and without --type.", param="types_of")
    like = None if types_of is None else open_named(types_of, offline=offline)
    with progress() as shown:
        if form == "hf":
            told = folder_type(kind)
            write_folder(open_model(found), target, kind=told, replace=force, progress=shown)
        else:
            write(found, target, shown, kind=None if kind == "auto" else kind, like=like)
    seconds = round(time.perf_counter() - begin, 3)
    emit({**written_facts(target), "seconds": seconds}, json=json)
