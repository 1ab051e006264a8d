"""How the CPU back end records launches over images: rules of the same `record` as those of the way
back.
"""

from __future__ import annotations

from rebar import _native
from rebar.hal import launches_image as li
from rebar.hal.arrays import Matrix
from rebar.hal.cpu_backward import record as record

Size = tuple[int, int, int, int, int, int, int, int, int]


def _matrix(w: Matrix) -> tuple[int, int, int, int]:
    return w.address, int(w.format), w.n, w.k


def _window(w: li.Window) -> Size:
    """rb_window of native/rebar_image.h."""
    kernel = w.kernel_height, w.kernel_width, w.stride, w.padding
    return w.height, w.width, w.channels, w.out_height, w.out_width, *kernel


@record.register
def _(op: li.Conv, program: _native.Program) -> None:
    program.conv(
        w=_matrix(op.w),
        window=_window(op.window),
        x=op.x.address,
        bias=op.bias.address if op.bias is not None else 0,
        y=op.y.address,
        x_stride=op.x.stride,
        y_stride=op.y.stride,
    )


@record.register
def _(op: li.ConvInputGradient, program: _native.Program) -> None:
    program.conv_input_gradient(
        w=_matrix(op.w),
        window=_window(op.window),
        dy=op.dy.address,
        dx=op.dx.address,
        dy_stride=op.dy.stride,
        dx_stride=op.dx.stride,
    )


@record.register
def _(op: li.ConvWeightGradient, program: _native.Program) -> None:
    program.conv_weight_gradient(
        dw=_matrix(op.dw),
        window=_window(op.window),
        x=op.x.address,
        dy=op.dy.address,
        x_stride=op.x.stride,
        dy_stride=op.dy.stride,
    )


@record.register
def _(op: li.ChannelSums, program: _native.Program) -> None:
    n = op.db.n
    program.channel_sums(
        dy=op.dy.address,
        db=op.db.address,
        dy_stride=op.dy.stride,
        positions=op.dy.width // n,
        n=n,
    )


@record.register
def _(op: li.Pool, program: _native.Program) -> None:
    program.pool(
        window=_window(op.window),
        x=op.x.address,
        y=op.y.address,
        x_stride=op.x.stride,
        y_stride=op.y.stride,
        kind=int(op.kind),
    )


@record.register
def _(op: li.PoolGradient, program: _native.Program) -> None:
    program.pool_gradient(
        window=_window(op.window),
        x=op.x.address if op.x is not None else 0,
        y=op.y.address if op.y is not None else 0,
        dy=op.dy.address,
        dx=op.dx.address,
        x_stride=op.x.stride if op.x is not None else 0,
        y_stride=op.y.stride if op.y is not None else 0,
        dy_stride=op.dy.stride,
        dx_stride=op.dx.stride,
        kind=int(op.kind),
    )


@record.register
def _(op: li.GroupNorm, program: _native.Program) -> None:
    program.group_norm(
        x=op.x.address,
        weight=op.weight.address,
        bias=op.bias.address,
        y=op.y.address,
        stats=op.stats.address,
        x_stride=op.x.stride,
        y_stride=op.y.stride,
        stats_stride=op.stats.stride,
        positions=op.x.width // op.weight.n,
        channels=op.weight.n,
        groups=op.groups,
        eps=op.eps,
    )


@record.register
def _(op: li.GroupNormGradient, program: _native.Program) -> None:
    program.group_norm_gradient(
        x=op.x.address,
        weight=op.weight.address,
        stats=op.stats.address,
        dy=op.dy.address,
        dx=op.dx.address,
        x_stride=op.x.stride,
        stats_stride=op.stats.stride,
        dy_stride=op.dy.stride,
        dx_stride=op.dx.stride,
        positions=op.x.width // op.weight.n,
        channels=op.weight.n,
        groups=op.groups,
    )


@record.register
def _(op: li.GroupNormWeightGradient, program: _native.Program) -> None:
    program.group_norm_weight_gradient(
        x=op.x.address,
        stats=op.stats.address,
        dy=op.dy.address,
        dweight=op.dweight.address,
        dbias=op.dbias.address,
        x_stride=op.x.stride,
        stats_stride=op.stats.stride,
        dy_stride=op.dy.stride,
        positions=op.x.width // op.dweight.n,
        channels=op.dweight.n,
        groups=op.groups,
    )


@record.register
def _(op: li.Relu, program: _native.Program) -> None:
    program.relu(
        x=op.x.address,
        y=op.y.address,
        x_stride=op.x.stride,
        y_stride=op.y.stride,
        n=op.y.width,
    )


@record.register
def _(op: li.ReluGradient, program: _native.Program) -> None:
    program.relu_gradient(
        y=op.y.address,
        dy=op.dy.address,
        dx=op.dx.address,
        y_stride=op.y.stride,
        dy_stride=op.dy.stride,
        dx_stride=op.dx.stride,
        n=op.y.width,
    )


@record.register
def _(op: li.Dropout, program: _native.Program) -> None:
    program.dropout(
        x=op.x.address,
        y=op.y.address,
        key=op.key.address,
        x_stride=op.x.stride,
        y_stride=op.y.stride,
        n=op.y.width,
        add=op.add,
        salt=op.salt,
        threshold=op.threshold,
        scale=op.scale,
    )
