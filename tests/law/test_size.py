"""No file over 400 lines, no function over 60: in Python and in C++, sources and tests alike."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES = 400
FUNCTION_LINES = 60
NOT_A_FUNCTION = re.compile(
    r"\s*(}? ?else|if|for|while|switch|do|try|namespace|struct|class|extern|#)\b"
)


def sources(*suffixes: str) -> list[Path]:
    """The project's own files, as git knows them; all files where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.split("\0") if listed.returncode == 0 else []
    folders = ("native", "src", "tests", "bench")
    paths = [ROOT / n for n in names] or [p for f in folders for p in (ROOT / f).rglob("*")]
    return sorted(p for p in paths if p.suffix in suffixes and p.is_file())


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield node.name, node.end_lineno - node.lineno + 1


def native_functions(text: str) -> Iterator[tuple[str, int]]:
    """(first line, lines) of every function body, by clang-format's indentation: it opens with the
    `{` that ends a statement with parentheses and closes with the `}` under that statement."""
    start, begun = 0, ""
    opened: list[tuple[int, str, int]] = []
    for number, line in enumerate(text.split("\n")):
        indent = len(line) - len(line.lstrip())
        if opened and line.strip().startswith("}") and indent <= opened[-1][2]:
            first, name, _ = opened.pop()
            yield name, number - first + 1
        if not begun:
            start, begun = number, line
        if line.endswith("{") and "(" in begun and not NOT_A_FUNCTION.match(begun):
            opened.append((start, begun.strip(), len(begun) - len(begun.lstrip())))
        if not line.strip() or line.rstrip()[-1] in ";{}:" or line.lstrip().startswith(("//", "#")):
            begun = ""


def test_files_are_short() -> None:
    lengths = {p: len(p.read_text().splitlines()) for p in sources(".py", ".cpp", ".h", ".cu")}
    assert {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > FILE_LINES} == {}


@pytest.mark.parametrize("language", ["python", "native"])
def test_functions_are_short(language: str) -> None:
    reader, suffixes = {
        "python": (python_functions, (".py",)),
        "native": (native_functions, (".cpp", ".h", ".cu")),
    }[language]
    found = [
        (str(path.relative_to(ROOT)), name, lines)
        for path in sources(*suffixes)
        for name, lines in reader(path.read_text())
        if lines > FUNCTION_LINES
    ]
    assert found == []


def test_a_long_function_is_caught() -> None:
    body = "  x();\n  if (y(1)) {\n    z();\n  }\n" * 15
    plain = f"static int f(int a) {{\n{body}}}\n"
    assert list(native_functions(plain)) == [("static int f(int a) {", 62)]
    wrapped = f"int long_name(int first,\n              int second) {{\n{body}}}\n"
    assert [lines for _, lines in native_functions(wrapped)] == [63]
    assert list(python_functions("def f():\n" + "    x()\n" * 60)) == [("f", 61)]
