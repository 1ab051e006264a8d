"""A model by its name, with progress on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rebar.cli.options import AnswerFlags
from rebar.cli.output import progress
from rebar.cli.settings import places

if TYPE_CHECKING:
    from rebar.graph.weights import ModelFile
    from rebar.service.local import Model


def open_named(name: str, *, offline: bool = False) -> ModelFile:
    """The mapped .rebar file of a model name; fetched and converted on first use."""
    from rebar.dataflow.models import open_converted

    where = places()
    with progress() as shown:
        return open_converted(name, where.cache, hub=where.hub, progress=shown, offline=offline)


def load_named(name: str, flags: AnswerFlags, *, offline: bool = False, chat: bool = True) -> Model:
    """The model ready to answer in this process. chat False: it will only continue texts."""
    from rebar.service.loading import load_model
    from rebar.service.local import Model

    file = open_named(name, offline=offline)
    options = flags.runner_options(places().isa)
    with progress() as shown:
        loaded = load_model(
            file, options, name=name, chat=chat, speculation=flags.guesses, progress=shown
        )
    return Model(loaded.served, loaded.engine)
