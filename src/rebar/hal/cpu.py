"""The CPU back end: native kernels, chosen by instruction set, on a thread pool of its own."""

from __future__ import annotations

from functools import singledispatchmethod
from itertools import accumulate

from rebar import _native
from rebar.errors import DeviceError
from rebar.hal import launches as la
from rebar.hal import launches_lora
from rebar.hal.arrays import QuantizedRows, Rows
from rebar.hal.backend import Limits, Program, Step, check
from rebar.hal.cpu_image import record
from rebar.hal.cpu_operands import address, matrix

ISAS = ("scalar", "avx2", "avx512", "neon")  # rb_isa of native/rebar.h


def isa_number(name: str | None) -> int:
    """rb_isa of an instruction set's name, the best one for None; DeviceError when this machine
    lacks it.
    """
    available = _native.isas()
    chosen = name or _native.best_isa()
    if chosen not in available:
        raise DeviceError(
            f"instruction set {chosen!r} is not available here; there are "
            f"{', '.join(available)} (REBAR_ISA)."
        )
    return ISAS.index(chosen)


class CpuBackend:
    """threads: how many cores share a launch. isa: None for the best. Bits depend on neither."""

    name = "cpu"

    def __init__(self, threads: int, isa: str | None = None) -> None:
        if not 1 <= threads <= 256:
            raise DeviceError(
                f"a thread pool has 1 to 256 threads, not {threads}. Give --threads a "
                "number in between."
            )
        self.isa = isa_number(isa)
        self.threads = threads
        self.pool = _native.Pool(threads)

    def describe(self) -> str:
        """One line about this device."""
        return f"cpu, {ISAS[self.isa]}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def program(self, limits: Limits) -> Program:
        """An empty program on this pool."""
        return CpuProgram(self.pool, self.isa, limits)


def _group(rows: QuantizedRows | None) -> int:
    """Inputs a scale; 0 where nothing is quantized."""
    return 0 if rows is None else rows.group


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
            adapters=limits.adapters,
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
        record(launch, self._native)

    @_record.register
    def _(self, op: la.Embed) -> None:
        self._native.embed(
            w=matrix(op.w), out=op.out.address, out_stride=op.out.stride, scale=op.scale
        )

    @_record.register
    def _(self, op: la.RmsNorm) -> None:
        self._native.rms_norm(
            x=op.x.address,
            weight=op.weight.address,
            y=op.y.address,
            yq=address(op.quantized),
            x_stride=op.x.stride,
            y_stride=op.y.stride,
            n=op.weight.n,
            groups=op.groups,
            eps=op.eps,
            domain=int(op.domain),
            group=_group(op.quantized),
        )

    @_record.register
    def _(self, op: la.Quantize) -> None:
        self._native.quantize(
            x=op.x.address,
            xq=op.xq.address,
            x_stride=op.x.stride,
            k=op.x.width,
            domain=int(op.domain),
            group=op.xq.group,
        )

    @_record.register
    def _(self, op: la.Matmul) -> None:
        quantized = isinstance(op.x, QuantizedRows)
        self._native.matmul(
            w=matrix(op.w),
            x=0 if quantized else op.x.address,
            xq=op.x.address if quantized else 0,
            bias=address(op.bias),
            residual=address(op.residual),
            y=op.y.address,
            x_stride=op.x.stride if isinstance(op.x, Rows) else 0,
            y_stride=op.y.stride,
            residual_stride=op.residual.stride if op.residual is not None else 0,
            domain=int(op.domain),
            group=_group(op.x if isinstance(op.x, QuantizedRows) else None),
        )

    @_record.register
    def _(self, op: la.Rope) -> None:
        self._native.rope(
            x=op.x.address,
            y=op.y.address,
            table=op.table.address,
            x_stride=op.x.stride,
            y_stride=op.y.stride,
            heads=op.heads,
            head_dim=op.head_dim,
            dim=op.table.width,
            table_rows=op.table.count,
        )

    @_record.register
    def _(self, op: la.Append) -> None:
        self._native.append(
            k=op.k.address,
            v=op.v.address,
            cache=op.storage.address,
            block_stride=op.storage.stride,
            kv_type=int(op.storage.format),
            k_stride=op.k.stride,
            v_stride=op.v.stride,
            kv_heads=op.storage.kv_heads,
            head_dim=op.storage.head_dim,
            blocks=op.storage.blocks,
        )

    @_record.register
    def _(self, op: la.RopeAppend) -> None:
        self._native.rope_append(
            q=op.q.address,
            out=op.out.address,
            table=op.table.address,
            k=op.k.address,
            v=op.v.address,
            cache=op.storage.address,
            q_stride=op.q.stride,
            out_stride=op.out.stride,
            heads=op.heads,
            dim=op.table.width,
            table_rows=op.table.count,
            block_stride=op.storage.stride,
            kv_type=int(op.storage.format),
            k_stride=op.k.stride,
            v_stride=op.v.stride,
            kv_heads=op.storage.kv_heads,
            head_dim=op.storage.head_dim,
            blocks=op.storage.blocks,
        )

    @_record.register
    def _(self, op: la.Attention) -> None:
        self._attention(op, merge=False)

    @_record.register
    def _(self, op: la.AttentionMerge) -> None:
        self._attention(op.attention, merge=True)

    def _attention(self, op: la.Attention, *, merge: bool) -> None:
        self._native.attention(
            merge=merge,
            q=op.q.address,
            cache=op.storage.address,
            out=op.out.address,
            outq=address(op.quantized),
            work=address(op.work),
            block_stride=op.storage.stride,
            kv_type=int(op.storage.format),
            q_stride=op.q.stride,
            out_stride=op.out.stride,
            heads=op.heads,
            kv_heads=op.storage.kv_heads,
            head_dim=op.storage.head_dim,
            window=op.window,
            max_positions=op.max_positions,
            blocks=op.storage.blocks,
            scale=op.scale,
            softcap=op.softcap,
            group=_group(op.quantized),
        )

    @_record.register
    def _(self, op: la.Gated) -> None:
        self._native.gated(
            x=op.x.address,
            y=op.y.address,
            yq=address(op.quantized),
            x_stride=op.x.stride,
            y_stride=op.y.stride,
            n=op.y.width,
            act=int(op.activation),
            domain=int(op.domain),
            group=_group(op.quantized),
        )

    @_record.register
    def _(self, op: la.Add) -> None:
        self._native.add(
            a=op.a.address,
            b=op.b.address,
            y=op.y.address,
            a_stride=op.a.stride,
            b_stride=op.b.stride,
            y_stride=op.y.stride,
            n=op.y.width,
            domain=int(op.domain),
        )

    @_record.register
    def _(self, op: la.Select) -> None:
        self._native.select(
            x=op.x.address, y=op.y.address, x_stride=op.x.stride, y_stride=op.y.stride, n=op.y.width
        )

    @_record.register
    def _(self, op: la.Softcap) -> None:
        self._native.softcap(
            x=op.x.address,
            y=op.y.address,
            x_stride=op.x.stride,
            y_stride=op.y.stride,
            n=op.y.width,
            domain=int(op.domain),
            cap=op.cap,
        )

    @_record.register
    def _(self, op: launches_lora.LoraDown) -> None:
        adapters = op.adapters
        self._native.lora_down(
            slots=adapters.address,
            x=op.x.address,
            a=op.a.address,
            x_stride=op.x.stride,
            a_stride=op.a.stride,
            k=adapters.k,
            parts=len(adapters.widths),
            rank=adapters.rank,
            domain=int(op.domain),
        )

    @_record.register
    def _(self, op: launches_lora.LoraUp) -> None:
        self._native.lora_up(
            slots=op.adapters.address,
            a=op.a.address,
            x=op.x.address,
            residual=address(op.residual),
            y=op.y.address,
            a_stride=op.a.stride,
            x_stride=op.x.stride,
            residual_stride=op.residual.stride if op.residual is not None else 0,
            y_stride=op.y.stride,
            rank=op.adapters.rank,
            domain=int(op.domain),
            ends=list(accumulate(op.adapters.widths)),
        )
