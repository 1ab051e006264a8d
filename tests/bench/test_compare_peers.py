"""The comparison with other engines: order, medians, ratios, engines that fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import compare_peers


def engine(name: str, rate: float) -> list[str]:
    facts = f'{{"engine": "{name}", "decode1_tok_s": {rate}, "load_s": 2.0}}'
    return [sys.executable, "-c", f"print('loading'); print('{facts}')"]


def test_engines_take_turns_and_a_failed_one_is_out(capsys: pytest.CaptureFixture[str]) -> None:
    engines = {
        "rebar": engine("rebar", 200),
        "broken": [sys.executable, "-c", "raise SystemExit(3)"],
        "llama.cpp": engine("llama.cpp", 100),
    }
    results = compare_peers.rounds(engines, 2)
    assert {name: len(runs) for name, runs in results.items()} == {"rebar": 2, "llama.cpp": 2}
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round")]
    assert [line.split(": ")[1] for line in notes] == [*engines, "rebar", "llama.cpp"]


def test_ratios_say_how_far_ours_is_ahead() -> None:
    ours = {"decode1_tok_s": 200.0, "load_s": 1.0, "peak_rss_mb": 300.0}
    theirs = {"decode1_tok_s": 100.0, "load_s": 4.0}
    lines = compare_peers.table({"rebar": ours, "llama.cpp": theirs})
    assert len(lines) == 4
    assert lines[-1].split()[3:] == ["-", "2.00x", "-", "4.00x", "-"]


def test_medians_are_per_figure() -> None:
    runs = [{"decode1_tok_s": v, "load_s": s} for v, s in [(3, 9), (1, 8), (2, 1)]]
    assert compare_peers.medians(runs) == {"decode1_tok_s": 2, "load_s": 8}


def test_the_floor_says_what_share_of_the_machine_is_reached() -> None:
    facts = {
        "read_gb_s": 20.0,
        "decode1_read_mb": 100.0,
        "decode1_ceiling_tok_s": 200.0,
        "decode1_tok_s": 150.0,
    }
    assert compare_peers.floor([facts]).endswith("at most 200.0 tok/s, reached 75%")


def test_a_peer_without_an_environment_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "llama/bin").mkdir(parents=True)
    (tmp_path / "llama/bin/python").touch()
    found = compare_peers.commands(tmp_path, Path("model.gguf"), 2)
    assert list(found) == ["rebar", "llama.cpp"]
    for command in list(found.values())[1:]:
        assert Path(command[1]).exists()
