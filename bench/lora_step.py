"""The speed and peak memory of our LoRA step, the work of peer_torch_lora.py speed: one line of
JSON. python -m bench.lora_step MODEL.gguf [--threads 2] [--steps 6] [--recompute none] [--kv f16]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from rebar.cli.settings import places
from rebar.dataflow.models import open_source
from rebar.graph.batch import Batch
from rebar.graph.learner import LearnerOptions, open_learner
from rebar.graph.lora import LoraSpec
from rebar.graph.optimizer import AdamW, Optimizer
from rebar.hal import processes

SEQUENCES, LENGTH = 4, 256


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--recompute", default="none")
    parser.add_argument("--kv", default="f16")
    asked = parser.parse_args()
    options = LearnerOptions(
        mode="lora",
        lora=LoraSpec(8, 16, ("q_proj", "v_proj")),
        max_rows=SEQUENCES * LENGTH,
        max_sequences=SEQUENCES,
        max_context=LENGTH,
        threads=asked.threads,
        recompute=asked.recompute,
        kv=asked.kv,
    )
    learner = open_learner(open_source(asked.model, places().cache), options)
    optimizer = Optimizer(learner.device, learner.parameters, AdamW())
    ids = np.random.default_rng(0).integers(100, 40_000, (SEQUENCES, LENGTH)).astype(np.int32)
    batch = Batch.of(*ids)
    times = []
    for _ in range(asked.steps):
        begin = time.perf_counter()
        learner.run(batch, 1 / batch.tokens)
        optimizer.step(1e-4)
        times.append(time.perf_counter() - begin)
    facts = {
        "tokens_s": batch.rows / statistics.median(times[2:]),
        "peak_mb": processes.peak_resident_bytes() / 1e6,
        "pools_mb": {p.name: p.used / 1e6 for p in learner.device.stats().pools},
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
