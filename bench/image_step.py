"""A step of the image classifier beside torch: `python -m bench.image_step` where torch is.

The same network, batch and optimizer (AdamW, 64 images of 8 x 8), one thread, in turns; medians.
Also the answers: images classified a second, in batches of 64.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from rebar.graph.image_batch import ImageBatch
from rebar.graph.image_learner import ImageLearnerOptions, open_image_learner
from rebar.graph.models.image_config import ConvNetConfig
from rebar.graph.optimizer import AdamW, Optimizer

ROWS, THREADS, TURNS, STEPS = 64, 1, 7, 10
CONFIG = ConvNetConfig(8, 8, 1, tuple("0123456789"), dropout=0.0)
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.standard_normal((ROWS, CONFIG.values), dtype=np.float32)
LABELS = RANDOM.integers(0, 10, ROWS).astype(np.int32)
Pair = tuple[Callable[[], object], Callable[[], object]]


def ours() -> Pair:
    """(a training step, a batch of answers)."""
    options = ImageLearnerOptions(threads=THREADS, memory=256 << 20)
    learner = open_image_learner(CONFIG, options)
    optimizer = Optimizer(learner.device, learner.parameters, AdamW(), 1.0)
    batch = ImageBatch(IMAGES, LABELS)

    def step() -> None:
        learner.run(batch, 1 / ROWS)
        optimizer.step(1e-3)

    return step, lambda: learner.classifier.classify(IMAGES)


def theirs() -> Pair:
    """The same by torch."""
    import torch

    torch.set_num_threads(THREADS)
    nn = torch.nn
    layers, channels = [], CONFIG.channels
    for i, n in enumerate(CONFIG.stages):
        for _ in range(2):
            layers += [nn.Conv2d(channels, n, 3, padding=1, bias=False)]
            layers += [nn.GroupNorm(min(32, n), n), nn.ReLU()]
            channels = n
        layers += [nn.MaxPool2d(2)] if i == 0 else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(channels, len(CONFIG.labels)))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    images = torch.tensor(IMAGES).reshape(ROWS, 1, 8, 8)
    labels = torch.tensor(LABELS, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    def answer() -> None:
        with torch.inference_mode():
            net(images)

    return step, answer


def milliseconds(work: Callable[[], object]) -> float:
    """Of one, over STEPS."""
    begun = time.perf_counter()
    for _ in range(STEPS):
        work()
    return (time.perf_counter() - begun) / STEPS * 1e3


def main() -> None:
    """Prints both."""
    pairs = {"rebar": ours(), "torch": theirs()}
    found: dict[tuple[str, int], list[float]] = {}
    for turn in range(TURNS + 1):
        for name, pair in pairs.items():
            for i, work in enumerate(pair):
                spent = milliseconds(work)
                if turn:  # the first only warms up
                    found.setdefault((name, i), []).append(spent)
    for i, what in enumerate(("training step", "answers")):
        us, them = (statistics.median(found[name, i]) for name in ("rebar", "torch"))
        print(f"{what:14} rebar {us:7.2f} ms   torch {them:7.2f} ms   {them / us:5.2f} x")


if __name__ == "__main__":
    main()
