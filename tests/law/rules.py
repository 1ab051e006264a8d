"""The layer law as code: what a file imports, lazily or not, and which device names it touches.

Works on the text of a file and its module name, so that tests can show a violation being caught.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

# A layer may use the names of the layers it maps to. verify and insight are neighbours.
ORDER = ("hal", "graph", "dataflow", "service")
BELOW: dict[str, frozenset[str]] = {
    layer: frozenset(ORDER[: i + 1]) for i, layer in enumerate(ORDER)
} | {
    "verify": frozenset((*ORDER, "verify")),
    "insight": frozenset((*ORDER, "insight")),
    "cli": frozenset((*ORDER, "verify", "insight", "cli")),
}
SHARED = frozenset({"errors", "_native"})

DEVICE_MODULES = {"cffi", "ctypes", "cuda", "cupy", "fcntl", "mmap", "numa", "numba", "pycuda"}
DEVICE_MODULES |= {"pynvml", "torch", "triton"}
DEVICE_ATTRIBUTES = re.compile(
    r"os\.(sched_\w+|mlock\w*|memfd_create|cpu_count|process_cpu_count|sysconf|posix_fadvise)$"
    r"|multiprocessing\.shared_memory"
)
DEVICE_STRINGS = re.compile(
    r"/dev/|/proc/|/sys/|lib(cuda|cudart|cublas|nvrtc|numa)[\w.]*\.so|CUDA_"
)
MODULE_STRING = re.compile(r"rebar\.(\w+)(\.\w+)*(:\w+)?$")


@dataclass(frozen=True, slots=True)
class Violation:
    """Where the law is broken and by what."""

    module: str
    line: int
    what: str


def imports(tree: ast.AST, module: str, *, package: bool = False) -> Iterator[tuple[int, str]]:
    """Every (line, absolute module) that the file imports: at the top, inside functions, for type
    checkers only, or by name through a string such as importlib's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module, package)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Constant):
            named = MODULE_STRING.match(str(node.value))
            # Other dotted names, such as entry point groups, are no modules.
            if named and named[1] in BELOW:
                yield node.lineno, str(node.value).replace(":", ".")


def _absolute(node: ast.ImportFrom, module: str, package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    base = parts[: len(parts) - node.level + package]
    return ".".join([*base, node.module] if node.module else base)


def layer_violations(source: str, module: str, *, package: bool = False) -> list[Violation]:
    """Imports of `module` ("rebar.graph.kv") that do not point down. The root and its door,
    `python -m rebar`, may use all.
    """
    parts = module.split(".")
    if len(parts) < 2 or parts[1] == "__main__":
        return []
    allowed = BELOW.get(parts[1], frozenset()) | SHARED
    found = []
    for line, target in imports(ast.parse(source), module, package=package):
        head, *rest = target.split(".")
        if head == "rebar" and (not rest or rest[0] not in allowed):
            found.append(Violation(module, line, f"imports {target}"))
    return found


def device_violations(source: str, module: str) -> list[Violation]:
    """Device access outside hal: driver modules, scheduling calls, device files, CUDA names."""
    if module.startswith("rebar.hal"):
        return []
    tree = ast.parse(source)
    docs = set(_docstrings(tree))
    found = [
        Violation(module, line, f"imports {target}")
        for line, target in imports(tree, module)
        if target.split(".")[0] in DEVICE_MODULES or DEVICE_ATTRIBUTES.match(target)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and DEVICE_ATTRIBUTES.match(ast.unparse(node)):
            found.append(Violation(module, node.lineno, f"uses {ast.unparse(node)}"))
        elif isinstance(node, ast.Constant) and node not in docs:
            text = node.value if isinstance(node.value, str) else ""
            if DEVICE_STRINGS.search(text):
                found.append(Violation(module, node.lineno, f"names {text!r}"))
    return found


def environment_violations(source: str, module: str) -> list[Violation]:
    """argv and the environment are read by cli alone."""
    if module.startswith("rebar.cli"):
        return []
    banned = re.compile(r"(os\.(environb?|getenvb?|putenv)|sys\.argv)$")
    return [
        Violation(module, node.lineno, f"reads {ast.unparse(node)}")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and banned.match(ast.unparse(node))
    ]


def _docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value
