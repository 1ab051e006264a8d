"""The decoder, read top to bottom. llama, qwen2 and gemma3 are three configurations of this one
description.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rebar.graph.builder import Builder
from rebar.graph.graph import Graph
from rebar.graph.models.adapted import Adapted, AdapterRoom
from rebar.graph.models.config import DecoderConfig, RopeConfig
from rebar.graph.tensor import Tensor
from rebar.hal import Activation

# Inputs a scale of int8 activations. The products of attention see outliers and need 16; the others
# bear 32, which costs 3 instructions of 14 less (ARCHITECTURE.md has what it does to perplexity).
GROUP: Literal[32] = 32
Part = tuple[Tensor, ...]  # a matrix in one or more stacked parts


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of layer `index`; None where the config's flags say there is none."""

    index: int
    attention_norm: Tensor
    qkv: Part
    qkv_bias: Part
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Part
    post_attention_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Part
    down: Part
    post_mlp_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Weights of a whole decoder. head: the embedding again when it is tied."""

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Part


@dataclass(frozen=True, slots=True)
class Decoder:
    """The graph and the tensors its user has to bind or read.

    From node `head_begin` on only rows that are wanted are computed; what those nodes read stays
    in place, so that they can run again for other rows of the same step. hidden: the states of
    these rows behind the final norm. Whoever wants no logits stops before node `logits_begin`:
    the head is the largest matrix. adapters: the tables that hold them, by layer and product.
    """

    graph: Graph
    hidden: Tensor
    logits: Tensor
    caches: tuple[Tensor, ...]
    ropes: dict[RopeConfig, Tensor]
    head_begin: str
    logits_begin: str
    adapters: dict[tuple[int, str], Tensor] = field(default_factory=dict)


def build_decoder(
    c: DecoderConfig,
    w: DecoderWeights,
    *,
    max_positions: int,
    blocks: int,
    room: AdapterRoom | None = None,
) -> Decoder:
    """The graph of a decoder over `blocks` KV blocks and contexts of up to max_positions. room: for
    adapters.
    """
    g, adapted = Builder(), Adapted(c, room)
    caches = tuple(
        Tensor(f"layers.{i}.cache", (blocks, c.kv_heads, c.head_dim), "kv") for i in range(c.layers)
    )
    ropes = {
        r: Tensor(f"rope.{r.theta:g}", (max_positions, r.dim))
        for r in map(c.rope_of, range(c.layers))
    }
    x = g.embed(w.embed, c.embedding_scale)
    for weights, cache in zip(w.layers, caches, strict=True):
        g.scope = f"layers.{weights.index}."
        rope = ropes[c.rope_of(weights.index)]
        a = attention(g, c, weights, adapted, x, cache, rope, max_positions)
        if weights is w.layers[-1]:
            # Nobody reads what the last layer makes of the other rows: a prompt needs one.
            kept, a, x = (a, x), g.select("selected", a), g.select("selected_residual", x)
            head_begin = a.name
        x = rest_of_layer(g, c, weights, adapted, x, a)
    g.scope = ""
    hidden = g.rms_norm("final_norm", x, w.final_norm, c.norm_eps)
    logits = g.linear("logits", hidden, w.head, group=GROUP)
    begins = head_begin, logits.name
    if c.logit_softcap:
        logits = g.softcap(logits, c.logit_softcap)
    graph = g.graph(logits, hidden, *kept)
    return Decoder(graph, hidden, logits, caches, ropes, *begins, adapted.tables)


def rest_of_layer(
    g: Builder, c: DecoderConfig, w: LayerWeights, adapted: Adapted, x: Tensor, a: Tensor
) -> Tensor:
    """What follows attention: its output and a gated MLP, each added to the residual stream x."""
    a = adapted(g, w.index, "out", a, g.linear("attention_out", a, w.out))
    if w.post_attention_norm is not None:
        a = g.rms_norm("post_attention_norm", a, w.post_attention_norm, c.norm_eps)
    x = g.add("after_attention", x, a)
    h = g.rms_norm("mlp_norm", x, w.mlp_norm, c.norm_eps)
    gate_up = adapted(g, w.index, "gate_up", h, g.linear("gate_up", h, w.gate_up, group=GROUP))
    m = g.gated(gate_up, Activation[c.activation.upper()])
    m = adapted(g, w.index, "down", m, g.linear("down", m, w.down, group=GROUP))
    if w.post_mlp_norm is not None:
        m = g.rms_norm("post_mlp_norm", m, w.post_mlp_norm, c.norm_eps)
    return g.add("after_mlp", x, m)


def attention(
    g: Builder,
    c: DecoderConfig,
    w: LayerWeights,
    adapted: Adapted,
    x: Tensor,
    cache: Tensor,
    rope: Tensor,
    max_positions: int,
) -> Tensor:
    """Grouped-query attention of the normalized x over the layer's cache."""
    h = g.rms_norm("attention_norm", x, w.attention_norm, c.norm_eps)
    qkv = adapted(g, w.index, "qkv", h, g.linear("qkv", h, w.qkv, w.qkv_bias))
    q_width, kv_width = c.heads * c.head_dim, c.kv_heads * c.head_dim
    q = qkv.columns(0, q_width)
    k = qkv.columns(q_width, q_width + kv_width)
    v = qkv.columns(q_width + kv_width, q_width + 2 * kv_width)
    if w.q_norm is not None and w.k_norm is not None:
        q = g.rms_norm("q_norm", q, w.q_norm, c.norm_eps, c.heads)
        k = g.rms_norm("k_norm", k, w.k_norm, c.norm_eps, c.kv_heads)
    q, k = g.rope("q_rope", q, rope, c.heads), g.rope("k_rope", k, rope, c.kv_heads)
    return g.attention(
        q,
        cache,
        g.append(k, v, cache),
        heads=c.heads,
        max_positions=max_positions,
        scale=c.attention_scale or c.head_dim**-0.5,
        window=c.window_of(w.index),
        softcap=c.attention_softcap,
    )
