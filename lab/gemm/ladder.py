"""The rungs: compiled for this machine, loaded, run, and compared with the first.

A rung is one NN_name.cpp; its first paragraphs say what it does and, after "Why:", what it gains.
All calls are plain ctypes, so that nothing stands between a reader and the loop.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

HERE = Path(__file__).parent
# What GCC 12 says of its own headers (uninitialized) and of vectors wider than the machine (psabi).
FLAGS = "-std=c++20 -O3 -Wall -Wextra -Wno-psabi -Wno-uninitialized -Wno-maybe-uninitialized"
FLAGS += " -shared -fPIC -pthread"
UNIT = 2.0**-24  # rounding error of one float operation, relative


class Problem(ctypes.Structure):
    """struct Problem of rung.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "threads")),
        *((name, ctypes.c_void_p) for name in ("xf", "wf", "yf", "xi", "wi", "yi")),
    ]


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array that begins on a cache line."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(nbytes + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + nbytes].view(dtype).reshape(shape)


@dataclass(frozen=True)
class Case:
    """One size with its numbers: x (m, k) and w (n, k), as floats and as bytes."""

    xf: NDArray[np.float32]
    wf: NDArray[np.float32]
    xi: NDArray[np.uint8]
    wi: NDArray[np.int8]

    @classmethod
    def random(cls, m: int, n: int, k: int) -> Case:
        """The same numbers on every run."""
        random = np.random.default_rng(1)
        return cls(
            random.standard_normal((m, k), np.float32),
            random.standard_normal((n, k), np.float32),
            random.integers(0, 128, (m, k), np.uint8),
            random.integers(-127, 128, (n, k), np.int8),
        )

    def copy(self) -> Case:
        """The same numbers at another place."""
        arrays = []
        for array in (self.xf, self.wf, self.xi, self.wi):
            arrays.append(empty(array.shape, array.dtype))
            arrays[-1][:] = array
        return Case(*arrays)

    @property
    def size(self) -> tuple[int, int, int]:
        """(m, n, k)."""
        return (*self.xf.shape[:1], *self.wf.shape)


class Rung:
    """One compiled file."""

    def __init__(self, source: Path, library: ctypes.CDLL) -> None:
        self.number, _, self.name = source.stem.partition("_")
        self.why = why(source.read_text())
        self.floats = int(self.number) <= 3
        library.needs.restype = ctypes.c_char_p
        needs = library.needs()
        self.needs: str | None = needs.decode() if needs else None
        self.multiply = library.multiply
        self._pack = getattr(library, "pack", None)

    def laid_out(self, case: Case) -> NDArray[np.float32] | NDArray[np.int8]:
        """The weights as this rung reads them."""
        if self.floats:
            return case.wf
        if self._pack is None:
            return case.wi
        packed = empty(case.wi.shape, np.int8)
        self._pack(pointer(case.wi), *case.wi.shape, pointer(packed))
        return packed

    def problem(self, case: Case, threads: int = 1) -> tuple[Problem, list[NDArray[np.generic]]]:
        """The call's argument, and the arrays it points to: inputs, weights, result."""
        (m, n, k), weights = case.size, self.laid_out(case)
        x = case.xf if self.floats else case.xi
        y = empty((m, n), np.float32 if self.floats else np.int32)
        three = [pointer(a) for a in (x, weights, y)]
        none = [None] * 3
        places = (*three, *none) if self.floats else (*none, *three)
        return Problem(m, n, k, threads, *places), [x, weights, y]

    def product(self, case: Case, threads: int = 1) -> NDArray[np.generic]:
        """x wT of one case."""
        problem, (*_, y) = self.problem(case, threads)
        self.multiply(ctypes.byref(problem))
        return y


def pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    """Where an array's numbers begin."""
    return ctypes.c_void_p(array.ctypes.data)


def why(text: str) -> str:
    """The sentence of a rung's first paragraphs that says what the step gains."""
    comment = re.match(r"(//.*\n)+", text)
    lines = comment[0].replace("//", "").replace("\n", " ") if comment else ""
    return re.sub(r"\s+", " ", lines.partition("Why:")[2]).strip()


def compiler() -> str:
    """CXX, else g++ or clang++."""
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not found:
        raise SystemExit("lab: no C++ compiler. Install one: apt-get install g++")
    return found


def build(source: Path, folder: Path, tune: str = "-march=native") -> ctypes.CDLL:
    """Compiles one file and loads it. tune: which machine it is for."""
    target = folder / f"{source.stem}.so"
    command = [compiler(), *FLAGS.split(), tune, str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return ctypes.CDLL(str(target))


def rungs(folder: Path, tune: str = "-march=native") -> list[Rung]:
    """All of them, lowest first, compiled into `folder`."""
    sources = sorted(HERE.glob("[0-9][0-9]_*.cpp"))
    return [Rung(source, build(source, folder, tune)) for source in sources]


def exact(case: Case) -> Case:
    """The same bytes, in floats too: all sums stay integers below 2^24, so rung 1 is exact."""
    return Case(case.xi.astype(np.float32), case.wi.astype(np.float32), case.xi, case.wi)


def tolerance(case: Case) -> NDArray[np.float64]:
    """How far two float products may lie apart.

    Two sums of k products in any orders are each within k * UNIT of the sum of magnitudes (Higham,
    Accuracy and Stability of Numerical Algorithms, equation 3.5).
    """
    magnitudes = np.abs(case.xf).astype(np.float64) @ np.abs(case.wf.T)
    return np.asarray(2 * 1.01 * case.size[2] * UNIT * magnitudes, np.float64)


def verify(rung: Rung, first: Rung, case: Case, threads: int = 1) -> None:
    """Raises unless `rung` gives what the first rung gives: integers equal, floats within the
    tolerance.
    """
    if rung.floats:
        compare(rung.name, rung.product(case, threads), first.product(case), tolerance(case))
    else:
        compare(rung.name, rung.product(case, threads), first.product(exact(case)), np.zeros(1))


def compare(
    name: str,
    found: NDArray[np.generic],
    wanted: NDArray[np.generic],
    allowed: NDArray[np.float64],
) -> None:
    """Raises unless the two lie at most `allowed` apart, element by element."""
    away = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    if not (away <= allowed).all():
        raise AssertionError(f"{name}: {int((away > allowed).sum())} of {away.size} differ")
