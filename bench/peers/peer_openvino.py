"""OpenVINO GenAI, prompt and decode: python peer_openvino.py MODEL.gguf.

Runs in an environment that has openvino-genai. Every prompt differs, since its prefix cache is on
by default; it has no interface for a batch of given ids, so decode8 is left out. Prints one line of
JSON.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import openvino_genai

WORDS = ("river", "stone", "cloud", "paper", "engine", "winter", "yellow", "market", "silver")
REPEATS = 3


def main() -> None:
    """Measures and prints."""
    path = Path(sys.argv[1])
    begin = time.perf_counter()
    pipeline = openvino_genai.LLMPipeline(str(path), "CPU")
    load = time.perf_counter() - begin
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = 64
    config.do_sample, config.ignore_eos = False, True

    def run(words: int) -> tuple[float, float]:
        prompt = " ".join(random.choices(WORDS, k=words))
        metrics = pipeline.generate([prompt], config).perf_metrics
        prefill = metrics.get_num_input_tokens() / metrics.get_ttft().mean * 1000
        return prefill, 1000 / metrics.get_tpot().mean

    run(64)
    runs = [run(500) for _ in range(REPEATS)]
    facts = {
        "engine": "openvino",
        "version": version("openvino-genai"),
        "model": path.name,
        "prefill512_tok_s": statistics.median(prefill for prefill, _ in runs),
        "decode1_tok_s": statistics.median(decode for _, decode in runs),
        "load_s": load,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
