"""Builder: writes a graph as one reads a formula. Each method applies the node's shape rule and
returns its output.
"""

from __future__ import annotations

from typing import Literal

from rebar.graph import nodes
from rebar.graph.graph import Graph
from rebar.graph.node import Node
from rebar.graph.nodes_numpy import NumPyNode
from rebar.graph.tensor import DType, Shape, Tensor
from rebar.hal import Activation


class Builder:
    """Collects nodes. `scope` is put before every name: layers.3.attention_norm."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.scope = ""
        self._quantized: dict[tuple[Tensor, int], Tensor] = {}

    def _name(self, what: str) -> str:
        return f"{self.scope}{what}"

    def _out(self, name: str, shape: Shape, dtype: DType = "f32") -> Tensor:
        return Tensor(self._name(name), shape, dtype)

    def embed(self, w: Tensor, scale: float) -> Tensor:
        """Rows of w named by the step's ids."""
        out = self._out("embedding", nodes.Embed.shape(w.shape))
        self.nodes.append(nodes.Embed(out.name, w, out, scale))
        return out

    def rms_norm(self, name: str, x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
        """Normalized x."""
        out = self._out(name, nodes.RmsNorm.shape(x.shape, weight.shape, groups))
        self.nodes.append(nodes.RmsNorm(out.name, x, weight, out, eps, groups))
        return out

    def quantize(self, x: Tensor, group: Literal[16, 32] = 16) -> Tensor:
        """int8 of x, a scale per `group` inputs; asked twice, made once."""
        if (x, group) not in self._quantized:
            dtype: DType = "q8_16" if group == 16 else "q8_32"
            out = Tensor(f"{x.name}.{dtype}", nodes.Quantize.shape(x.shape), dtype)
            self.nodes.append(nodes.Quantize(out.name, x, out))
            self._quantized[x, group] = out
        return self._quantized[x, group]

    def linear(
        self,
        name: str,
        x: Tensor,
        w: tuple[Tensor, ...],
        bias: tuple[Tensor, ...] = (),
        group: Literal[16, 32] = 16,
    ) -> Tensor:
        """x times the stacked parts of w, quantizing x per `group` where a part wants it."""
        block = [part.format.quantized_input for part in w]
        shape = nodes.Linear.shape(
            x.shape, *(part.shape for part in w), bias=tuple(b.shape for b in bias)
        )
        out = self._out(name, shape)
        x_float = x if not all(block) else None
        x_int = self.quantize(x, group) if any(block) else None
        self.nodes.append(nodes.Linear(out.name, w, out, x_float, x_int, bias))
        return out

    def adapted(self, name: str, x: Tensor, product: Tensor, adapters: Tensor) -> Tensor:
        """The product of x, and what the row's adapter adds to it."""
        a = self._out(f"{name}_lora_down", nodes.LoraDown.shape(x.shape, adapters.shape))
        out = self._out(
            f"{name}_lora_up", nodes.LoraUp.shape(a.shape, adapters.shape, product.shape)
        )
        self.nodes.append(nodes.LoraDown(a.name, x, adapters, a))
        self.nodes.append(nodes.LoraUp(out.name, a, adapters, product, out))
        return out

    def rope(self, name: str, x: Tensor, table: Tensor, heads: int) -> Tensor:
        """x rotated by position."""
        out = self._out(name, nodes.Rope.shape(x.shape, table.shape, heads))
        self.nodes.append(nodes.Rope(out.name, x, table, out, heads))
        return out

    def append(self, k: Tensor, v: Tensor, cache: Tensor) -> Tensor:
        """Stores k and v; what attention waits for."""
        out = self._out("append", nodes.Append.shape(k.shape, v.shape, cache.shape), "order")
        self.nodes.append(nodes.Append(out.name, k, v, cache, out))
        return out

    def attention(
        self,
        q: Tensor,
        cache: Tensor,
        after: Tensor,
        *,
        heads: int,
        max_positions: int,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Attention of q over the cache."""
        out = self._out("attention", nodes.Attention.shape(q.shape, cache.shape, heads))
        room = nodes.Attention.work_shape(cache.shape, heads, window or 0, max_positions)
        work = Tensor(f"{out.name}.work", room) if room is not None else None
        own = nodes.Attention.parts_shape(cache.shape, max_positions)
        parts = Tensor(f"{out.name}.parts", own) if own is not None else None
        self.nodes.append(
            nodes.Attention(
                out.name,
                q,
                cache,
                after,
                out,
                heads,
                max_positions,
                scale,
                window or 0,
                softcap or 0.0,
                work=work,
                parts=parts,
            )
        )
        return out

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        """activation(first half) times second half."""
        out = self._out("gated", nodes.Gated.shape(x.shape))
        self.nodes.append(nodes.Gated(out.name, x, out, activation))
        return out

    def add(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """a + b."""
        out = self._out(name, nodes.Add.shape(a.shape, b.shape))
        self.nodes.append(nodes.Add(out.name, a, b, out))
        return out

    def select(self, name: str, x: Tensor) -> Tensor:
        """The rows whose logits are needed."""
        out = self._out(name, nodes.Select.shape(x.shape))
        self.nodes.append(nodes.Select(out.name, x, out))
        return out

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """x bounded to (-cap, cap)."""
        out = self._out("softcap", nodes.Softcap.shape(x.shape))
        self.nodes.append(nodes.Softcap(out.name, x, out, cap))
        return out

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each row."""
        out = self._out("loss", nodes.CrossEntropy.shape(logits.shape))
        self.nodes.append(nodes.CrossEntropy(out.name, logits, targets, out))
        return out

    def numpy(self, kind: type[NumPyNode], name: str, *reads: Tensor, **fields: object) -> Tensor:
        """What a node written in NumPy makes of tensors. fields: those of its class."""
        out = self._out(name, kind.shape(*(t.shape for t in reads)))
        self.nodes.append(kind(out.name, reads, out, **fields))
        return out

    def graph(self, *outputs: Tensor) -> Graph:
        """The graph of all that the outputs need."""
        return Graph(self.nodes, outputs)
