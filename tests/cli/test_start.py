"""./run on machines that lack something, and how soon a prepared one starts."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = "awk cat cp cut date dirname env find flock id mkdir mv readlink rm sh sha256sum sort"
TOOLS += " tail tee uname xargs"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What ./run looks at, in a folder whose name has a space, without a .venv."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("run", "CMakeLists.txt", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, folder)
    shutil.copytree(ROOT / "tools", folder / "tools")
    (folder / "native").mkdir()
    return folder


def bare_path(folder: Path, *extra: str) -> Path:
    """A folder of commands: what every Debian has, and `extra`."""
    commands = folder / "bin"
    commands.mkdir()
    for name in (*TOOLS.split(), *extra):
        found = shutil.which(name)
        assert found, name
        (commands / name).symlink_to(found)
    return commands


def start(clone: Path, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(clone / "run"), "version"],
        env={"PATH": str(path), "HOME": str(clone)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_all_that_is_missing_is_named_at_once_with_the_line_that_brings_it(clone: Path) -> None:
    done = start(clone, bare_path(clone))
    assert done.returncode == 1
    assert "Python 3.11 or newer, a C++20 compiler" in done.stderr
    assert "apt-get install -y python3 python3-venv python3-dev g++" in done.stderr
    assert done.stdout == ""


def test_a_missing_compiler_is_named_alone(clone: Path) -> None:
    commands = bare_path(clone)
    # Not a link: an interpreter finds its library beside the file it was started from.
    script = commands / "python3"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    done = start(clone, commands)
    assert done.returncode == 1
    assert "lacks a C++20 compiler." in done.stderr
    assert "apt-get install -y g++\n" in done.stderr


def test_an_old_python_is_as_good_as_none(clone: Path) -> None:
    commands = bare_path(clone, "false")
    (commands / "python3").symlink_to(shutil.which("false") or "")
    assert "Python 3.11 or newer" in start(clone, commands).stderr


@pytest.mark.skipif(
    not (ROOT / ".venv/rebar.stamp").exists(),
    reason="this tree was not set up by ./run; ./test always does that first",
)
def test_a_prepared_tree_starts_at_once_and_without_network() -> None:
    def children() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    subprocess.run([str(ROOT / "run"), "version"], capture_output=True, check=True)
    best = 10.0
    for _ in range(3):
        begin = children()
        done = subprocess.run(
            [str(ROOT / "run"), "version", "--json"],
            env={**os.environ, "PIP_INDEX_URL": "http://127.0.0.1:9/"},
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
        best = min(best, children() - begin)
        assert done.stdout.startswith("{")
        assert done.stderr == ""
    assert best < 1.0
