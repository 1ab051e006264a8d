"""An adapter that learns: its matrices as parameters, behind the tables that serving reads, so that
what is trained is what is served, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping

from rebar.graph.lora.modules import module_of
from rebar.graph.lora.spec import LoraSpec, initial, lora_shapes, matrix_names
from rebar.graph.models.adapted import PRODUCTS, AdapterRoom
from rebar.graph.models.config import DecoderConfig
from rebar.graph.nodes_lora import TRAINED
from rebar.graph.parameters import Parameters, ParameterShape, fill, matrix
from rebar.hal import LoraPair, LoraTable


def trained_room(config: DecoderConfig, spec: LoraSpec) -> AdapterRoom:
    """Room for the one adapter that is trained."""
    parts = frozenset(place.part for place in spec.places(config).values())
    return AdapterRoom(1, spec.r, parts)


def trained_shapes(config: DecoderConfig, spec: LoraSpec) -> list[ParameterShape]:
    """All matrices of the adapter."""
    return [ParameterShape(name, shape, decay=True) for name, shape in lora_shapes(config, spec)]


def begin(parameters: Parameters, config: DecoderConfig, spec: LoraSpec, seed: int) -> None:
    """Gives the parameters the values that an adapter begins with."""
    for name, shape in lora_shapes(config, spec):
        fill(parameters[name].value, initial(name, shape, seed))


def bind_trained(
    tables: Mapping[tuple[int, str], LoraTable], parameters: Parameters, scale: float
) -> dict[tuple[int, str], LoraTable]:
    """Puts the parameters into the tables, by layer and product; tables of their gradients."""
    gradients = {}
    for (layer, product), table in tables.items():
        learns = LoraTable(1, table.k, table.widths, table.rank)
        for i, part in enumerate(PRODUCTS[product]):
            names = matrix_names(module_of(layer, part))
            if names[0] in parameters:
                a, b = (parameters[name] for name in names)
                table.put(TRAINED, i, LoraPair(matrix(a.value), matrix(b.value), scale))
                learns.put(TRAINED, i, LoraPair(matrix(a.gradient), matrix(b.gradient), scale))
        gradients[layer, product] = learns
    return gradients
