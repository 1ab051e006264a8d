"""A model by its name, with progress on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rebar.cli.options import AnswerFlags
from rebar.cli.output import progress
from rebar.cli.settings import places

ADAPTER = "adapter"

if TYPE_CHECKING:
    from pathlib import Path

    from rebar.graph.weights import ModelFile
    from rebar.service.local import Model


def find_named(name: str, *, offline: bool = False) -> Path:
    """The file or folder of a model name; fetched on first use."""
    from rebar.graph.weights.source import resolve

    where = places()
    with progress() as shown:
        return resolve(name, where.cache, hub=where.hub, progress=shown, offline=offline)


def open_named(name: str, *, offline: bool = False) -> ModelFile:
    """The mapped .rebar file of a model name; fetched and converted on first use."""
    return open_found(find_named(name, offline=offline))


def open_found(source: Path) -> ModelFile:
    """The same of a file or folder."""
    from rebar.dataflow.models import open_source

    with progress() as shown:
        return open_source(source, places().cache, shown)


def load_named(
    name: str,
    flags: AnswerFlags,
    *,
    offline: bool = False,
    chat: bool = True,
    adapter: str | None = None,
) -> Model:
    """The model ready to answer in this process. chat False: it will only continue texts. adapter:
    a folder, or NAME=FOLDER as for serve; it is loaded under the name ADAPTER.
    """
    from rebar.service.local import open_local

    file = open_named(name, offline=offline)
    folders = {} if adapter is None else {ADAPTER: adapter.rpartition("=")[2]}
    options = flags.runner_options(places().isa)
    with progress() as shown:
        return open_local(file, options, name, folders, flags.guesses, shown, chat=chat)
