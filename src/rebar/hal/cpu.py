"""The CPU back end: native kernels, chosen by instruction set, on a thread pool of its own."""

from __future__ import annotations

from functools import singledispatchmethod

from rebar import _native
from rebar.errors import DeviceError
from rebar.hal import launches as la
from rebar.hal.arrays import Matrix, QuantizedRows, Rows, Vector
from rebar.hal.backend import Limits, Program, Step, check

ISAS = ("scalar", "avx2", "avx512", "neon")  # rb_isa of native/rebar.h


def isa_number(name: str | None) -> int:
    """rb_isa of an instruction set's name, the best one for None; DeviceError when this machine lacks it."""
    available = _native.isas()
    chosen = name or _native.best_isa()
    if chosen not in available:
        raise DeviceError(f"instruction set {chosen!r} is not available here; there are {', '.join(available)} (REBAR_ISA).")
    return ISAS.index(chosen)


class CpuBackend:
    """threads: how many cores share a launch. isa: None for the best. Bits depend on neither."""

    name = "cpu"

    def __init__(self, threads: int, isa: str | None = None) -> None:
        if not 1 <= threads <= 256:
            raise DeviceError(f"a thread pool has 1 to 256 threads, not {threads}. Give --threads a number in between.")
        self.isa = isa_number(isa)
        self.threads = threads
        self._pool = _native.Pool(threads)

    def describe(self) -> str:
        """One line about this device."""
        return f"cpu, {ISAS[self.isa]}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def program(self, limits: Limits) -> Program:
        """An empty program on this pool."""
        return CpuProgram(self._pool, self.isa, limits)


def _address(operand: Rows | QuantizedRows | Vector | None) -> int:
    return 0 if operand is None else operand.address


def _matrix(w: Matrix) -> tuple[int, int, int, int]:
    return w.address, int(w.format), w.n, w.k


class CpuProgram:
    """Launches with every address resolved. Keeps the operands alive; run() is one native call."""

    def __init__(self, pool: _native.Pool, isa: int, limits: Limits) -> None:
        self.limits = limits
        self._launches: list[la.Launch] = []
        self._native = _native.Program(
            pool,
            isa,
            rows=limits.rows,
            logit_rows=limits.logit_rows,
            sequences=limits.sequences,
            vocab=limits.vocab,
            positions=limits.positions,
            blocks=limits.blocks,
        )

    def add(self, launch: la.Launch) -> None:
        """Checks and appends a launch."""
        check(launch, self.limits)
        self._record(launch)
        self._launches.append(launch)

    def __len__(self) -> int:
        return len(self._launches)

    def name(self, index: int) -> str:
        """Kernel name of a launch."""
        return self._native.name(index)

    def run(self, step: Step, begin: int = 0, end: int | None = None) -> None:
        """One native call for all launches."""
        self._native.run(step, begin, len(self._launches) if end is None else end)

    def run_timed(self, step: Step) -> list[int]:
        """All launches, nanoseconds of each."""
        return self._native.run_timed(step, 0, len(self._launches))

    @singledispatchmethod
    def _record(self, launch: la.Launch) -> None:
        raise DeviceError(f"the cpu back end has no kernel for {type(launch).__name__}")

    @_record.register
    def _(self, l: la.Embed) -> None:
        self._native.embed(w=_matrix(l.w), out=l.out.address, out_stride=l.out.stride, scale=l.scale)

    @_record.register
    def _(self, l: la.RmsNorm) -> None:
        self._native.rms_norm(
            x=l.x.address,
            weight=l.weight.address,
            y=l.y.address,
            yq=_address(l.quantized),
            x_stride=l.x.stride,
            y_stride=l.y.stride,
            n=l.weight.n,
            groups=l.groups,
            eps=l.eps,
            domain=int(l.domain),
        )

    @_record.register
    def _(self, l: la.Quantize) -> None:
        self._native.quantize(x=l.x.address, xq=l.xq.address, x_stride=l.x.stride, k=l.x.width, domain=int(l.domain))

    @_record.register
    def _(self, l: la.Matmul) -> None:
        quantized = isinstance(l.x, QuantizedRows)
        self._native.matmul(
            w=_matrix(l.w),
            x=0 if quantized else l.x.address,
            xq=l.x.address if quantized else 0,
            bias=_address(l.bias),
            residual=_address(l.residual),
            y=l.y.address,
            x_stride=l.x.stride if isinstance(l.x, Rows) else 0,
            y_stride=l.y.stride,
            residual_stride=l.residual.stride if l.residual is not None else 0,
            domain=int(l.domain),
        )

    @_record.register
    def _(self, l: la.Rope) -> None:
        self._native.rope(
            x=l.x.address,
            y=l.y.address,
            table=l.table.address,
            x_stride=l.x.stride,
            y_stride=l.y.stride,
            heads=l.heads,
            head_dim=l.head_dim,
            dim=l.table.width,
            table_rows=l.table.count,
        )

    @_record.register
    def _(self, l: la.Append) -> None:
        self._native.append(
            k=l.k.address,
            v=l.v.address,
            keys=l.storage.keys.ctypes.data,
            values=l.storage.values.ctypes.data,
            k_stride=l.k.stride,
            v_stride=l.v.stride,
            kv_heads=l.storage.kv_heads,
            head_dim=l.storage.head_dim,
            blocks=l.storage.blocks,
        )

    @_record.register
    def _(self, l: la.Attention) -> None:
        self._native.attention(
            q=l.q.address,
            keys=l.storage.keys.ctypes.data,
            values=l.storage.values.ctypes.data,
            out=l.out.address,
            outq=_address(l.quantized),
            q_stride=l.q.stride,
            out_stride=l.out.stride,
            heads=l.heads,
            kv_heads=l.storage.kv_heads,
            head_dim=l.storage.head_dim,
            window=l.window,
            max_positions=l.max_positions,
            blocks=l.storage.blocks,
            scale=l.scale,
            softcap=l.softcap,
        )

    @_record.register
    def _(self, l: la.Gated) -> None:
        self._native.gated(
            x=l.x.address,
            y=l.y.address,
            yq=_address(l.quantized),
            x_stride=l.x.stride,
            y_stride=l.y.stride,
            n=l.y.width,
            act=int(l.activation),
            domain=int(l.domain),
        )

    @_record.register
    def _(self, l: la.Add) -> None:
        self._native.add(
            a=l.a.address,
            b=l.b.address,
            y=l.y.address,
            a_stride=l.a.stride,
            b_stride=l.b.stride,
            y_stride=l.y.stride,
            n=l.y.width,
            domain=int(l.domain),
        )

    @_record.register
    def _(self, l: la.Select) -> None:
        self._native.select(x=l.x.address, y=l.y.address, x_stride=l.x.stride, y_stride=l.y.stride, n=l.y.width)

    @_record.register
    def _(self, l: la.Softcap) -> None:
        self._native.softcap(
            x=l.x.address,
            y=l.y.address,
            x_stride=l.x.stride,
            y_stride=l.y.stride,
            n=l.y.width,
            domain=int(l.domain),
            cap=l.cap,
        )
