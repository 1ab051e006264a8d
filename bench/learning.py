"""LoRA beside torch, step by step: python -m bench.learning PEERS MODEL.gguf TEXT [--out FOLDER]

Both train the same adapter (same first values, order of data, rates, clipping; AdamW) on pieces of
TEXT and are evaluated on pieces that were held out. Ours computes as it serves (int8 activations,
f16 keys and values), torch in float32 on the dequantized weights. Prints the held-out losses and by
how much they differ; FOLDER gets learning.json and learning.svg.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from bench.harness import Facts, measure, note, peer
from numpy.typing import NDArray

from rebar.cli.settings import places
from rebar.dataflow.data import DataOptions, open_training
from rebar.dataflow.models import open_source
from rebar.dataflow.text import Tokenizer
from rebar.graph import ModelFile
from rebar.graph.batch import Batch
from rebar.graph.learner import Learner, LearnerOptions, open_learner
from rebar.graph.lora import LoraSpec
from rebar.graph.optimizer import AdamW, Optimizer
from rebar.graph.parameters import dense
from rebar.graph.schedules import Schedule
from rebar.graph.trainer import Trainer, TrainerOptions
from rebar.insight.plot import Series, line_plot

LENGTH, SEQUENCES, HELD_OUT, EVERY = 128, 4, 24, 10
RATE, CLIP, DECAY = 1e-3, 1.0, 0.01
SPEC = LoraSpec(8, 16, ("q_proj", "v_proj"))
Ids = NDArray[np.int32]


def ids_of(batch: Batch) -> Ids:
    """(sequences, LENGTH + 1): ids, and the one that follows the last."""
    return np.stack([np.append(ids, targets[-1]) for ids, targets in batch.sequences])


def data_of(file: ModelFile, text: Path, steps: int) -> tuple[list[Batch], list[Batch]]:
    """Micro-batches of the steps, and the held-out ones; whole pieces only."""
    options = DataOptions(
        rows=LENGTH, batch_rows=SEQUENCES * LENGTH, samples=SEQUENCES, epochs=1000, held_out=0.1,
        cache=places().cache,
    )  # fmt: skip
    source, held = open_training(text, Tokenizer.of(file), None, options)
    assert held is not None
    found: tuple[list[Batch], list[Batch]] = [], []
    for into, windows, most in ((found[0], source, steps), (found[1], held, HELD_OUT // SEQUENCES)):
        while len(into) < most:
            window = windows.next_window()
            assert window is not None, "the text is too short for these steps"
            whole = [p for b in window.batches for p in b.sequences if len(p[0]) == LENGTH]
            if len(whole) == SEQUENCES:
                into.append(Batch(tuple(whole)))
    return found


def ours(learner: Learner, schedule: Schedule, train: list[Batch], held: list[Batch]) -> Facts:
    """Losses of every step, and on held-out text every EVERY steps."""
    optimizer = Optimizer(learner.device, learner.parameters, AdamW(decay=DECAY), CLIP)
    trainer = Trainer(
        learner, optimizer, schedule, Listed(train), TrainerOptions(evaluate_every=EVERY),
        held_out=held,
    )  # fmt: skip
    held_out = [[0, trainer.evaluate()]]
    losses = []
    for record in trainer.run():
        losses.append(record.loss)
        if record.evaluation is not None:
            held_out.append([record.step, record.evaluation])
            note(f"ours: step {record.step}, held out {record.evaluation:.4f}")
    return {"losses": losses, "held_out": held_out}


class Listed:
    """Batches in a list, a window each."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches, self._at = batches, 0
        self.digest, self.windows = "listed", len(batches)

    @property
    def position(self) -> dict[str, int]:
        """The next one."""
        return {"at": self._at}

    def restore(self, position: Any) -> None:  # noqa: ANN401
        """Goes there."""
        self._at = position["at"]

    def next_window(self) -> Any:  # noqa: ANN401
        """The next one."""
        from rebar.graph.window import Window

        if self._at == len(self._batches):
            return None
        self._at += 1
        batch = self._batches[self._at - 1]
        return Window((batch,), batch.tokens, tokens=batch.rows)


def main() -> None:
    """Trains twice and prints Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/learning"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    file = open_source(asked.model, places().cache)
    train, held = data_of(file, asked.text, asked.steps)
    options = LearnerOptions(
        mode="lora", lora=SPEC, max_rows=SEQUENCES * LENGTH, max_sequences=SEQUENCES,
        max_context=LENGTH, threads=asked.threads,
    )  # fmt: skip
    learner = open_learner(file, options)
    schedule = Schedule("cosine", RATE, asked.steps, warmup=5)
    settings = {
        "scale": SPEC.scale, "weight_decay": DECAY, "clip": CLIP, "every": EVERY,
        "rates": [schedule.at(step) for step in range(asked.steps)],
    }  # fmt: skip
    first = {p.name: dense(p.value) for p in learner.parameters}
    results = {"rebar": ours(learner, schedule, train, held)}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work.npz"
        ids = {"ids": np.stack([ids_of(b) for b in train]), "settings": json.dumps(settings)}
        held_ids = np.concatenate([ids_of(b) for b in held])
        np.savez(work, held_out=held_ids, **ids, **first)  # type: ignore[arg-type]
        words = ("learn", str(asked.model), str(work), str(asked.threads))
        command = peer(asked.peers, "ov", "peer_torch_lora.py", *words)
        theirs = None if command is None else measure(command, 3600)
    if theirs is not None:
        results["torch"] = theirs
    report(asked.out, results)


def report(folder: Path, results: dict[str, Any]) -> None:
    """The curves as a file, a picture and a table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "learning.json").write_text(json.dumps(results))
    colours = {"rebar": "#1f77b4", "torch": "#d62728"}
    lines = [
        Series(name, [(s, loss) for s, loss in found["held_out"]], colours[name], dots=True)
        for name, found in results.items()
    ]
    picture = line_plot(lines, "LoRA, held-out loss", "step", "nats a token")
    (folder / "learning.svg").write_text(picture)
    print("| step | rebar | torch | difference |\n|---|---|---|---|")
    for i, (step, loss) in enumerate(results["rebar"]["held_out"]):
        other = results["torch"]["held_out"][i][1] if "torch" in results else None
        apart = "" if other is None else f"{(loss / other - 1) * 100:+.2f} %"
        print(f"| {step} | {loss:.4f} | {'' if other is None else f'{other:.4f}'} | {apart} |")


if __name__ == "__main__":
    main()
