"""The doctor: what is well is ok, what is not has its next step."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rebar.insight import doctor
from rebar.insight.doctor import Finding, Subject, as_json, diagnose, report
from tests.tiny import tiny_gguf


def subject(tmp_path: Path, **changes: object) -> Subject:
    values: dict[str, object] = {
        "cache": tmp_path / "cache",
        "hub": "http://127.0.0.1:9",
        "model": str(tiny_gguf(tmp_path)),
        "host": "127.0.0.1",
        "port": 0,
    }
    return Subject(**(values | changes))  # type: ignore[arg-type]


def finding(what: str, about: Subject) -> Finding:
    (found,) = (f for f in diagnose(about) if f.what == what)
    return found


def test_a_sound_machine_has_nothing_that_fails(tmp_path: Path) -> None:
    findings = diagnose(subject(tmp_path))
    assert [f for f in findings if f.state == "fail"] == []
    assert len({f.what for f in findings}) == len(findings)
    assert all(f.next_step for f in findings if f.state != "ok")


def test_a_port_in_use_is_told_with_another(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = finding("port", subject(tmp_path, port=port))
    assert found.state == "warn"
    assert f"--port {port + 1}" in found.next_step


def test_an_instruction_set_that_is_not_here_fails(tmp_path: Path) -> None:
    found = finding("processor", subject(tmp_path, isa="z80"))
    assert found.state == "fail"
    assert "REBAR_ISA=z80" in found.next_step


def test_a_missing_library_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy>=1", "no-such-library>=2; python_version > '3'", "ruff>=1; extra == 'dev'"]
    monkeypatch.setattr("rebar.insight.doctor.metadata.requires", lambda _: wanted)
    found = finding("libraries", subject(tmp_path))
    assert found.state == "fail"
    assert found.says == "missing: no-such-library"


def test_a_module_of_another_version_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of this very tree passes: a kernel struct grew, the doctor was forgotten, and told
    everybody with a fresh build to build again.
    """
    assert finding("native module", subject(tmp_path)).state == "ok"
    monkeypatch.setattr(doctor, "ABI", doctor.ABI + 1)
    assert finding("native module", subject(tmp_path)).state == "fail"


def test_a_kernel_that_computes_something_else_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = doctor._gated

    def wrong(device: str, isa: str | None) -> NDArray[np.float32]:
        return right(device, isa) + np.float32(isa == "scalar")

    monkeypatch.setattr(doctor, "_gated", wrong)
    found = finding("kernels", subject(tmp_path))
    assert found.state == "fail"
    assert "Build again" in found.next_step


def test_too_little_memory_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_MEMORY", 1 << 60)
    found = finding("memory", subject(tmp_path))
    assert found.state == "fail"
    assert "limit" in found.next_step


def test_a_cache_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = finding("cache", subject(tmp_path, cache=tmp_path / "file/cache"))
    assert found.state == "fail"
    assert "REBAR_CACHE" in found.next_step


def test_a_model_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    found = finding("model", subject(tmp_path, model="pypi:no-such-model"))
    assert found.state == "warn"
    assert found.next_step


def test_findings_as_text_and_as_json(tmp_path: Path) -> None:
    findings = [Finding("a", "ok", "well"), Finding("b", "fail", "broken", "mend it")]
    assert list(report(findings))[-1].strip() == "-> mend it"
    assert json.loads(as_json(findings))[1] == {
        "what": "b",
        "state": "fail",
        "says": "broken",
        "next_step": "mend it",
    }
