"""A model as it stands in a file, whatever the file's format: description, tensors, tokenizer
tables.

Canonical tensor names ({i} from 0): embed.weight, layers.{i}.attention_norm.weight,
layers.{i}.{q,k,v}.weight and .bias, layers.{i}.{q_norm,k_norm}.weight, layers.{i}.out.weight,
layers.{i}.post_attention_norm.weight, layers.{i}.mlp_norm.weight,
layers.{i}.{gate,up,down}.weight, layers.{i}.post_mlp_norm.weight, final_norm.weight, head.weight
(absent when tied). Rows of q and k stand in the (i, i + dim/2) rope order; norm weights are the
factor itself (gemma's "+ 1" is applied).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rebar.graph.models.config import DecoderConfig

# Told (what, done, in all or 0 when unknown) a few times a second while something takes long.
Progress = Callable[[str, int, int], None]

WeightType = Literal[
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"
]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor. Matrices are (n outputs, k inputs), vectors (n,).

    data: read-only uint8 view into the mapped file. packed: already in the tiles of
    native/rebar.h. rows: output row i is stored row rows[i] (rope order of GGUF's llama family);
    only for unpacked matrices.
    """

    name: str
    shape: tuple[int, ...]
    type: WeightType
    data: NDArray[np.uint8]
    packed: bool = False
    rows: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """What a model file says of its tokenizer; how it is used is dataflow's business.

    kind "bpe": GPT-2 byte-level BPE, tokens in the printable-byte alphabet, `pre` names the
    pre-tokenizer. kind "spm": SentencePiece-style BPE with scores and byte fallback. types: GGUF's
    numbers (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte). eos_id: what
    templates call eos_token. end_ids: every id that ends generation.
    """

    kind: Literal["bpe", "spm"]
    pre: str
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    end_ids: tuple[int, ...] = ()
    unknown_id: int | None = None
    pad_id: int | None = None
    add_bos: bool = False
    add_space_prefix: bool = False


@dataclass(frozen=True, slots=True)
class ModelFile:
    """An opened model. `vocabulary`: the ready tokenizer tables of a .rebar file, else None and
    `tokenizer` is given.
    """

    path: Path
    format: Literal["gguf", "safetensors", "rebar"]
    config: DecoderConfig
    tensors: Mapping[str, StoredTensor]
    tokenizer: TokenizerData | None = None
    vocabulary: memoryview | None = None
    chat_template: str | None = None
    name: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)
