"""llama.cpp's own server (llama-server) from the Python package xllamacpp: MODEL.gguf THREADS SLOTS

Says `ready URL` when it answers, and serves until it is ended. Continuous batching is on, as it is
there by default; the context is divided among the slots.
"""

from __future__ import annotations

import sys
import threading

import xllamacpp

CONTEXT_PER_SLOT = 1024


def main() -> None:
    """Serves."""
    path, threads, slots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_parallel = slots
    params.n_ctx = slots * CONTEXT_PER_SLOT
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.warmup = True
    server = xllamacpp.Server(params)
    print(f"ready {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
