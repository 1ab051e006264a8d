"""Adapters of `rebar serve`: an engine is killed, a flag is wrong."""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.service.adapted import ASKED, choice, load, make_folder
from tests.service.live import wait_for
from tests.service.rebar_process import serving_process, start


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("adapters"))


def test_a_killed_engine_is_told_its_adapters(folder: Path, tmp_path: Path) -> None:
    """By `rebar serve`, with the folder gone meanwhile: the copy is what is served. One is loaded
    while serving; both go on with the same bits.
    """
    mine = tmp_path / "mine"
    for name in ("pirate", "sage"):
        shutil.copytree(folder / name, mine / name)
    model = next(folder.glob("*.gguf"))
    flags = ("--adapter", f"pirate={mine / 'pirate'}", "--served-model-name", "m")
    asked = {**ASKED, "max_tokens": 90, "ignore_eos": True}
    with serving_process(model, tmp_path / "cache", *flags) as server:
        assert load(server, "sage", mine).status_code == 200
        names = ["m", "pirate", "sage"]
        alone = {name: choice(server.complete(model=name, **asked)) for name in names}
        assert len({str(c) for c in alone.values()}) == 3
        shutil.rmtree(mine)
        with ThreadPoolExecutor(6) as pool:
            answers = [pool.submit(server.complete, model=names[i % 3], **asked) for i in range(6)]
            (engine,) = server.probed.engines()
            os.kill(engine["pid"], signal.SIGKILL)
            assert [choice(a.result()) for a in answers] == [alone[n] for n in names * 2]
        wait_for(lambda: server.probed.engines()[0]["pid"] not in (None, engine["pid"]), 10)
        assert choice(server.complete(model="sage", **asked)) == alone["sage"]
        server.probed.workers = server.probed.pids()


def test_serve_refuses_adapters_that_are_wrong(folder: Path, tmp_path: Path) -> None:
    """In the words of the flag, before an engine is started."""
    for flags, words in (
        (("--adapter", "pirate"), "is no NAME=FOLDER"),
        (("--adapter", f"a={folder / 'nowhere'}"), "cannot be opened"),
        (("--adapter", f"a={folder / 'broken'}"), "is missing ('nothing."),
        (("--adapter", f"a={folder / 'pirate'}", "--max-lora-rank", "4"), "--max-lora-rank 8"),
        (("--adapter", f"a={folder / 'pirate'}", "--max-adapters", "0"), "--max-adapters"),
    ):
        log = tmp_path / "log"
        process = start(next(folder.glob("*.gguf")), tmp_path / "cache", log, *flags)
        assert process.wait(30) == 2
        assert words in log.read_text()
