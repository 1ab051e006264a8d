"""The command as a user meets it: exit codes, messages, what is imported and how fast."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rebar.cli.main import main, report
from rebar.errors import EngineError, InputError

SOURCE = Path(__file__).parents[2] / "src"
START = "import sys; from rebar.cli.main import main; sys.exit(main())"


def rebar(
    *arguments: str, env: dict[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Runs the command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", START, *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **(env or {})},
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_version_is_one_line_of_json() -> None:
    done = rebar("version", "--json")
    assert done.returncode == 0
    assert done.stderr == b""
    assert json.loads(done.stdout)["rebar"]
    assert done.stdout.count(b"\n") == 1


def cpu_seconds() -> float:
    """Processor time of all child processes so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    # Processor time, the best of three: what is measured is the program, not the machine's day.
    seconds = []
    for _ in range(3):
        begin = cpu_seconds()
        done = rebar("--help")
        seconds.append(cpu_seconds() - begin)
        assert done.returncode == 0
        assert b"serve" in done.stdout
    assert min(seconds) < 0.3
    script = (
        "import sys; from rebar.cli.main import main; main(['--help'])\n"
        "bad = {'numpy', 'fastapi', 'rebar.graph', 'rebar.service'} & sys.modules.keys()\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "frobnicate"),
        (["version", "--jsn"], "--jsn"),
        (["tokenize"], "--text"),
        (["serve", "--port", "many"], "many"),
        (["serve", "--memory", "lots"], "Write it like 4GB"),
        (["version", "--config", "no/such.toml"], "no/such.toml"),
    ],
)
def test_a_mistake_is_told_in_a_few_lines_with_code_2(arguments: list[str], message: str) -> None:
    done = rebar(*arguments)
    assert done.returncode == 2
    assert message in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 6
    assert done.stdout == b""


def test_an_unknown_variable_is_refused() -> None:
    done = rebar("version", env={"REBAR_PROT": "1"})
    assert done.returncode == 2
    assert b"REBAR_PROT" in done.stderr


def test_settings_flag_over_file_over_variable(tmp_path: Path) -> None:
    path = tmp_path / "rebar.toml"
    path.write_text("[version]\njson = true\n")
    assert rebar("version", "--config", str(path)).stdout.startswith(b"{")
    assert rebar("version", env={"REBAR_JSON": "true"}).stdout.startswith(b"{")
    path.write_text("[version]\njson = false\n")
    both = rebar("version", "--config", str(path), env={"REBAR_JSON": "true"})
    assert not both.stdout.startswith(b"{")
    flag = rebar("version", "--json", "--config", str(path))
    assert flag.stdout.startswith(b"{")


def test_an_unknown_key_of_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rebar.toml"
    path.write_text("[version]\njsn = true\n")
    done = rebar("version", "--config", str(path))
    assert done.returncode == 2
    assert b"jsn" in done.stderr


def test_errors_of_ours_are_1_and_of_the_caller_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(InputError("No. Do this.")) == 2
    assert report(EngineError("Broke.")) == 1
    assert report(ZeroDivisionError()) == 1
    told = capsys.readouterr().err
    assert "rebar: No. Do this.\n" in told
    assert "ZeroDivisionError" in told


def test_debug_shows_the_traceback() -> None:
    done = rebar("version", "--debug", "--config", "no/such.toml")
    assert b"Traceback" in done.stderr


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("rebar.cli.main.build_app", interrupted)
    assert main([]) == 130


def test_a_reader_that_leaves_is_no_error() -> None:
    """`rebar --help | head -1` must not end in a traceback about a broken pipe."""
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", START, "version"],
        env=env,
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert b"Traceback" not in done.stderr
