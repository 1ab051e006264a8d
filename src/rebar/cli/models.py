"""A model by its name, with progress on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rebar.cli.output import progress
from rebar.cli.settings import places

if TYPE_CHECKING:
    from rebar.graph.weights import ModelFile


def open_named(name: str, *, offline: bool = False) -> ModelFile:
    """The mapped .rebar file of a model name; fetched and converted on first use."""
    from rebar.dataflow.models import open_converted

    where = places()
    with progress() as shown:
        return open_converted(name, where.cache, hub=where.hub, progress=shown, offline=offline)
