"""Where a run writes the model that it trained, and in which form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rebar.cli.output import progress
from rebar.cli.targets import Form, written_facts

if TYPE_CHECKING:
    from rebar.graph.learner import Learner
    from rebar.graph.weights import ModelFile


def model_place(folder: Path, form: Form) -> Path:
    """Where a run writes the model it trained. InputError when something else is there."""
    if form == "rebar":
        return folder / "model.rebar"
    from rebar.graph.weights.hf_writer import check_place

    check_place(folder / "model", replace=True)
    return folder / "model"


def write_model(folder: Path, file: ModelFile, learner: Learner, form: Form) -> dict[str, str]:
    """Writes the trained model, ready to be opened: FOLDER/model.rebar, or the Hugging Face folder
    FOLDER/model.
    """
    from rebar.dataflow.models import write_folder
    from rebar.graph.weights import write_rebar
    from rebar.graph.weights.fresh import trained_model
    from rebar.graph.weights.provenance import merged_notes

    path, origin = model_place(folder, form), {"tool": "rebar", "source": file.name}
    origin |= merged_notes(file)
    assert file.vocabulary is not None, "a converted model has its tables"
    with progress() as shown:

        def written(_: str, done: int, count: int) -> None:
            shown("write", done, count)

        whole = trained_model(file, learner.parameters)
        if form == "hf":
            write_folder(whole, path, replace=True, progress=written)
        else:
            tables = bytes(file.vocabulary)
            write_rebar(whole, path, vocabulary=tables, provenance=origin, progress=written)
    return {"model": str(path), "size": str(written_facts(path)["size"])}
