"""The table of cases tells the truth: every case of the groups has its tests or a reason, and each
test exists and says which case it is.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.service.cases import GROUPS, LATER, TESTS

FOLDER = Path(__file__).parents[1]
IDS = [f"A-{group}{i + 1}" for group, count in GROUPS.items() for i in range(count)]


@cache
def functions(path: str) -> dict[str, str]:
    """Tests of a file and what their docstrings say."""
    tree = ast.parse((FOLDER / path).read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_docstring(node) or "" for node in found}


@pytest.mark.parametrize("case", IDS)
def test_every_case_has_its_tests(case: str) -> None:
    assert (case in TESTS) != (case in LATER), "tests or a reason, one of them"
    for path, names in TESTS.get(case, {}).items():
        for name in names:
            assert name.startswith("test_")
            assert name in functions(path), f"{path} has no {name}"
            assert case in functions(path)[name], f"{path}::{name} does not say {case}"


def test_the_table_has_nothing_else() -> None:
    assert set(TESTS) | set(LATER) == set(IDS)
    assert all(reason for reason in LATER.values())
