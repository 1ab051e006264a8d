"""The proofs under load in small: the same scripts, over a tiny model and over none; figures that a
clock decides are not judged here.
"""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path

import pytest
from bench.harness import Line
from tests.tiny import tiny_gguf

from bench import (
    load_all,
    load_burst,
    load_crowd,
    load_front,
    load_kills,
    load_leave,
    load_prefix,
    scripted_engine,
)
from rebar.dataflow.models import convert
from rebar.service import loading

CLOCK = ("/s", ", s", "TTFT", "s until", "RSS", "us an event")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("proofs")
    target = folder / "tiny.rebar"
    convert(tiny_gguf(folder, "llama", "Q8_0", context_length=2048), target)
    return str(target)


def given(folder: Path, **fields: object) -> argparse.Namespace:
    return argparse.Namespace(log=folder / "server.log", **fields)


def missed(lines: list[Line]) -> list[Line]:
    """Lines that do not hold, but for those of the clock."""
    timed = [line for line in lines if any(word in line.figure for word in CLOCK)]
    return [line for line in lines if line.met is False and line not in timed]


def test_the_scripted_engine_is_one_as_the_service_starts_it() -> None:
    """It stands where the real one does, in a process that no type check sees into."""
    told = scripted_engine.spec(4, 4)
    loaded = scripted_engine.load_engine(
        float(told.path), told.options, told.max_running, told.max_waiting,
        speculation=told.speculation,
    )  # fmt: skip
    assert loaded.engine.step() == []
    assert inspect.signature(scripted_engine.load_engine).parameters.keys() <= (
        inspect.signature(loading.load_engine).parameters.keys() | {"step_seconds", "_options"}
    )


def test_no_stream_is_lost_over_a_model_that_costs_nothing(tmp_path: Path) -> None:
    lines = load_front.prove(given(tmp_path, streams=200, tokens=40, runs=2, step_ms=2.0))
    assert missed(lines) == []
    assert any(line.figure == "streams lost of 400" and line.ours == "0" for line in lines)


def test_a_crowd_says_what_each_says_alone(tmp_path: Path, model: str) -> None:
    lines = load_crowd.prove(given(tmp_path, streams=100, alone=0, model=model))
    assert missed(lines) == []


def test_nothing_is_left_of_those_who_leave(tmp_path: Path, model: str) -> None:
    lines = load_leave.prove(given(tmp_path, users=60, seconds=1.0, model=model))
    assert missed(lines) == []


def test_kills_over_http_change_no_byte(tmp_path: Path, model: str) -> None:
    """How often it is killed before all is said is the clock's business; once it must be."""
    lines = load_kills.prove(given(tmp_path, requests=150, kills=3, stops=1, model=model))
    assert [x for x in missed(lines) if not x.figure.endswith("times")] == []
    assert next(x for x in lines if x.figure == "SIGKILL: times").ours >= "1"


def test_a_known_prefix_changes_no_byte(tmp_path: Path, model: str) -> None:
    lines = load_prefix.prove(given(tmp_path, pairs=2, model=model))
    assert missed(lines) == []


def test_a_burst_is_refused_with_a_time_and_hurts_nobody(tmp_path: Path) -> None:
    """Over steps that take their time: beside other work a tiny model was done sooner than the
    front had read the next requests, and nobody had to be refused.
    """
    fields = {"seconds": 1.0, "share": 0.1, "running": 8, "waiting": 32, "step_ms": 5.0}
    assert missed(load_burst.prove(given(tmp_path, **fields))) == []


def test_a_proof_that_breaks_is_a_line_that_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_given: argparse.Namespace) -> list[Line]:
        raise OSError("no such file")

    monkeypatch.setattr(load_leave, "prove", broken)
    (line,) = load_all.prove("leave", given(tmp_path, model="m"))
    assert (line.ours, line.met) == ("failed: OSError", False)
    monkeypatch.setattr(load_prefix, "prove", lambda fields: [Line("x", "1", str(fields.pairs))])
    (line,) = load_all.prove("prefix", given(tmp_path, model="m"))
    assert (line.figure, line.ours) == ("prefix: x", "5")
