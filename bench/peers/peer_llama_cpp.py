"""llama.cpp, the same work as rebar.insight.figures, by its C interface through llama-cpp-python.

python peer_llama_cpp.py MODEL.gguf THREADS REPEATS FIGURE...: prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
import numpy as np
from work import CHUNK, FIRST_ID, MARGIN, Work, figures


@llama_cpp.llama_log_callback
def silent(_level: int, _text: bytes, _data: object) -> None:
    """Its log is no business of ours."""


class Bench:
    """Runs over one loaded model; each has a context of just its size."""

    def __init__(self, path: Path, threads: int, repeats: int) -> None:
        self.threads, self.repeats = threads, repeats
        self.rng = np.random.default_rng(0)
        self.model = llama_cpp.llama_load_model_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.top = llama_cpp.llama_vocab_n_tokens(vocabulary) - MARGIN

    def run(self, work: Work) -> list[float]:
        """Tokens a second, `repeats` times."""
        with self.context(work) as context:
            if work.prompt:
                return [self.prefill(context, work.prompt) for _ in range(self.repeats)]
            return self.decode(context, work)

    def prefill(self, context: object, count: int) -> float:
        """A prompt, logits of its last id."""
        batches = self.prompt(count, 0)
        self.forget(context, 0)
        begin = time.perf_counter()
        for batch in batches:
            self.step(context, batch)
        seconds = time.perf_counter() - begin
        self.free(batches)
        return count / seconds

    def decode(self, context: object, work: Work) -> list[float]:
        """One id of each sequence a step; back to the depth after each run."""
        for row in range(work.rows):
            batches = self.prompt(work.depth, row)
            for batch in batches:
                self.step(context, batch)
            self.free(batches)
        batch = llama_cpp.llama_batch_init(work.rows, 0, 1)
        rates = []
        for run in range(-1, self.repeats):  # the first one warms
            self.forget(context, work.depth)
            begin = time.perf_counter()
            for position in range(work.depth, work.depth + work.steps):
                self.fill(batch, [(row, position) for row in range(work.rows)], set())
                self.step(context, batch)
            if run >= 0:
                rates.append(work.rows * work.steps / (time.perf_counter() - begin))
        self.free([batch])
        return rates

    @contextmanager
    def context(self, work: Work) -> Iterator[object]:
        """Room for the work's sequences, all in one cache."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = -(-work.rows * work.positions // 256) * 256
        params.n_batch = params.n_ubatch = CHUNK
        params.n_threads = params.n_threads_batch = self.threads
        params.n_seq_max, params.kv_unified = work.rows, True
        params.swa_full = True  # a windowed cache cannot go back to a depth
        context = llama_cpp.llama_init_from_model(self.model, params)
        if not context:
            raise RuntimeError("llama.cpp makes no context")
        try:
            yield context
        finally:
            llama_cpp.llama_free(context)

    def prompt(self, count: int, sequence: int) -> list[llama_cpp.llama_batch]:
        """Batches of a prompt; the last id wants logits."""
        batches = []
        for first in range(0, count, CHUNK):
            places = [(sequence, p) for p in range(first, min(first + CHUNK, count))]
            batch = llama_cpp.llama_batch_init(len(places), 0, 1)
            self.fill(batch, places, set(range(count - 1)))
            batches.append(batch)
        return batches

    def fill(
        self, batch: llama_cpp.llama_batch, places: list[tuple[int, int]], silent: set[int]
    ) -> None:
        """Random ids at (sequence, position); positions in `silent` want no logits."""
        ids = self.rng.integers(FIRST_ID, self.top, len(places))
        batch.n_tokens = len(places)
        for i, (sequence, position) in enumerate(places):
            batch.token[i], batch.pos[i] = int(ids[i]), position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = position not in silent

    def step(self, context: object, batch: llama_cpp.llama_batch) -> None:
        """One call of the engine, to its end."""
        if llama_cpp.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(context)

    def forget(self, context: object, position: int) -> None:
        """Drops what the cache holds from a position on."""
        memory = llama_cpp.llama_get_memory(context)
        if not llama_cpp.llama_memory_seq_rm(memory, -1, position, -1):
            raise RuntimeError("the cache cannot go back")

    def free(self, batches: list[llama_cpp.llama_batch]) -> None:
        """Gives batches back."""
        for batch in batches:
            llama_cpp.llama_batch_free(batch)


def main() -> None:
    """Measures and prints."""
    path, threads, repeats = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    begin = time.perf_counter()
    bench = Bench(path, threads, repeats)
    facts = {
        "engine": "llama.cpp",
        "version": llama_cpp.__version__,
        "model": path.name,
        "threads": threads,
        "load_s": time.perf_counter() - begin,
    }
    warm = Bench.run(bench, Work(prompt=64))
    assert warm
    print(json.dumps(facts | {"figures": figures(sys.argv[4:], bench.run)}))


if __name__ == "__main__":
    main()
