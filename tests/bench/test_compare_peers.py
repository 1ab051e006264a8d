"""The comparison with other engines: order, medians, best files, ratios, engines that fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench.compare_peers import FIGURES, Comparison, best_files, ratio, table
from bench.peers import work

from bench import harness
from rebar.insight import figures


def engine(name: str, rate: float) -> list[str]:
    facts = f'{{"engine": "{name}", "load_s": {rate}}}'
    return [sys.executable, "-c", f"print('loading'); print('{facts}')"]


def test_engines_take_turns_and_a_failed_one_is_out(capsys: pytest.CaptureFixture[str]) -> None:
    engines = {
        "rebar": engine("rebar", 200),
        "broken": [sys.executable, "-c", "raise SystemExit(3)"],
        "mute": [sys.executable, "-c", ""],
        "absent": ["/nowhere/python"],
        "llama.cpp": engine("llama.cpp", 100),
    }
    results = harness.rounds(engines, 2)
    assert {name: len(runs) for name, runs in results.items()} == {"rebar": 2, "llama.cpp": 2}
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round")]
    assert [line.split(": ")[1] for line in notes] == [*engines, "rebar", "llama.cpp"]


def test_one_that_takes_too_long_has_failed() -> None:
    assert harness.measure([sys.executable, "-c", "import time; time.sleep(60)"], 0.2) is None


def test_medians_are_per_figure_and_skip_what_a_run_lacks() -> None:
    runs = [{"a": {"b": v}, "c": c} for v, c in [(3, 9), (1, 8), (2, 1)]]
    assert harness.median(runs, "a", "b") == 2
    assert harness.median([*runs, {"c": 100}], "a", "b") == 2
    assert harness.median(runs, "c") == 8
    assert harness.median(runs, "a", "x") is None


def test_numbers_and_lines_of_the_table() -> None:
    assert [harness.number(v) for v in (None, 0.123456, 12.345, 1234.5)] == [
        "-", "0.123", "12.3", "1,234",
    ]  # fmt: skip
    lines = [harness.Line("a", "at least 2 x", "4", "2", "2.0 x", True), harness.Line("b", "", "1")]
    assert harness.markdown(lines)[2:] == [
        "| a | at least 2 x | 4 | 2 | 2.0 x | yes |",
        "| b |  | 1 |  |  |  |",
    ]


RESULTS: dict[str, harness.Facts] = {
    "rebar": {
        "load_s": 0.05,
        "figures": {
            "decode1": {"tok_s": 300.0, "share": 0.751},
            "decode8": {"tok_s": 900.0, "share": 0.5},
        },
    },
    "llama.cpp: a.gguf": {
        "load_s": 1.0,
        "figures": {"decode1": {"tok_s": 90.0}, "decode8": {"tok_s": 300.0}},
    },
    "llama.cpp: b.gguf": {
        "load_s": 2.0,
        "figures": {"decode1": {"tok_s": 150.0}, "decode8": {"tok_s": 200.0}},
    },
}


def test_a_peer_counts_with_its_better_file_in_each_figure() -> None:
    best = best_files(RESULTS)
    assert list(best) == ["rebar", "llama.cpp"]
    assert best["llama.cpp"]["figures"] == {
        "decode1": {"tok_s": 150.0, "file": "b.gguf"},
        "decode8": {"tok_s": 300.0, "file": "a.gguf"},
    }
    assert best["rebar"] == RESULTS["rebar"]
    assert ratio(best, "llama.cpp", "decode1") == 2.0
    assert ratio(best, "llama.cpp", "prefill512") is None
    assert ratio(best, "openvino", "decode1") is None


def test_the_table_has_shares_and_ratios() -> None:
    lines = table(best_files(RESULTS), ("decode1", "decode8", "prefill512"))
    assert lines[1].split() == ["decode1", "300", "75%", "150", "(2.00x)"]
    assert lines[2].split() == ["decode8", "900", "50%", "300", "(3.00x)"]
    assert lines[3].split() == ["prefill512", "-", "-", "-"]


def test_a_peer_without_an_environment_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "llama/bin").mkdir(parents=True)
    (tmp_path / "llama/bin/python").touch()
    comparison = Comparison(tmp_path, Path("m.gguf"), Path("q.gguf"), 3, ("decode1", "decode8"))
    found = comparison.commands()
    assert list(found) == ["rebar", "llama.cpp: m.gguf", "llama.cpp: q.gguf"]
    assert found["rebar"][-6:] == ["--repeats", "3", "--only", "decode1", "--only", "decode8"]
    assert found["llama.cpp: q.gguf"][2:] == ["q.gguf", "3", "3", "decode1", "decode8"]
    assert Path(found["llama.cpp: q.gguf"][1]).exists()


def test_openvino_gets_what_it_has_an_interface_for(tmp_path: Path) -> None:
    (tmp_path / "ov/bin").mkdir(parents=True)
    (tmp_path / "ov/bin/python").touch()
    found = Comparison(tmp_path, Path("m.gguf")).commands()
    assert found["openvino"][3:] == [
        "3", *(f for f in FIGURES if f not in ("decode8", "decode32"))
    ]  # fmt: skip


def test_the_peers_do_the_same_work() -> None:
    assert set(FIGURES) <= {figure.name for figure in figures.FIGURES}
    for ours in figures.FIGURES:
        theirs = work.parse(ours.name)
        assert (theirs.prompt, theirs.rows, theirs.positions) == (
            ours.prompt, ours.rows, ours.positions
        )  # fmt: skip
        if not ours.prompt:
            assert (theirs.depth, theirs.steps) == (ours.depth, ours.steps)
    assert (work.FIRST_ID, work.MARGIN) == (figures.FIRST_ID, figures.MARGIN)
    with pytest.raises(ValueError, match="no figure"):
        work.parse("rows8")


def test_a_figure_that_fails_takes_no_other_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    def run(asked: work.Work) -> list[float]:
        if asked.rows == 4:
            raise RuntimeError("out of memory")
        return [3.0, 1.0, 2.0] if asked.rows == 1 else []

    found = work.figures(["decode4", "decode1", "decode8"], run)
    assert found == {"decode1": {"tok_s": 2.0, "low": 1.0, "high": 3.0}}
    assert "decode4: RuntimeError: out of memory" in capsys.readouterr().out
