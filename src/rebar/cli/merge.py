"""rebar merge"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rebar.cli.models import find_named, open_found
from rebar.cli.options import Json, Model, Offline
from rebar.cli.output import emit, note, progress
from rebar.cli.targets import As, Force, Type, check_target, folder_type, written_facts

if TYPE_CHECKING:
    from rebar.graph.lora import Adapter
    from rebar.graph.weights import ModelFile

MergeType = Literal["same"] | Type
MUCH = 0.25  # of an adapter; the README's keeps its answers with 0.14 (Q8_0), not with 0.84 (Q4_1)


def merge(
    model: Model,
    adapter: Annotated[Path, Parameter(help="Folder of a LoRA adapter as peft saves it.")],
    target: Annotated[Path, Parameter(help="The file or folder to write.")],
    *,
    form: As = "rebar",
    kind: Annotated[
        MergeType,
        Parameter(
            name="--type",
            help="Of the weights that change; auto: floats stay, quantized become Q8_0; same: each "
            "in the type that it has. Of a folder: of all weights.",
        ),
    ] = "auto",
    force: Force = False,
    json: Json = False,
    offline: Offline = False,
) -> None:
    """Add an adapter into a model's weights, in a new file.

    MODEL itself is not changed: it is the way back. An adapter that is in its weights already is
    refused. `rebar serve --adapter` serves an adapter without merging, several at a time.
    """
    from rebar.graph.lora import read_adapter
    from rebar.graph.lora.merge import rounding
    from rebar.graph.weights import open_model

    begin = time.perf_counter()
    source = find_named(model, offline=offline)
    check_target(target, form, source, force=force)
    file = open_found(source)
    loaded = read_adapter(adapter, file.config)
    if form == "hf":
        _write_folder(file, loaded, target, kind, force=force)
    else:
        _write_file(file, loaded, target, kind)
    scales = sorted({f"{low.scale:g}" for low in loaded.parts.values()})
    lost = rounding(file, loaded, open_model(target))
    if lost > MUCH:
        note(
            f"Rounding takes {lost:.0%} of what the adapter adds: the answers may not be the ones "
            "it was taught. Choose --type auto or a float type."
        )
    facts = {"changed": f"{len(loaded.parts)} matrices", "scale": ", ".join(scales)}
    facts["rounding"] = f"{lost:.2%} of what the adapter adds"
    seconds = round(time.perf_counter() - begin, 3)
    emit({**facts, **written_facts(target), "seconds": seconds}, json=json)


def _write_file(file: ModelFile, adapter: Adapter, target: Path, kind: MergeType) -> None:
    from rebar.graph.lora.merge import merged
    from rebar.graph.weights import write_rebar
    from rebar.hal import read_machine

    whole = merged(file, adapter, kind)
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


def _write_folder(
    file: ModelFile, adapter: Adapter, target: Path, kind: MergeType, *, force: bool
) -> None:
    """Every sum is rounded once, to the type of the folder."""
    from rebar.dataflow.models import write_folder
    from rebar.graph.lora.merge import merged
    from rebar.graph.weights.hf_writer import folder_type as usual

    given = folder_type(kind)
    due = usual(file) if given == "auto" else given
    whole = merged(file, adapter, due)
    with progress() as shown:
        write_folder(
            whole,
            target,
            kind=due,
            replace=force,
            progress=lambda _, done, total: shown("merge", done, total),
        )
