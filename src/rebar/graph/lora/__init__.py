"""Low-rank adapters (Hu et al., arXiv:2106.09685): what they are, PEFT's folders, the slots they
are served from, merging.
"""

from rebar.graph.lora.config import AdapterConfig
from rebar.graph.lora.folder import Adapter, LowRank, read_adapter, write_adapter
from rebar.graph.lora.slots import AdapterSlots, SlotLoad
from rebar.graph.lora.spec import LoraSpec, initial, lora_shapes

__all__ = [
    "Adapter",
    "AdapterConfig",
    "AdapterSlots",
    "LoraSpec",
    "LowRank",
    "SlotLoad",
    "initial",
    "lora_shapes",
    "read_adapter",
    "write_adapter",
]
