"""How the CPU back end records launches over images: rules of the same `record` as those of the way
back.
"""

from __future__ import annotations

from rebar import _native
from rebar.hal import launches_image as li
from rebar.hal.cpu_backward import record as record
from rebar.hal.cpu_operands import address, matrix, rows


def _window(w: li.Window) -> tuple[int, int, int, int, int, int, int, int, int]:
    """rb_window of native/rebar_image.h."""
    kernel = w.kernel_height, w.kernel_width, w.stride, w.padding
    return w.height, w.width, w.channels, w.out_height, w.out_width, *kernel


@record.register
def _(op: li.Conv, program: _native.Program) -> None:
    program.conv(
        w=matrix(op.w),
        window=_window(op.window),
        x=rows(op.x),
        bias=address(op.bias),
        y=rows(op.y),
    )


@record.register
def _(op: li.ConvInputGradient, program: _native.Program) -> None:
    program.conv_input_gradient(
        w=matrix(op.w),
        window=_window(op.window),
        dy=rows(op.dy),
        dx=rows(op.dx),
    )


@record.register
def _(op: li.ConvWeightGradient, program: _native.Program) -> None:
    program.conv_weight_gradient(
        dw=matrix(op.dw),
        window=_window(op.window),
        x=rows(op.x),
        dy=rows(op.dy),
    )


@record.register
def _(op: li.ChannelSums, program: _native.Program) -> None:
    n = op.db.n
    program.channel_sums(
        dy=rows(op.dy),
        db=op.db.address,
        positions=op.dy.width // n,
        n=n,
    )


@record.register
def _(op: li.Pool, program: _native.Program) -> None:
    program.pool(
        window=_window(op.window),
        x=rows(op.x),
        y=rows(op.y),
        kind=int(op.kind),
    )


@record.register
def _(op: li.PoolGradient, program: _native.Program) -> None:
    program.pool_gradient(
        window=_window(op.window),
        x=rows(op.x),
        y=rows(op.y),
        dy=rows(op.dy),
        dx=rows(op.dx),
        kind=int(op.kind),
    )


@record.register
def _(op: li.GroupNorm, program: _native.Program) -> None:
    program.group_norm(
        x=rows(op.x),
        weight=op.weight.address,
        bias=op.bias.address,
        y=rows(op.y),
        stats=rows(op.stats),
        positions=op.x.width // op.weight.n,
        channels=op.weight.n,
        groups=op.groups,
        eps=op.eps,
    )


@record.register
def _(op: li.GroupNormGradient, program: _native.Program) -> None:
    program.group_norm_gradient(
        x=rows(op.x),
        weight=op.weight.address,
        stats=rows(op.stats),
        dy=rows(op.dy),
        dx=rows(op.dx),
        positions=op.x.width // op.weight.n,
        channels=op.weight.n,
        groups=op.groups,
    )


@record.register
def _(op: li.GroupNormWeightGradient, program: _native.Program) -> None:
    program.group_norm_weight_gradient(
        x=rows(op.x),
        stats=rows(op.stats),
        dy=rows(op.dy),
        dweight=op.dweight.address,
        dbias=op.dbias.address,
        positions=op.x.width // op.dweight.n,
        channels=op.dweight.n,
        groups=op.groups,
    )


@record.register
def _(op: li.Relu, program: _native.Program) -> None:
    program.relu(
        x=rows(op.x),
        y=rows(op.y),
        n=op.y.width,
    )


@record.register
def _(op: li.ReluGradient, program: _native.Program) -> None:
    program.relu_gradient(
        y=rows(op.y),
        dy=rows(op.dy),
        dx=rows(op.dx),
        n=op.y.width,
    )


@record.register
def _(op: li.Dropout, program: _native.Program) -> None:
    program.dropout(
        x=rows(op.x),
        y=rows(op.y),
        key=op.key.address,
        n=op.y.width,
        add=op.add,
        salt=op.salt,
        threshold=op.threshold,
        scale=op.scale,
    )
