"""What a start imports, verb by verb: a process begins with its imports, and one careless line at
the top of a file puts a web framework before the first token. No clock: names are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rebar.cli.main import main
from tests.tiny import tiny_gguf

# What a line of Python text needs that runs `rebar` with argv and tells what it imported.
RUN = """
import json, sys
from rebar.cli.main import main
code = main(sys.argv[1:])
sys.stderr.write(json.dumps(sorted(sys.modules)))
sys.exit(code)
"""
LIBRARY = "import json, sys, rebar; sys.stderr.write(json.dumps(sorted(sys.modules)))"

NEVER = {"torch", "transformers", "tokenizers", "huggingface_hub", "requests", "httpx", "openai"}
SERVER = {"fastapi", "starlette", "uvicorn", "uvloop", "pydantic", "prometheus_client", "asyncio"}
NETWORK = {"http.client", "urllib.request", "ssl", "socket", "subprocess"}
TEMPLATES = {"jinja2", "markupsafe"}
READERS = {
    f"rebar.graph.weights.{name}" for name in ("gguf", "safetensors", "hf_model", "source.hub")
}
ENGINE = {"numpy", "msgspec", "rebar._native", "rebar.hal", "rebar.graph", "rebar.service"}
METADATA = {"importlib.metadata", "email.message"}


def imported(program: str, *arguments: str) -> set[str]:
    """Modules of a fresh process that ran `program` to its end."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REBAR_")}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny .rebar file."""
    folder = tmp_path_factory.mktemp("start")
    target = folder / "tiny.rebar"
    assert main(["convert", str(tiny_gguf(folder)), str(target)]) == 0
    return str(target)


def generated(model: str, *flags: str) -> set[str]:
    return imported(RUN, "generate", "ab", "--model", model, "--max-tokens", "1", *flags)


def test_the_library_alone_imports_nothing() -> None:
    found = imported(LIBRARY)
    assert {name for name in found if name.startswith("rebar")} == {"rebar"}
    assert not found & (NEVER | SERVER | NETWORK | TEMPLATES | ENGINE | {"cyclopts", "rich"})


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "--help"), ("generate", "--help")])
def test_help_needs_no_engine_and_no_server(arguments: tuple[str, ...]) -> None:
    found = imported(RUN, *arguments)
    assert not found & (NEVER | SERVER | TEMPLATES | ENGINE)


def test_a_text_is_continued_without_server_network_or_templates(model: str) -> None:
    found = generated(model)
    assert not found & (NEVER | SERVER | NETWORK | TEMPLATES | READERS | METADATA | {"rich"})
    assert found >= ENGINE


def test_chat_adds_the_templates_and_nothing_else(model: str) -> None:
    more = generated(model, "--chat") - generated(model)
    assert more >= TEMPLATES
    assert not more & (NEVER | SERVER | READERS)


def test_another_kind_of_file_brings_its_reader(model: str, tmp_path: Path) -> None:
    """The check itself: what is imported is seen."""
    found = imported(RUN, "inspect", str(tiny_gguf(tmp_path)))
    assert "rebar.graph.weights.gguf" in found
    assert not found & (NEVER | SERVER)
