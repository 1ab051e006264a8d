"""rebar merge"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rebar.cli.options import Json, Model, Offline, format_size
from rebar.cli.output import emit, progress
from rebar.errors import InputError

MergeType = Literal["auto", "F32", "F16", "BF16", "Q8_0"]


def merge(
    model: Model,
    adapter: Annotated[Path, Parameter(help="Folder of a LoRA adapter as peft saves it.")],
    target: Annotated[Path, Parameter(help="The .rebar file to write.")],
    *,
    kind: Annotated[
        MergeType,
        Parameter(
            name="--type",
            help="Of the weights that change; auto: floats stay, quantized become Q8_0.",
        ),
    ] = "auto",
    force: Annotated[bool, Parameter(help="Replace the file if there is one.")] = False,
    json: Json = False,
    offline: Offline = False,
) -> None:
    """Add an adapter into a model's weights, in a new file.

    MODEL itself is not changed: it is the way back. An adapter that is in its weights already is
    refused. `rebar serve --adapter` serves an adapter without merging, several at a time.
    """
    if target.is_dir():
        raise InputError(
            f"{target} is a folder. Name the file to write, like {target}/merged.rebar."
        )
    if target.exists() and not force:
        raise InputError(f"{target} exists. Choose another name, or --force to replace it.")
    begin = time.perf_counter()
    changed, scales = _write(model, adapter, target, kind, offline=offline)
    nbytes = target.stat().st_size
    facts: dict[str, object] = {
        "target": str(target),
        "changed": f"{changed} matrices",
        "scale": scales,
    }
    facts |= {"nbytes": nbytes, "size": format_size(nbytes)}
    emit({**facts, "seconds": round(time.perf_counter() - begin, 3)}, json=json)


def _write(
    model: str, adapter: Path, target: Path, kind: MergeType, *, offline: bool
) -> tuple[int, str]:
    """How many matrices changed, and by which factors of B A."""
    from rebar.cli.models import open_named
    from rebar.graph.lora import read_adapter
    from rebar.graph.lora.merge import merged
    from rebar.graph.weights import write_rebar
    from rebar.hal import read_machine

    file = open_named(model, offline=offline)
    if target.exists() and target.samefile(file.path):
        raise InputError(f"{target} is the model itself. Write to another file.")
    loaded = read_adapter(adapter, file.config)
    whole = merged(file, loaded, kind)
    assert file.vocabulary is not None, "a converted model has its tables"
    with progress() as shown:
        write_rebar(
            whole,
            target,
            vocabulary=bytes(file.vocabulary),
            provenance=whole.provenance,
            progress=lambda _, done, total: shown("merge", done, total),
            threads=read_machine().cores,
        )
    scales = sorted({f"{low.scale:g}" for low in loaded.parts.values()})
    return len(loaded.parts), ", ".join(scales)
