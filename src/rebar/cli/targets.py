"""Where a verb writes a model, and in which form: a .rebar file, or a folder as Hugging Face has
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rebar.cli.options import format_size
from rebar.errors import InputError

Form = Literal["rebar", "hf"]
FolderType = Literal["auto", "F32", "F16", "BF16"]
Type = Literal[
    "auto", "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"
]
FOLDER_TYPES: dict[str, FolderType] = {"auto": "auto", "F32": "F32", "F16": "F16", "BF16": "BF16"}
As = Annotated[
    Form,
    Parameter(name="--as", help="A .rebar file, or a Hugging Face folder that transformers opens."),
]
Force = Annotated[bool, Parameter(help="Replace what was written there before.")]


def check_target(target: Path, form: Form, source: Path | None = None, *, force: bool) -> None:
    """Raises InputError unless the target may be written. source: a file or folder that must stay
    as it is.
    """
    if source is not None and target.exists():
        whole = target.resolve()
        if source.resolve() in (whole, *whole.parents):
            raise InputError(f"{target} is the model itself. Write to another place.")
    if form == "hf":
        from rebar.graph.weights.hf_writer import check_place

        check_place(target, replace=force)
    elif target.is_dir():
        raise InputError(
            f"{target} is a folder. Name the file to write, like {target}/model.rebar, or give "
            "--as hf."
        )
    elif target.exists() and not force:
        raise InputError(f"{target} exists. Choose another name, or --force to replace it.")


def folder_type(kind: str) -> FolderType:
    """--type of a folder. InputError for quantized ones, which it cannot hold."""
    if kind not in FOLDER_TYPES:
        raise InputError(
            f"--type {kind}: a Hugging Face folder holds floats. Choose one of "
            f"{', '.join(FOLDER_TYPES)}.",
            param="type",
        )
    return FOLDER_TYPES[kind]


def written_facts(target: Path) -> dict[str, object]:
    """What was written, for people and machines."""
    files = [target] if target.is_file() else list(target.iterdir())
    nbytes = sum(file.stat().st_size for file in files)
    return {"target": str(target), "nbytes": nbytes, "size": format_size(nbytes)}
