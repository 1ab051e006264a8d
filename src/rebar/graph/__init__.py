"""Layer 1: tensors, nodes, graphs, models, weights, the KV cache, sampling. Knows token ids; no
text, no requests.
"""

from rebar.graph.builder import Builder
from rebar.graph.fuse import fuse
from rebar.graph.graph import CompiledGraph, Graph, Observer
from rebar.graph.kv import PagedKVCache
from rebar.graph.loader import load_runner
from rebar.graph.memory_plan import MemoryEntry, MemoryPlan, RunnerOptions, plan_memory
from rebar.graph.models.config import DecoderConfig, RopeConfig
from rebar.graph.models.decoder import Decoder, build_decoder
from rebar.graph.node import Cost, Node, Values
from rebar.graph.runner import Runner
from rebar.graph.sampling import Sampler, Wanted
from rebar.graph.sequence import Row, Sampled, SamplingParams, Sequence
from rebar.graph.tensor import Tensor
from rebar.graph.weights.model_file import ModelFile, StoredTensor, TokenizerData

__all__ = [
    "Builder",
    "CompiledGraph",
    "Cost",
    "Decoder",
    "DecoderConfig",
    "Graph",
    "MemoryEntry",
    "MemoryPlan",
    "ModelFile",
    "Node",
    "Observer",
    "PagedKVCache",
    "RopeConfig",
    "Row",
    "Runner",
    "RunnerOptions",
    "Sampled",
    "Sampler",
    "SamplingParams",
    "Sequence",
    "StoredTensor",
    "Tensor",
    "TokenizerData",
    "Values",
    "Wanted",
    "build_decoder",
    "fuse",
    "load_runner",
    "plan_memory",
]
