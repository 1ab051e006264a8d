"""The layer law: imports point down, devices belong to hal, argv and environment to cli."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.law.rules import (
    BELOW,
    SHARED,
    Violation,
    device_violations,
    environment_violations,
    layer_violations,
)

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


def modules() -> Iterator[tuple[str, str, bool]]:
    for path in sorted((SOURCE / "rebar").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        package = parts[-1] == "__init__"
        yield path.read_text(), ".".join(parts[:-1] if package else parts), package


def test_imports_point_down() -> None:
    for text, name, package in modules():
        assert layer_violations(text, name, package=package) == []


@pytest.mark.parametrize("rule", [device_violations, environment_violations])
def test_devices_belong_to_hal_and_argv_to_cli(rule: Callable[[str, str], list[Violation]]) -> None:
    assert [v for text, name, _ in modules() for v in rule(text, name)] == []


def test_every_package_is_a_layer_of_the_law() -> None:
    names = [p.name for p in (SOURCE / "rebar").iterdir() if not p.name.startswith(("__", "."))]
    assert {name.split(".")[0] for name in names if name != "py.typed"} <= BELOW.keys() | SHARED


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import rebar.service", "rebar.dataflow.text.stream"),
        ("from rebar.graph import runner", "rebar.hal.memory"),
        ("from rebar import service", "rebar.graph.kv"),
        ("import rebar", "rebar.graph.kv"),
        ("from ..service import engine", "rebar.graph.kv"),
        ("def f():\n    from rebar.dataflow import text", "rebar.graph.runner"),
        ("if TYPE_CHECKING:\n    from rebar.service import Model", "rebar.dataflow.text"),
        ("importlib.import_module('rebar.cli.main')", "rebar.service.http"),
        ("__import__('rebar.insight')", "rebar.verify.gates"),
        ("SPEC = 'rebar.insight.doctor:diagnose'", "rebar.service.http"),
    ],
)
def test_an_upward_import_is_caught(source: str, module: str) -> None:
    assert len(layer_violations(source, module)) == 1


@pytest.mark.parametrize(
    ("source", "module", "package"),
    [
        ("from rebar.hal import DeviceManager\nimport rebar.errors", "rebar.graph.kv", False),
        ("from rebar import _native", "rebar.dataflow.text", True),
        ("from . import stream\nfrom .stream import TextStream", "rebar.dataflow.text", True),
        ("from rebar.service import Model", "rebar", True),
        ("import numpy as np", "rebar.hal", True),
    ],
)
def test_a_downward_import_is_not(source: str, module: str, package: bool) -> None:
    assert layer_violations(source, module, package=package) == []


@pytest.mark.parametrize(
    "source",
    [
        "import ctypes",
        "from ctypes import CDLL",
        "def f():\n    import mmap",
        "import torch.cuda",
        "import os\nos.sched_setaffinity(0, {1})",
        "from os import sched_getaffinity",
        "from multiprocessing import shared_memory",
        "open('/dev/nvidia0')",
        "CDLL = 'libcuda.so.1'",
        "os.environ['CUDA_VISIBLE_DEVICES']",
    ],
)
def test_device_access_outside_hal_is_caught(source: str) -> None:
    assert device_violations(source, "rebar.graph.runner")
    assert device_violations(source, "rebar.hal.devices") == []


def test_a_docstring_may_speak_of_devices() -> None:
    assert device_violations('"""Reads /proc/meminfo through hal."""', "rebar.insight.doctor") == []


def test_reading_the_environment_is_caught() -> None:
    source = "import os, sys\na = os.environ.get('HOME'), os.getenv('HOME'), sys.argv[1]"
    assert len(environment_violations(source, "rebar.service.http")) == 3
    assert environment_violations(source, "rebar.cli.main") == []


# The copy must win over an installed rebar, whose finder stands before the path.
LINT = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
sys.path.insert(0, "src")
from importlinter.cli import lint_imports_command
lint_imports_command(["--no-cache", "pyproject.toml"])
"""


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over the copy of the sources in `folder`."""
    return subprocess.run(
        [sys.executable, "-c", LINT], cwd=folder, capture_output=True, text=True, check=False
    )


def test_import_linter_agrees_and_catches_a_lazy_violation(tmp_path: Path) -> None:
    shutil.copytree(SOURCE / "rebar", tmp_path / "src/rebar", ignore=shutil.ignore_patterns("*.so"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    kept = lint_imports(tmp_path)
    assert kept.returncode == 0, kept.stdout
    with (tmp_path / "src/rebar/hal/__init__.py").open("a") as hal:
        hal.write("\n\ndef f() -> None:\n    import rebar.service\n")
    broken = lint_imports(tmp_path)
    assert broken.returncode == 1
    said = " ".join(broken.stdout.split())
    assert "rebar.hal is not allowed to import rebar.service" in said
