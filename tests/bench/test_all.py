"""The table of all targets: each is judged as it is written, and a part that fails is a line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from bench.all import LLAMA, OPENVINO, Target
from bench.harness import Facts, Line
from bench.peers import text_work

from bench import all as everything
from bench import busy_neighbour, start, tokenizers

RESULTS: dict[str, Facts] = {
    "rebar": {"figures": {"decode1": {"tok_s": 210.0, "share": 0.76}, "decode8": {"tok_s": 1.0}}},
    LLAMA: {"figures": {"decode1": {"tok_s": 100.0}}},
}


def test_a_ratio_is_met_from_its_target_on() -> None:
    assert Target("decode1", LLAMA, 2.0).line("m", RESULTS) == Line(
        "m, decode1, tok/s", "2.0 x llama.cpp", "210", "100", "2.10 x", True
    )
    assert Target("decode1", LLAMA, 2.1).line("m", RESULTS).met is True
    assert Target("decode1", LLAMA, 2.2).line("m", RESULTS).met is False


def test_a_share_is_of_our_own_ceiling() -> None:
    line = Target("decode1", share=0.75).line("m", RESULTS)
    assert (line.target, line.ours, line.theirs, line.ratio, line.met) == (
        "75% of the ceiling", "210", "", "76%", True
    )  # fmt: skip
    assert Target("decode1", share=0.77).line("m", RESULTS).met is False


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    for target in (
        Target("decode8", LLAMA, 3.0),
        Target("prefill512", OPENVINO, 1.25),
        Target("decode8", share=0.5),
    ):
        assert target.line("m", RESULTS).met is None


def test_a_small_figure_has_an_upper_limit() -> None:
    met = [everything.at_most("t", 0.6, value, "").met for value in (0.6, 0.61, None)]
    assert met == [True, False, None]


def test_a_part_that_fails_is_a_line_and_the_others_go_on() -> None:
    def broken(_setting: everything.Setting) -> list[Line]:
        raise OSError("no such file")

    good = Line("a", "b", "c")
    lines = everything.run(
        everything.Setting(Path("peers")), {"broken": broken, "good": lambda _setting: [good]}
    )
    assert lines == [Line("broken", "", "failed: OSError"), good]


def test_the_busy_process_ends_with_the_block_and_by_itself() -> None:
    with busy_neighbour.busy_process() as process:
        assert process.poll() is None
    assert process.poll() is not None
    with busy_neighbour.busy_process(bound_s=0.05) as process:
        assert process.wait(timeout=30) == 0


def test_the_share_kept_is_busy_over_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([200.0, 150.0, 100.0, 20.0, 220.0, 120.0, 100.0, None])

    def measure(_command: list[str], _limit: float) -> Facts | None:
        value = next(answers)
        return None if value is None else {"figures": {"decode1": {"tok_s": value}}}

    monkeypatch.setattr(busy_neighbour, "measure", measure)
    found = busy_neighbour.shares({"rebar": ["a"], "llama.cpp": ["b"]}, 2)
    assert found["rebar"] == {"quiet_tok_s": 210.0, "busy_tok_s": 135.0, "kept": 135 / 210}
    assert found["llama.cpp"]["kept"] == 0.2
    assert busy_neighbour.table(found)[1].split() == ["rebar", "210", "135", "64%"]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_start_ends_with_the_first_byte() -> None:
    assert (start.until_output(python("print(1)")) or 0.0) > 0.0
    assert start.until_output(python("")) is None
    assert start.until_output(python("print(1); raise SystemExit(3)")) is None
    assert start.until_output(["/nowhere/python"]) is None


def test_growth_tells_linear_from_quadratic() -> None:
    """By counting work, not by the clock: the fake's time is its own."""
    clock = [0.0]

    def quadratic(text: str) -> list[int]:
        clock[0] += len(text) ** 2
        return []

    def linear(text: str) -> list[int]:
        clock[0] += len(text)
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: clock[0])
        assert text_work.growth(linear, {"a": "a"}) == {"a": 1.0}
        assert text_work.growth(quadratic, {"a": "a"}) == {"a": 32.0}


def test_the_worst_growth_is_named_and_other_ids_are_shouted() -> None:
    run = {"long_mb_s": 30.0, "short_us": 2.0, "growth": {"a": 1.0, "b": 1.5}, "digest": "x"}
    ours = tokenizers.summary([run, run | {"long_mb_s": 10.0}, run | {"long_mb_s": 20.0}])
    assert ours == {
        "long_mb_s": 20.0, "short_us": 2.0, "worst": "b", "growth": 1.5, "digest": "x"
    }  # fmt: skip
    theirs = ours | {"long_mb_s": 2.0, "short_us": 20.0}
    lines = tokenizers.table({"rebar": ours, "tokenizers": theirs})
    assert lines[-1].split() == ["ahead", "10.00x", "10.00x"]
    lines = tokenizers.table({"rebar": ours, "tokenizers": theirs | {"digest": "y"}})
    assert "DIFFER" in lines[-1]


def test_the_long_text_is_long_and_the_export_gets_its_digits_rule() -> None:
    assert len(tokenizers.long_text()) > 300_000
    exported = {"pre_tokenizer": {"type": "ByteLevel", "use_regex": True}}
    once = tokenizers.repaired(json.dumps(exported))
    assert json.loads(once)["pre_tokenizer"]["pretokenizers"] == [
        {"type": "Digits", "individual_digits": True},
        exported["pre_tokenizer"],
    ]
    assert json.loads(tokenizers.repaired(once)) == json.loads(once)
