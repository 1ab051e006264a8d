"""OpenVINO GenAI, prompts and decode of one row: python peer_openvino.py MODEL REPEATS FIGURE...

The same work as rebar.insight.figures, by its own clocks (time to the first token, time per token).
Every prompt is new, since its prefix cache is on by default; it has no interface for steps of given
ids, so figures of several rows are left out. It takes the cores it finds. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import openvino
import openvino_genai
from work import FIRST_ID, MARGIN, Work, figures


class Bench:
    """Runs over one pipeline."""

    def __init__(self, path: Path, repeats: int) -> None:
        self.pipeline = openvino_genai.LLMPipeline(str(path), "CPU")
        self.repeats = repeats
        self.rng = np.random.default_rng(0)
        self.top = len(self.pipeline.get_tokenizer().get_vocab()) - MARGIN

    def run(self, work: Work) -> list[float]:
        """Tokens a second, `repeats` times."""
        if work.rows > 1:
            return []
        return [self.once(work) for _ in range(self.repeats)]

    def once(self, work: Work) -> float:
        """A prompt alone, or a prompt and the steps after it."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = 2 if work.prompt else work.steps + 1
        config.do_sample, config.ignore_eos = False, True
        ids = self.rng.integers(FIRST_ID, self.top, (1, work.prompt or work.depth))
        metrics = self.pipeline.generate(openvino.Tensor(ids), config).perf_metrics
        if work.prompt:
            return work.prompt / metrics.get_ttft().mean * 1000
        return 1000 / metrics.get_tpot().mean


def main() -> None:
    """Measures and prints."""
    path = Path(sys.argv[1])
    begin = time.perf_counter()
    bench = Bench(path, int(sys.argv[2]))
    facts = {
        "engine": "openvino",
        "version": version("openvino-genai"),
        "model": path.name,
        "load_s": time.perf_counter() - begin,
    }
    bench.once(Work(prompt=64))
    print(json.dumps(facts | {"figures": figures(sys.argv[3:], bench.run)}))


if __name__ == "__main__":
    main()
