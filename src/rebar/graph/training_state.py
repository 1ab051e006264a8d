"""What of a run goes into a checkpoint, and the check that a run which goes on from it is the same.

State in plain values: what must be equal ("fixed": the learner, parameters, rule, schedule, data,
ranks), what moves ("progress", the optimizer's count, a data position a rank) and where it came
from ("provenance"). Arrays: the parameters, and the optimizer's states. There is no generator to
save: randomness is a function of seed, step and place, and of these the first is part of what is
fixed and the second of the progress.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from rebar.errors import TrainingError
from rebar.graph.checkpoint_file import F32, Saved, State
from rebar.graph.optimizer import Optimizer, Sgd, place
from rebar.graph.schedules import Schedule
from rebar.graph.weights.pack import LAYOUT_VERSION
from rebar.graph.window import Position
from rebar.hal.files import drop_pages

VERSION = 2


@dataclass(slots=True)
class Progress:
    """What a run knows of itself between two steps. waited: evaluations since the best one. owed:
    the evaluation that was due after the last step was cut short, and is to be made first.
    """

    step: int = 0
    tokens: int = 0
    skipped: int = 0
    best: float | None = None
    best_step: int = 0
    waited: int = 0
    owed: bool = False


def fixed_of(
    learner: Mapping[str, Any],
    optimizer: Optimizer,
    schedule: Schedule,
    source: str,
    ranks: int,
    seed: int,
) -> dict[str, Any]:
    """What has to be equal for the same bits, as it comes back from a file. learner: its settings.
    source: the digest of the data.
    """
    parameters = optimizer.parameters
    fixed = {
        "learner": dict(learner),
        "parameters": [[p.name, *place(parameters, p), p.decay] for p in parameters],
        "optimizer": [type(optimizer.rule).__name__, asdict(optimizer.rule)],
        "clip": optimizer.clip,
        "schedule": asdict(schedule),
        "data": source,
        "ranks": ranks,
        "seed": seed,
        "layout": LAYOUT_VERSION,
    }
    same: dict[str, Any] = json.loads(json.dumps(fixed))
    return same


def state_of(
    fixed: Mapping[str, Any],
    progress: Progress,
    optimizer: Optimizer,
    positions: Sequence[Position],
    provenance: Mapping[str, Any],
) -> State:
    """The plain part of a checkpoint."""
    return {
        "version": VERSION,
        "fixed": dict(fixed),
        "progress": asdict(progress),
        "count": optimizer.count,
        "positions": [dict(p) for p in positions],
        "provenance": dict(provenance),
    }


def arrays_of(optimizer: Optimizer, *, states: bool = True) -> dict[str, F32]:
    """The arrays of a checkpoint, over the memory they live in. SGD has no second state."""
    p = optimizer.parameters
    arrays = {"values": p.values}
    if states:
        arrays |= {"m": p.m} if isinstance(optimizer.rule, Sgd) else {"m": p.m, "v": p.v}
    return arrays


def restore(saved: Saved, fixed: Mapping[str, Any], optimizer: Optimizer) -> Progress:
    """Puts parameters, states and count back; what the run knew of itself. TrainingError naming
    what differs, with nothing changed.
    """
    check_same(saved, fixed)
    try:
        progress, count = Progress(**saved.state["progress"]), int(saved.state["count"])
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingError(
            f"{saved.path} holds no state of a run ({error}). Use another checkpoint of the folder."
        ) from error
    put_arrays(saved, arrays_of(optimizer))
    optimizer.count = count
    optimizer.parameters.gradients.fill(0)
    return progress


def check_same(saved: Saved, fixed: Mapping[str, Any]) -> None:
    """Raises TrainingError unless the checkpoint is of a run with the same settings."""
    if saved.state.get("version") != VERSION:
        raise TrainingError(
            f"{saved.path} was written by another release (version "
            f"{saved.state.get('version')}, this one reads {VERSION}). Go on with that release."
        )
    then = saved.state.get("fixed")
    told = [f"{what} was {was}, is {now}" for what, was, now in first_differences(then, fixed)]
    if told:
        raise TrainingError(
            f"{saved.path} is of another run: {'; '.join(told)}. Give the same settings and data "
            "to go on with the same bits, or start anew in another --out."
        )


def first_differences(a: object, b: object, most: int = 3) -> list[tuple[str, str, str]]:
    """Where two plain values differ, and both values there; at most so many."""
    return [(what, _short(x), _short(y)) for what, x, y in islice(_differences("", a, b), most)]


def _differences(what: str, a: object, b: object) -> Iterator[tuple[str, object, object]]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            yield from _differences(f"{what} {key}".lstrip(), a.get(key), b.get(key))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _differences(f"{what}[{i}]", x, y)
    elif a != b:
        yield what, a, b


def put_arrays(saved: Saved, into: Mapping[str, F32]) -> None:
    """Copies saved arrays over those of the run."""
    for name, array in into.items():
        found = saved.arrays.get(name)
        if found is None or found.size != array.size:
            raise TrainingError(
                f"{saved.path} does not hold the {array.size:,} {name} of this run. Use another "
                "checkpoint of the folder."
            )
    for name, array in into.items():
        array[:] = saved.arrays[name]
        drop_pages(saved.arrays[name].view(np.uint8))


def _short(value: object) -> str:
    text = f"a list of {len(value)}" if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
