"""llama.cpp, the same work as rebar.insight.bench: python peer_llama_cpp.py MODEL.gguf [THREADS].

Runs in an environment that has llama-cpp-python and NumPy. Prints one line of JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np

PROMPT, DECODE, ROWS, ROW_DECODE, REPEATS = 512, 64, 8, 32, 3


class Bench:
    """The three runs over one loaded model."""

    def __init__(self, path: Path, threads: int) -> None:
        self.path, self.threads = path, threads
        self.rng = np.random.default_rng(0)
        self.model = llama_cpp.Llama(
            str(path), n_ctx=2048, n_batch=512, n_threads=threads, n_threads_batch=threads,
            verbose=False,
        )  # fmt: skip

    def ids(self, count: int) -> list[int]:
        """Random ids, none of the control ids at either end."""
        top = self.model.n_vocab() - 1000
        return [int(i) for i in self.rng.integers(100, top, count)]

    def prefill(self, count: int) -> float:
        """Tokens a second of a prompt."""
        ids = self.ids(count)
        self.model.reset()
        begin = time.perf_counter()
        self.model.eval(ids)
        return count / (time.perf_counter() - begin)

    def decode(self, count: int) -> float:
        """Tokens a second, one at a time after 16."""
        self.model.reset()
        self.model.eval(self.ids(16))
        begin = time.perf_counter()
        for _ in range(count):
            self.model.eval(self.ids(1))
        return count / (time.perf_counter() - begin)

    def decode_rows(self) -> list[float]:
        """Eight sequences in one batch, by the C interface."""
        context = self._context()
        batch = llama_cpp.llama_batch_init(512, 0, ROWS)
        for position in range(8):
            self._step(context, batch, position)
        rates = []
        for repeat in range(REPEATS):
            begin = time.perf_counter()
            for position in range(8 + repeat * ROW_DECODE, 8 + (repeat + 1) * ROW_DECODE):
                self._step(context, batch, position)
            rates.append(ROWS * ROW_DECODE / (time.perf_counter() - begin))
        return rates

    def _context(self) -> llama_cpp.llama_context_p:
        model = llama_cpp.llama_load_model_from_file(
            str(self.path).encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 4096, 512, 512
        params.n_threads = params.n_threads_batch = self.threads
        params.n_seq_max = ROWS
        return llama_cpp.llama_init_from_model(model, params)

    def _step(
        self, context: llama_cpp.llama_context_p, batch: llama_cpp.llama_batch, position: int
    ) -> None:
        batch.n_tokens = ROWS
        for row, token in enumerate(self.ids(ROWS)):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.logits[row] = 1, 1
            batch.seq_id[row][0] = row
        if llama_cpp.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")


def peak_mb() -> float:
    """VmHWM of this process in MB (10^6)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


def main() -> None:
    """Measures and prints."""
    path, threads = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    begin = time.perf_counter()
    bench = Bench(path, threads)
    load = time.perf_counter() - begin
    bench.prefill(64)
    bench.decode(8)
    facts = {
        "engine": "llama.cpp",
        "version": llama_cpp.__version__,
        "model": path.name,
        "threads": threads,
        "prefill512_tok_s": statistics.median(bench.prefill(PROMPT) for _ in range(REPEATS)),
        "decode1_tok_s": statistics.median(bench.decode(DECODE) for _ in range(REPEATS)),
        "load_s": load,
        "peak_rss_mb": peak_mb(),  # before the second copy that decode8 loads
        "decode8_tok_s": statistics.median(bench.decode_rows()),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
