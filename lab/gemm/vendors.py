"""The libraries that the ladder is measured beside: OpenBLAS through NumPy, Intel MKL and oneDNN.

MKL and oneDNN are looked for where their wheels put them (`pip install mkl onednn`); one that is
not there has no line in the table. Weights are packed once, outside of the measured time, where the
library can do that, as the ladder's own are.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from lab.gemm.ladder import Case, empty, pointer
from numpy.typing import NDArray

ROW_MAJOR, PLAIN, TRANSPOSED, MATRIX_B, PACKED, FIX_OFFSET = 101, 111, 112, 162, 151, 173
INT = ctypes.c_int
Product = Callable[[], NDArray[np.generic]]
LIBRARIES = Path(sys.prefix) / "lib"


@dataclass(frozen=True)
class Vendor:
    """A library's product. prepare: from a case, a call that computes y into an own array."""

    name: str
    floats: bool
    prepare: Callable[[Case], Product]


def vendors(threads: int) -> Iterator[Vendor]:
    """Those at hand. `threads` holds for the whole process; OpenBLAS read it when NumPy came in."""
    yield Vendor("OpenBLAS (NumPy), f32", True, openblas)
    for load in (mkl, onednn):
        with suppress(OSError):
            yield from load(threads)


def environment(threads: int) -> dict[str, str]:
    """What a process must be started with so that every library uses that many threads."""
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads)), "MKL_THREADING_LAYER": "INTEL"}


def openblas(case: Case) -> Product:
    """x @ w.T."""
    y = empty((len(case.xf), len(case.wf)), np.float32)
    return lambda: np.matmul(case.xf, case.wf.T, out=y)


def mkl(threads: int) -> Iterator[Vendor]:
    """sgemm and gemm_s8u8s32 with packed weights. x is the unsigned factor in row-major order."""
    library = ctypes.CDLL(str(next(iter(sorted(LIBRARIES.glob("libmkl_rt.so*"))), "libmkl_rt.so")))
    library.MKL_Set_Num_Threads(INT(threads))

    def floats(case: Case) -> Product:
        (m, n, k), y = case.size, empty((len(case.xf), len(case.wf)), np.float32)
        size = library.cblas_sgemm_pack_get_size
        size.restype = ctypes.c_size_t
        packed = empty((size(MATRIX_B, m, n, k),), np.uint8)
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        library.cblas_sgemm_pack(
            ROW_MAJOR, MATRIX_B, TRANSPOSED, m, n, k, one, pointer(case.wf), k, pointer(packed)
        )
        arguments = (ROW_MAJOR, PLAIN, PACKED, m, n, k, pointer(case.xf), k, pointer(packed), k)
        return call(library.cblas_sgemm_compute, (*arguments, zero, pointer(y), n), y, packed)

    def integers(case: Case) -> Product:
        (m, n, k), y = case.size, empty((len(case.xi), len(case.wi)), np.int32)
        size = library.cblas_gemm_s8u8s32_pack_get_size
        size.restype = ctypes.c_size_t
        packed = empty((size(MATRIX_B, m, n, k),), np.uint8)
        library.cblas_gemm_s8u8s32_pack(
            ROW_MAJOR, MATRIX_B, TRANSPOSED, m, n, k, pointer(case.wi), k, pointer(packed)
        )
        offset, zero, one = np.zeros(1, np.int32), ctypes.c_float(0), ctypes.c_float(1)
        arguments = (ROW_MAJOR, PLAIN, PACKED, FIX_OFFSET, m, n, k, one, pointer(case.xi), k)
        rest = (0, pointer(packed), k, 0, zero, pointer(y), n, pointer(offset))
        compute = library.cblas_gemm_s8u8s32_compute
        return call(compute, (*arguments, *rest), y, packed, offset)

    yield Vendor("Intel MKL, f32", True, floats)
    yield Vendor("Intel MKL, int8", False, integers)


def onednn(_threads: int) -> Iterator[Vendor]:
    """dnnl_gemm_u8s8s32; weights as they are."""
    library = ctypes.CDLL(str(next(iter(sorted(LIBRARIES.glob("libdnnl.so*"))), "libdnnl.so")))

    def integers(case: Case) -> Product:
        y = empty((len(case.xi), len(case.wi)), np.int32)
        (m, n, k), long, zero = case.size, ctypes.c_int64, np.zeros(1, np.int32)
        letters = [ctypes.c_char(letter) for letter in (b"N", b"T", b"F")]
        sizes = [long(value) for value in (m, n, k)]
        inputs = (ctypes.c_float(1), pointer(case.xi), long(k), ctypes.c_uint8(0))
        weights = (pointer(case.wi), long(k), ctypes.c_int8(0), ctypes.c_float(0))
        result = (pointer(y), long(n), pointer(zero))
        arguments = (*letters, *sizes, *inputs, *weights, *result)
        return call(library.dnnl_gemm_u8s8s32, arguments, y, zero)

    yield Vendor("oneDNN, int8", False, integers)


def call(
    function: Callable[..., object],
    arguments: tuple[object, ...],
    y: NDArray[np.generic],
    *kept: NDArray[np.generic],
) -> Product:
    """A call of `function`; `kept`: arrays that must live as long as it may be made."""

    def product() -> NDArray[np.generic]:
        assert kept is not None
        function(*arguments)
        return y

    return product
