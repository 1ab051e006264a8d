"""What operators copy: every name in it exists, every number fits the server's own."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import socket
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from rebar.cli.main import VERBS
from rebar.cli.notify import tell_manager
from rebar.cli.settings import FLAGS, read_file
from rebar.service.http.reading import MAX_BODY_BYTES
from tests.service.fakes import ScriptedRunner
from tests.service.live import serving
from tools import make_dashboard

DEPLOY = Path(__file__).parents[2] / "deploy"
METRIC = re.compile(r"\b(?:rebar|hal|cge|dfp|sg)_[a-z_]+\b")
PARTS = ("_bucket", "_count", "_sum")


@pytest.fixture(scope="module")
def exposed() -> set[str]:
    """Names of all metrics of a running server."""
    with serving(ScriptedRunner()) as live:
        text = live.http.get("/metrics").text
    return set(re.findall(r"^# TYPE (\S+) ", text, re.M))


def named(text: str) -> set[str]:
    """Metrics that a text speaks of, parts of a histogram as the histogram."""
    found = set(METRIC.findall(text))
    for part in PARTS:
        found = {name.removesuffix(part) for name in found}
    return found


@pytest.mark.parametrize("file", ["grafana.json", "alerts.yml", "README.md"])
def test_every_metric_exists(file: str, exposed: set[str]) -> None:
    """A panel without data looks like a service without trouble."""
    found = named((DEPLOY / file).read_text()) - {"rebar_llm"}
    assert found
    assert found <= exposed


def test_a_metric_that_does_not_exist_is_told(exposed: set[str]) -> None:
    assert named("rate(rebar_nonsense_total[5m])") - exposed == {"rebar_nonsense_total"}
    assert named("rebar_e2e_request_latency_seconds_bucket") <= exposed


def test_the_dashboard_is_what_its_script_writes() -> None:
    """After a change: python tools/make_dashboard.py"""
    assert (DEPLOY / "grafana.json").read_text() == make_dashboard.text()
    panels = json.loads(make_dashboard.text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    assert len(places) == len(panels), "two panels in one place"


def test_alerts_have_a_next_step() -> None:
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 7
    for rule in rules:
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert rule["annotations"]["action"]
        assert rule["labels"]["severity"] in ("page", "warn")
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert scrape["scrape_configs"][0]["job_name"] == "rebar"


@pytest.fixture(scope="module")
def unit() -> dict[str, list[str]]:
    """Keys of the service's section with their values."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / "rebar.service").read_text())
    return {key: value.split() for key, value in parser["Service"].items()}


def test_the_unit_gives_a_drain_its_time(unit: dict[str, list[str]]) -> None:
    words = unit["ExecStart"]
    drain = float(words[words.index("--drain-timeout") + 1])
    # After the drain two seconds for connections (uvicorn) and ten for the engine's end.
    assert float(unit["TimeoutStopSec"][0]) >= drain + 12
    assert unit["KillSignal"] == ["SIGTERM"]
    # The engine must not get the signal: it would leave in the middle of what is drained.
    assert unit["KillMode"] == ["mixed"]


def test_the_unit_calls_the_server_with_flags_that_there_are(unit: dict[str, list[str]]) -> None:
    flags = {w[2:].replace("-", "_") for w in unit["ExecStart"] if w.startswith("--")}
    assert flags - {"config"} <= FLAGS
    assert unit["ExecStart"][1] in VERBS
    table = read_file(DEPLOY / "rebar.toml", tuple(VERBS))["serve"]
    assert set(table) <= FLAGS
    assert tomllib.loads((DEPLOY / "rebar.toml").read_text())["serve"] == table


def test_the_unit_is_valid(tmp_path: Path) -> None:
    if not (analyze := shutil.which("systemd-analyze")):
        pytest.skip("systemd-analyze is not here")
    text = (DEPLOY / "rebar.service").read_text()
    (tmp_path / "rebar.service").write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", text))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(tmp_path / "rebar.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "rebar.service:" not in done.stderr, done.stderr


def test_proxies_take_what_the_server_takes() -> None:
    """A smaller limit in front would answer with a page of HTML where clients expect JSON."""
    nginx = re.search(r"client_max_body_size (\d+)m;", (DEPLOY / "nginx.conf").read_text())
    caddy = re.search(r"max_size (\d+)MB", (DEPLOY / "Caddyfile").read_text())
    assert nginx
    assert caddy
    assert int(nginx[1]) * 2**20 > MAX_BODY_BYTES
    assert int(caddy[1]) * 10**6 > MAX_BODY_BYTES


def test_a_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not tell_manager("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    assert not tell_manager("READY=1")
    for address in (str(tmp_path / "notify"), f"@rebar-test-{tmp_path.name}-{id(tmp_path)}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address.replace("@", "\0", 1))
            manager.settimeout(5)
            monkeypatch.setenv("NOTIFY_SOCKET", address)
            assert tell_manager("READY=1")
            assert manager.recv(100) == b"READY=1"
