"""Every verb on a model: what it prints, for people and for machines."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any

import pytest

from rebar.cli.main import main
from tests.cli.test_main import SOURCE, START
from tests.tiny import tiny_config, tiny_gguf
from tests.tiny.adapter import tiny_adapter

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny random model, and a cache of the test's own."""
    monkeypatch.setenv("REBAR_CACHE", str(tmp_path / "cache"))
    return str(tiny_gguf(tmp_path))


def told(capsys: Capture, *arguments: str) -> Any:
    """The JSON a successful command printed."""
    assert main(arguments) == 0
    return json.loads(capsys.readouterr().out)


def test_tokenize(model: str, capsys: Capture) -> None:
    answer = told(capsys, "tokenize", "hello", "--model", model, "--json")
    assert answer["count"] == len(answer["ids"]) > 0
    assert main(["tokenize", "hello", "--model", model]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [int(row.split()[0]) for row in rows] == answer["ids"]


def test_convert_writes_once_unless_forced(model: str, tmp_path: Path, capsys: Capture) -> None:
    target = str(tmp_path / "out/model.rebar")
    made = told(capsys, "convert", model, target, "--json")
    assert made["nbytes"] == Path(target).stat().st_size
    assert main(["convert", model, target]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["convert", model, target, "--force"]) == 0
    assert main(["convert", model, str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_inspect_lists_every_tensor(model: str, capsys: Capture) -> None:
    facts = told(capsys, "inspect", model, "--json")
    assert facts["format"] == "gguf"
    assert facts["config"]["layers"] == 2
    assert sum(t["nbytes"] for t in facts["tensors"]) == facts["nbytes"]
    assert main(["inspect", model]) == 0
    assert "Tiny llama" in capsys.readouterr().out


def test_generate_streams_what_json_tells(model: str, capsys: Capture) -> None:
    flags = ["--model", model, "--max-tokens", "5", "--seed", "7"]
    answer = told(capsys, "generate", "ab", *flags, "--json")
    assert answer["completion_tokens"] <= 5
    assert answer["finish_reason"] in ("length", "stop")
    assert main(["generate", "ab", *flags]) == 0
    assert capsys.readouterr().out == answer["text"] + "\n"


def test_generate_says_what_is_wrong(model: str, capsys: Capture) -> None:
    assert main(["generate", "ab", "--model", model, "--temperature", "-1"]) == 2
    assert "temperature" in capsys.readouterr().err
    assert main(["generate", "a" * 1000, "--model", model]) == 2
    assert "128" in capsys.readouterr().err
    assert main(["generate", "ab", "--model", model, "--memory", "10KB"]) == 2
    assert "--memory" in capsys.readouterr().err


def test_chat_takes_lines_from_a_pipe(
    model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n\n/new\nb\n/exit\nc\n"))
    assert main(["chat", model, "--max-tokens", "3", "--temperature", "0"]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_doctor(model: str, capsys: Capture) -> None:
    findings = told(capsys, "doctor", model, "--port", "0", "--json")
    assert {f["state"] for f in findings} <= {"ok", "warn"}
    assert main(["doctor", model, "--port", "0"]) == 0
    assert "processor" in capsys.readouterr().out


def test_generate_answers_on_the_real_model(smollm2_path: Path, capsys: Capture) -> None:
    flags = ["--model", str(smollm2_path), "--max-tokens", "24", "--temperature", "0", "--json"]
    plain = told(capsys, "generate", "The capital of France is", *flags)
    assert plain["text"].startswith(" Paris")
    chat = told(capsys, "generate", "Why is the sky blue?", "--chat", *flags)
    assert "sky" in chat["text"].lower()
    assert chat["prompt_tokens"] > plain["prompt_tokens"]


def serve_ready(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The address that serve prints, and all it said before."""
    said = ""
    assert process.stderr
    for line in process.stderr:
        said += line
        if line.startswith("ready"):
            return line.split("start: ")[1].split(",")[0], said
    raise AssertionError(said)


def test_serve_says_what_it_does_answers_and_ends_cleanly(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START, "serve", str(tiny_gguf(tmp_path)), "--port", "0"]
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "REBAR_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            url, said = serve_ready(process)
            for phase in ("machine", "fetch", "convert", "kv", "total", "engine"):
                assert phase in said
            body = json.dumps({"prompt": "ab", "max_tokens": 3}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{url}/v1/completions", body, headers)
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert json.load(answer)["usage"]["completion_tokens"] <= 3
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
            assert time.monotonic() - begin < 5
        finally:
            process.kill()


def test_a_port_in_use_is_told_before_the_model_is_loaded(model: str, capsys: Capture) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert main(["serve", model, "--port", port]) == 2
    told = capsys.readouterr().err
    assert "--port" in told
    assert "machine" not in told


def test_input_that_is_no_text_ends_a_chat_with_a_message(
    model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))

    def broken(_: str) -> str:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    monkeypatch.setattr("builtins.input", broken)
    assert main(["chat", model]) == 2
    assert "UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "{text}", "--threads", "-3"], "--threads"),
        (["generate", "{text}", "--memory", "0"], "--memory"),
        (["generate", "{text}", "--max-tokens", "0"], "max_tokens"),
        (["generate", "{text}", "--max-context", "1000000"], "--max-context"),
        (["generate", ""], "no tokens"),
        (["serve", "{model}", "--port", "99999"], "65535"),
        (["serve", "pypi:../../x"], "no model name"),
        (["serve", "pypi:no-such-package", "--offline"], "--offline"),
    ],
)
def test_what_nobody_planned_for_is_told_with_its_next_step(
    model: str, capsys: Capture, arguments: list[str], message: str
) -> None:
    words = [word.format(text="ab", model=model) for word in arguments]
    extra = ["--model", model] if words[0] == "generate" else []
    assert main([*words, *extra]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.out == ""


def test_ctrl_c_ends_a_generation_with_130(smollm2_path: Path) -> None:
    """Counting on goes on and on. A job that a script starts in the background has SIGINT ignored,
    and so had the child when the whole suite ran as one: it is told to listen.
    """
    arguments = ["generate", "1, 2, 3, 4, 5, 6,", "--model", str(smollm2_path)]
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [sys.executable, "-c", listen + START, *arguments]
    command += ["--temperature", "0", "--max-tokens", "4000"]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(command, env=env, stdout=PIPE, stderr=PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.read(1)
        run.send_signal(signal.SIGINT)
        _, told = run.communicate(timeout=30)
    assert run.returncode == 130
    assert b"Traceback" not in told


def test_merge_writes_a_model_that_answers_as_its_adapter(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    """The scale is told; an adapter that is in there already is refused, a file is not replaced
    unasked.
    """
    adapter = str(tiny_adapter(tmp_path / "adapter", tiny_config(), r=4, lora_alpha=6))
    target = str(tmp_path / "merged.rebar")
    made = told(capsys, "merge", model, adapter, target, "--json")
    assert (made["changed"], made["scale"]) == ("14 matrices", "1.5")
    assert made["rounding"] == "0.00% of what the adapter adds"
    assert main(["merge", model, adapter, str(tmp_path / "q4.rebar"), "--type", "Q4_0"]) == 0
    assert "Rounding takes" not in capsys.readouterr().err  # of a large adapter
    small = str(tiny_adapter(tmp_path / "small", tiny_config(), r=4, size=0.01))
    assert main(["merge", model, small, str(tmp_path / "q4s.rebar"), "--type", "Q4_0"]) == 0
    assert "Choose --type auto or a float type" in capsys.readouterr().err
    assert main(["merge", model, adapter, target]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["merge", target, adapter, str(tmp_path / "twice.rebar")]) == 2
    assert "already" in capsys.readouterr().err
    assert main(["merge", target, adapter, target, "--force"]) == 2
    assert "is the model itself" in capsys.readouterr().err
    facts = told(capsys, "inspect", target, "--json")
    assert len(facts["provenance"]["merged_adapters"]) == 64
    flags = ["--max-tokens", "8", "--temperature", "0", "--json"]
    answers = [told(capsys, "generate", "ab", "--model", m, *flags) for m in (model, target)]
    assert answers[0]["text"] != answers[1]["text"]


def test_a_model_goes_out_as_a_folder_and_comes_back(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    """Merged or not; answers are those of the file. What a folder cannot hold, and a place that is
    taken, are told.
    """
    adapter = str(tiny_adapter(tmp_path / "adapter", tiny_config(), r=4))
    flags = ["--max-tokens", "8", "--temperature", "0", "--json"]

    def said(name: str, *more: str) -> str:
        return str(told(capsys, "generate", "ab", "--model", name, *flags, *more)["text"])

    plain, merged = str(tmp_path / "plain"), str(tmp_path / "merged")
    made = told(capsys, "convert", model, plain, "--as", "hf", "--json")
    assert made["target"] == plain
    assert made["nbytes"] == sum(path.stat().st_size for path in Path(plain).iterdir())
    assert said(plain) == said(model)
    made = told(capsys, "merge", model, adapter, merged, "--as", "hf", "--json")
    assert (made["changed"], made["scale"]) == ("14 matrices", "1")
    assert said(merged) == said(model, "--adapter", adapter)
    assert main(["merge", merged, adapter, str(tmp_path / "twice.rebar")]) == 2
    assert "already" in capsys.readouterr().err
    for verb in (["convert", model], ["merge", model, adapter]):
        assert main([*verb, plain, "--as", "hf"]) == 2
        assert "--force" in capsys.readouterr().err
        assert main([*verb, plain, "--as", "hf", "--force"]) == 0
        assert main([*verb, str(tmp_path / "q"), "--as", "hf", "--type", "Q8_0"]) == 2
        assert "a Hugging Face folder holds floats" in capsys.readouterr().err
        assert main([*verb, model, "--force"]) == 2
        assert "is the model itself" in capsys.readouterr().err


def test_no_verb_writes_over_its_own_model(model: str, tmp_path: Path, capsys: Capture) -> None:
    """`rebar merge model.gguf adapter model.gguf --force` replaced the file that was to be the way
    back: only the converted copy in the cache was compared with the target.
    """
    adapter = str(tiny_adapter(tmp_path / "adapter", tiny_config(), r=4))
    folder = tmp_path / "folder"
    assert main(["convert", model, str(folder), "--as", "hf"]) == 0
    parts = [folder / name for name in ("model.safetensors", "config.json")]
    for source, targets in ((Path(model), [Path(model)]), (folder, [*parts, folder])):
        for target in targets:
            before = target.stat()
            for verb in (["convert", str(source)], ["merge", str(source), adapter]):
                for form in ("rebar", "hf"):
                    assert main([*verb, str(target), "--as", form, "--force"]) == 2
            assert target.stat() == before
            assert "is the model itself" in capsys.readouterr().err


def test_matrices_take_other_types(model: str, tmp_path: Path, capsys: Capture) -> None:
    """By name, or those of another model: what was trained in float32 becomes as small as its
    base.
    """

    def types(target: str) -> dict[str, int]:
        return dict(told(capsys, "inspect", target, "--json")["types"])

    base, floats, again = (str(tmp_path / f"{name}.rebar") for name in ("q", "f", "a"))
    assert main(["convert", model, base, "--type", "Q4_0"]) == 0
    assert main(["convert", base, floats, "--type", "F32"]) == 0
    assert main(["convert", floats, again, "--types-of", base]) == 0
    capsys.readouterr()
    assert set(types(base)) == {"F32", "Q4_0"}
    assert set(types(floats)) == {"F32"}
    assert types(again) == types(base)
    odd = ["convert", model, str(tmp_path / "k.rebar"), "--type", "Q4_K"]
    assert main(odd) == 2
    assert "rows of 64 values, which Q4_K cannot hold" in capsys.readouterr().err
    assert main(["convert", model, again, "--force", "--types-of", base, "--type", "F16"]) == 2
    assert "--types-of goes with --as rebar" in capsys.readouterr().err


def test_an_adapter_is_no_model_but_can_be_looked_at(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    """Given as MODEL it was "config.json cannot be opened", with nothing about what it is."""
    folder = str(tiny_adapter(tmp_path / "adapter", tiny_config(), r=4, lora_alpha=6))
    facts = told(capsys, "inspect", folder, "--json")
    assert (facts["rank"], facts["scale"], facts["modules"]) == (4, 1.5, 14)
    assert (facts["base"], facts["trained_on"], len(facts["digest"])) == ("tiny", "", 64)
    assert main(["inspect", folder]) == 0
    assert "q_proj, k_proj" in capsys.readouterr().out
    swapped = (["merge", folder, model, "x.rebar"], ["convert", folder, "x.rebar"])
    for verb in (*swapped, ["generate", "ab", "--model", folder]):
        assert main(verb) == 2
        assert "is an adapter, and no model. Give the model" in capsys.readouterr().err


def test_generate_takes_an_adapter(model: str, tmp_path: Path, capsys: Capture) -> None:
    folder = str(tiny_adapter(tmp_path / "adapter", tiny_config(), r=4))
    flags = ["--model", model, "--max-tokens", "8", "--temperature", "0", "--json"]
    base = told(capsys, "generate", "ab", *flags)["text"]
    changed = told(capsys, "generate", "ab", *flags, "--adapter", folder)["text"]
    assert changed != base
    assert told(capsys, "generate", "ab", *flags, "--adapter", f"a={folder}")["text"] == changed
    assert main(["generate", "ab", *flags, "--adapter", str(tmp_path)]) == 2
    assert "adapter_config.json" in capsys.readouterr().err
