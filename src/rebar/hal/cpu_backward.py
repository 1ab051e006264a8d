"""How the CPU back end records the launches of the way back, of loss and optimizer."""

from __future__ import annotations

from functools import singledispatch

from rebar import _native
from rebar.errors import DeviceError
from rebar.hal import launches_backward as lb
from rebar.hal.cpu_operands import address, matrix, rows
from rebar.hal.launches import Launch


@singledispatch
def record(launch: Launch, program: _native.Program) -> None:
    """Appends the launch to the program with every address resolved."""
    raise DeviceError(f"the cpu back end has no kernel for {type(launch).__name__}")


@record.register
def _(op: lb.MatmulInputGradient, program: _native.Program) -> None:
    program.matmul_input_gradient(
        w=matrix(op.w), dy=rows(op.dy), dx=rows(op.dx), scale=op.scale, domain=int(op.domain)
    )


@record.register
def _(op: lb.MatmulWeightGradient, program: _native.Program) -> None:
    program.matmul_weight_gradient(
        dw=matrix(op.dw), x=rows(op.x), dy=rows(op.dy), scale=op.scale, domain=int(op.domain)
    )


@record.register
def _(op: lb.SumRows, program: _native.Program) -> None:
    program.sum_rows(dy=rows(op.dy), db=op.db.address, n=op.db.n, domain=int(op.domain))


@record.register
def _(op: lb.AddInto, program: _native.Program) -> None:
    program.add_into(
        x=rows(op.x), y=rows(op.y), n=op.y.width, scale=op.scale, domain=int(op.domain)
    )


@record.register
def _(op: lb.Zero, program: _native.Program) -> None:
    program.zero(y=rows(op.y), n=op.y.width, domain=int(op.domain))


@record.register
def _(op: lb.EmbedGradient, program: _native.Program) -> None:
    program.embed_gradient(dw=matrix(op.dw), dy=rows(op.dy), scale=op.scale)


@record.register
def _(op: lb.RmsNormGradient, program: _native.Program) -> None:
    program.rms_norm_gradient(
        x=rows(op.x),
        weight=op.weight.address,
        dy=rows(op.dy),
        dx=rows(op.dx),
        dweight=address(op.dweight),
        n=op.weight.n,
        groups=op.groups,
        eps=op.eps,
        domain=int(op.domain),
    )


@record.register
def _(op: lb.RopeGradient, program: _native.Program) -> None:
    program.rope_gradient(
        dy=rows(op.dy),
        dx=rows(op.dx),
        table=op.table.address,
        heads=op.heads,
        head_dim=op.head_dim,
        dim=op.table.width,
        table_rows=op.table.count,
    )


@record.register
def _(op: lb.AttentionGradient, program: _native.Program) -> None:
    _attention(op, program, merge=False)


@record.register
def _(op: lb.AttentionGradientMerge, program: _native.Program) -> None:
    _attention(op.gradient, program, merge=True)


def _attention(op: lb.AttentionGradient, program: _native.Program, *, merge: bool) -> None:
    program.attention_gradient(
        merge=merge,
        q=rows(op.q),
        cache=op.storage.address,
        out=rows(op.out),
        dout=rows(op.dout),
        dq=rows(op.dq),
        dk=rows(op.dk),
        dv=rows(op.dv),
        parts=address(op.parts),
        block_stride=op.storage.stride,
        kv_type=int(op.storage.format),
        heads=op.heads,
        kv_heads=op.storage.kv_heads,
        head_dim=op.storage.head_dim,
        window=op.window,
        max_positions=op.max_positions,
        blocks=op.storage.blocks,
        scale=op.scale,
        softcap=op.softcap,
    )


@record.register
def _(op: lb.GatedGradient, program: _native.Program) -> None:
    program.gated_gradient(
        x=rows(op.x),
        dy=rows(op.dy),
        dx=rows(op.dx),
        n=op.dy.width,
        act=int(op.activation),
        domain=int(op.domain),
    )


@record.register
def _(op: lb.SelectGradient, program: _native.Program) -> None:
    program.select_gradient(dy=rows(op.dy), dx=rows(op.dx), n=op.dx.width)


@record.register
def _(op: lb.SoftcapGradient, program: _native.Program) -> None:
    program.softcap_gradient(
        y=rows(op.y),
        dy=rows(op.dy),
        dx=rows(op.dx),
        n=op.y.width,
        cap=op.cap,
        domain=int(op.domain),
    )


@record.register
def _(op: lb.CrossEntropy, program: _native.Program) -> None:
    program.cross_entropy(
        logits=rows(op.logits),
        targets=op.targets.address,
        loss=rows(op.loss),
        n=op.logits.width,
        domain=int(op.domain),
    )


@record.register
def _(op: lb.CrossEntropyGradient, program: _native.Program) -> None:
    program.cross_entropy_gradient(
        logits=rows(op.logits),
        targets=op.targets.address,
        dloss=rows(op.dloss),
        dlogits=rows(op.dlogits),
        n=op.logits.width,
        domain=int(op.domain),
    )


@record.register
def _(op: lb.SquareSums, program: _native.Program) -> None:
    program.square_sums(x=op.x.address, sums=op.sums.address, n=op.x.n)


@record.register
def _(op: lb.AdamW, program: _native.Program) -> None:
    program.adamw(
        x=op.x.address,
        gradient=op.gradient.address,
        m=op.m.address,
        v=op.v.address,
        hyper=op.hyper.address,
        n=op.x.n,
    )


@record.register
def _(op: lb.Sgd, program: _native.Program) -> None:
    program.sgd(
        x=op.x.address,
        gradient=op.gradient.address,
        m=op.m.address,
        hyper=op.hyper.address,
        n=op.x.n,
    )
