"""Models that come from no file: one to be trained from nothing, and one that was trained."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rebar.graph.models.config import DecoderConfig
from rebar.graph.named_random import random_of
from rebar.graph.parameters import Parameters, shape_of
from rebar.graph.weights.hf_names import namer
from rebar.graph.weights.layout import frozen, tensor_shapes
from rebar.graph.weights.model_file import ModelFile, StoredTensor
from rebar.hal import Matrix

F32 = NDArray[np.float32]
SPREAD = 0.02  # standard deviation of a matrix (Radford et al., 2019, GPT-2)


def fresh_model(config: DecoderConfig, vocabulary: bytes, *, seed: int, name: str) -> ModelFile:
    """A decoder with first values: norms 1, biases 0, matrices normal with a deviation of 0.02,
    those that write to the residual stream 1 / sqrt(2 layers) of it. The numbers are a function of
    seed and tensor name. vocabulary: the tokenizer's ready tables.
    """
    tensors = {
        tensor: stored(tensor, first_values(config, tensor, shape, seed))
        for tensor, shape in tensor_shapes(config)
    }
    tables = memoryview(vocabulary)
    return ModelFile(Path(name), "rebar", config, tensors, vocabulary=tables, name=name)


def first_values(config: DecoderConfig, name: str, shape: tuple[int, ...], seed: int) -> F32:
    """Where one tensor begins."""
    if len(shape) == 1:
        return np.full(shape, 0.0 if name.endswith(".bias") else 1.0, np.float32)
    random = np.random.Generator(random_of(seed, name))
    adds = name.endswith((".out.weight", ".down.weight"))
    spread = SPREAD / math.sqrt(2 * config.layers) if adds else SPREAD
    return np.float32(spread) * random.standard_normal(shape, dtype=np.float32)


def trained_model(model: ModelFile, parameters: Parameters) -> ModelFile:
    """`model` with the values of its trained tensors, in float32, over the memory they live in."""
    name_of = namer(model.config)
    changed: dict[str, StoredTensor] = {}
    for name in model.tensors:
        if name_of(name) in parameters:
            value = parameters[name_of(name)].value
            packed = isinstance(value, Matrix)
            raw = value.data.view(np.uint8)
            changed[name] = StoredTensor(name, shape_of(value), "F32", raw, packed=packed)
    return replace(model, tensors={**model.tensors, **changed})


def stored(name: str, values: F32) -> StoredTensor:
    """Values as a file would hold them."""
    raw = np.ascontiguousarray(values, dtype="<f4").reshape(-1).view(np.uint8)
    return StoredTensor(name, values.shape, "F32", frozen(raw))
