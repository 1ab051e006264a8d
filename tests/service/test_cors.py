"""Pages of other origins: off unless allowed, exact, on streams and on errors."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from rebar.errors import InputError
from rebar.service.http.access import Access
from rebar.service.http.cors import ANY, checked_origins
from rebar.service.http.keys import ApiKeys, NamedKey
from tests.service.fakes import ScriptedRunner, failing, words
from tests.service.live import CHAT, PROBE, Live, serving

APP, KEY = "https://app.example", "sk-1"
ALLOW = "access-control-allow-origin"


@pytest.fixture(scope="module")
def web_server() -> Iterator[Live]:
    access = Access(
        keys=ApiKeys([NamedKey("", KEY)]), origins=checked_origins([APP, "http://localhost:3000"])
    )
    with serving(ScriptedRunner(), access=access, key=KEY) as server:
        yield server


@pytest.fixture
def web(web_server: Live) -> Iterator[Live]:
    web_server.runner.reset()
    yield web_server
    web_server.probe()


def preflight(live: Live, origin: str) -> httpx.Response:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }
    return httpx.options(live.url + CHAT, headers=headers, trust_env=False)


def test_off_by_default(live: Live) -> None:
    """Nothing is said of origins, and a pre-flight is an unknown method."""
    live.runner.script = words("hello")
    answer = live.http.post(CHAT, json=PROBE, headers={"Origin": APP})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert preflight(live, APP).status_code == 405


def test_a_preflight_needs_no_key(web: Live) -> None:
    answer = preflight(web, APP)
    assert answer.status_code == 204
    assert answer.headers[ALLOW] == APP
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
    assert "Origin" in answer.headers["vary"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    ["https://app.example.evil", "http://app.example", "https://app.example:444", "null", "",
     "https://APP.example", "http://localhost:3001"],
)  # fmt: skip
def test_other_origins_are_told_nothing(web: Live, origin: str) -> None:
    refused = preflight(web, origin)
    assert refused.status_code == 403
    assert ALLOW not in refused.headers
    web.runner.script = words("hello")
    answer = web.http.post(CHAT, json=PROBE, headers={"Origin": origin})
    assert answer.status_code == 200
    assert ALLOW not in answer.headers
    assert answer.headers["vary"] == "Origin"


def test_on_streams_and_errors(web: Live) -> None:
    """A page that cannot read a refusal shows "network error" instead of what went wrong."""
    headers = {"Origin": APP}
    web.runner.script = words("hello")
    stream = web.http.post(CHAT, json={**PROBE, "stream": True}, headers=headers)
    assert stream.text.endswith("[DONE]\n\n")
    bad = web.http.post(CHAT, json={**PROBE, "temperature": 99}, headers=headers)
    lost = web.http.get("/nowhere", headers=headers)
    closed = httpx.post(web.url + CHAT, json=PROBE, headers=headers, trust_env=False)
    web.runner.before = failing()
    broken = web.http.post(CHAT, json=PROBE, headers=headers)
    answers = [stream, bad, lost, closed, broken]
    assert [a.status_code for a in answers] == [200, 400, 404, 401, 500]
    assert [a.headers[ALLOW] for a in answers] == [APP] * 5
    assert all("X-Request-Id" in a.headers["access-control-expose-headers"] for a in answers)


def test_any_origin_when_asked_for() -> None:
    runner = ScriptedRunner()
    with serving(runner, access=Access(origins=(ANY,))) as live:
        assert preflight(live, "https://whoever.example").headers[ALLOW] == "*"
        runner.script = words("hello")
        assert live.http.post(CHAT, json=PROBE, headers={"Origin": "null"}).headers[ALLOW] == "*"
        assert ALLOW not in live.http.post(CHAT, json=PROBE).headers
        live.probe()


@pytest.mark.parametrize(
    "origin", ["app.example", "https://app.example/", "https://app.example/x", "https://*.example",
               "HTTPS://app.example", "null", "", "https://a b"],
)  # fmt: skip
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(InputError, match="is no origin"):
        checked_origins([origin])
