"""Adapters of a model in this process: read, checked, and ordered from its engine, by name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rebar.dataflow.adapters import foreign_text
from rebar.errors import InputError
from rebar.graph import ModelFile, RunnerOptions
from rebar.graph.lora import Adapter, read_adapter
from rebar.graph.weights.provenance import merged_digests, weights_digest
from rebar.service.messages import AdapterOrder, Orders
from rebar.service.model import ServedAdapter

log = logging.getLogger("rebar.adapters")


class LocalAdapters:
    """folders: of one or more adapters, by the names that callers use. ModelFileError for what is
    wrong with one, InputError for one that is in the model's weights already.
    """

    def __init__(self, file: ModelFile, folders: Mapping[str, str | Path]) -> None:
        self._read: dict[str, Adapter] = {
            name: read_adapter(Path(folder), file.config) for name, folder in folders.items()
        }
        for name, adapter in self._read.items():
            if adapter.is_foreign(weights_digest(file)):
                log.warning("%s", foreign_text(name))
            if adapter.digest in merged_digests(file):
                raise InputError(
                    f"Adapter {name} is in this model's weights already, and would count twice. "
                    "Use the model as it is.",
                    param="adapters",
                    code="merged_twice",
                )

    @property
    def served(self) -> dict[str, ServedAdapter]:
        """As callers see them."""
        return {
            name: ServedAdapter(name, adapter.digest, str(adapter.path), 0)
            for name, adapter in self._read.items()
        }

    @property
    def orders(self) -> Orders:
        """What the engine is to load."""
        by_digest = {adapter.digest: adapter for adapter in self._read.values()}
        return Orders(adapters=[AdapterOrder(d, str(a.path)) for d, a in by_digest.items()])

    def with_room(self, options: RunnerOptions) -> RunnerOptions:
        """Options with just the room that they take."""
        rank = max(adapter.rank for adapter in self._read.values())
        return replace(options, max_adapters=len(self._read), max_rank=rank)
