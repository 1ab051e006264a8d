"""API keys and tenants: who gets in, whose history and whose computed prompts they share."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rebar.cli.options import AccessFlags
from rebar.errors import InputError
from rebar.service.http.access import Access
from rebar.service.http.keys import MAX_GIVEN, ApiKeys, Holder, NamedKey, read_keys, tenant_of
from tests.service.fakes import ScriptedRunner, words
from tests.service.live import CHAT, NAME, PROBE, Live, serving

ALICE, BOB, PLAIN_KEY = "sk-alice-1", "sk-bob:with:colons", "sk-nobody-in-particular"
KEYS = [
    NamedKey("alice", ALICE),
    NamedKey("alice", "sk-alice-2"),
    NamedKey("bob", BOB),
    NamedKey("", PLAIN_KEY),
]
OPEN_PATHS = ["/health", "/health/ready", "/health/live", "/metrics"]


@pytest.fixture(scope="module")
def locked_server() -> Iterator[Live]:
    access = Access(keys=ApiKeys(KEYS))
    with serving(ScriptedRunner(), access=access, key=ALICE) as server:
        yield server


@pytest.fixture
def locked(locked_server: Live) -> Iterator[Live]:
    locked_server.runner.reset()
    yield locked_server
    locked_server.probe()


def ask(live: Live, headers: Any, path: str = CHAT) -> httpx.Response:
    with httpx.Client(base_url=live.url, trust_env=False, timeout=20) as http:
        return http.post(path, json=PROBE, headers=headers)


@pytest.mark.parametrize("key", [ALICE, "sk-alice-2", BOB, PLAIN_KEY])
@pytest.mark.parametrize(
    "form", ["Authorization: Bearer {}", "authorization: bEaReR  {}", "x-api-key: {}"]
)
def test_every_key_opens_in_every_form(locked: Live, key: str, form: str) -> None:
    locked.runner.script = words("hello")
    name, value = form.format(key).split(": ", 1)
    assert ask(locked, {name: value}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": ALICE},
        {"Authorization": f"Basic {ALICE}"},
        {"Authorization": f"Bearer {ALICE}x"},
        {"Authorization": f"Bearer {ALICE[:-1]}"},
        {"Authorization": f"Bearer {ALICE.upper()}"},
        {"x-api-key": ""},
        {"x-api-key": "clé".encode()},
        {"x-api-key": b"\xff\xfe\x80"},
        {"Authorization": b"Bearer \xe9\xa9"},
        {"x-api-key": "k" * 50_000},
        {"Authorization": "Bearer " + " " * 20_000 + "x"},
    ],
    ids=lambda headers: str(headers)[:40],
)
def test_everything_else_is_a_401(locked: Live, headers: dict[str, Any]) -> None:
    """Byte strings that are no text made `compare_digest` of strings raise, and that a 500."""
    answer = ask(locked, headers)
    assert answer.status_code == 401
    error = answer.json()["error"]
    assert error["code"] == "invalid_api_key"
    assert error["type"] == "invalid_request_error"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(key=st.binary(max_size=64), name=st.sampled_from([b"x-api-key", b"authorization"]))
def test_any_bytes_of_a_header(locked_server: Live, key: bytes, name: bytes) -> None:
    """Over a bare socket: no client library stands between."""
    raw = bytes(byte for byte in key if byte not in b"\r\n\0")
    value = b"Bearer " + raw if name == b"authorization" else raw
    with socket.create_connection(("127.0.0.1", locked_server.port), 5) as sock:
        head = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        sock.sendall(head + name + b": " + value + b"\r\n\r\n")
        status = sock.makefile("rb").readline().split()[1]
    assert status in (b"401", b"400"), status  # 400: bytes that HTTP itself does not allow


def test_paths_without_a_key(locked: Live) -> None:
    """Machines that watch the server have none; every other path, known or not, is closed."""
    with httpx.Client(base_url=locked.url, trust_env=False) as http:
        assert [http.get(path).status_code for path in OPEN_PATHS] == [200] * 4
        closed = ["/v1/models", "/openapi.json", "/nothing", "/v1/requests/x", "/health/"]
        assert [http.get(path).status_code for path in closed] == [401] * 5


def test_the_official_client(locked: Live) -> None:
    locked.runner.script = words("hello")
    with openai.OpenAI(base_url=f"{locked.url}/v1", api_key=BOB, max_retries=0) as client:
        assert client.models.list().data[0].id == NAME
    wrong = openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError) as refused:
        wrong.models.list()
    assert refused.value.code == "invalid_api_key"


def test_a_tenant_sees_its_own_history(locked: Live) -> None:
    """Two tenants may use one request id: each finds its own, and nobody another's."""
    locked.runner.script = words("hello")
    headers = {"X-Request-Id": "mine"}
    for key, tokens in ((ALICE, 1), (BOB, 2)):
        body = {**PROBE, "max_tokens": tokens}
        answer = locked.http.post(
            CHAT, json=body, headers={**headers, "x-api-key": key, "Authorization": ""}
        )
        assert answer.status_code == 200

    def story(key: str) -> httpx.Response:
        with httpx.Client(base_url=locked.url, trust_env=False) as http:
            return http.get("/v1/requests/mine", headers={"x-api-key": key})

    states = [story(key).json()["choices"][0]["state"] for key in (ALICE, "sk-alice-2", BOB)]
    assert states == ["length", "length", "stop"]
    assert story(PLAIN_KEY).status_code == 404


def test_tenants_share_no_computed_prompt(locked: Live) -> None:
    """What one tenant asked must not show in the time or the usage of another's answer."""
    locked.runner.script = words("hello")
    messages = [{"role": "user", "content": "a prompt of more than one block of sixteen ids"}]

    def cached(key: str) -> int:
        body = {"messages": messages, "max_tokens": 2}
        answer = ask_with(locked, key, body)
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(ALICE) == 0
    assert cached("sk-alice-2") > 0  # one tenant, another key
    assert cached(BOB) == 0
    assert cached(PLAIN_KEY) == 0


def ask_with(live: Live, key: str, body: object) -> httpx.Response:
    with httpx.Client(base_url=live.url, trust_env=False, timeout=20) as http:
        return http.post(CHAT, json=body, headers={"x-api-key": key})


def test_keys_are_never_logged(locked: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        locked.runner.script = words("hello")
        answers = [ask(locked, {"x-api-key": key}) for key in (BOB, PLAIN_KEY, "sk-wrong-one")]
    assert [answer.status_code for answer in answers] == [200, 200, 401]
    said = caplog.text + "".join(str(a.headers) + a.text for a in answers)
    assert "tenant=bob" in caplog.text
    assert f"tenant={tenant_of(PLAIN_KEY)}" in caplog.text
    for secret in (BOB, PLAIN_KEY, "sk-wrong-one"):
        assert secret not in said
    assert PLAIN_KEY not in repr(locked.service.__dict__)


def test_every_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same work for the first, the last and no key: as many comparisons as there are keys."""
    import hmac

    keys, real, count = ApiKeys(KEYS), hmac.compare_digest, [0]

    def counting(a: bytes, b: bytes) -> bool:
        count[0] += 1
        assert len(a) == len(b) == 32
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    for given_key in (ALICE, BOB, "", "x" * 10_000):
        count[0] = 0
        keys.holder([given_key.encode()])
        assert count[0] == len(KEYS)
    assert keys.holder([b"no"] * MAX_GIVEN + [ALICE.encode()]) is None
    assert keys.holder([b"no", ALICE.encode()]) == Holder("alice", admin=False)


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# ours\n\n alice : {ALICE} \r\nbob:{BOB}\tadmin\n{PLAIN_KEY}\nadmin admin\n")
    assert read_keys(path) == [
        NamedKey("alice", ALICE),
        NamedKey("bob", BOB, admin=True),
        NamedKey("", PLAIN_KEY),
        NamedKey("", "admin", admin=True),
    ]
    flags = AccessFlags(api_key=("sk-flag", "sk-both"), admin_key=("sk-both",), api_keys_file=path)
    keys = flags.access().keys
    assert (len(keys), keys.admins) == (6, 3)
    assert keys.holder([b"sk-flag"]) == Holder(tenant_of("sk-flag"), admin=False)
    assert keys.holder([b"sk-both"]) == Holder(tenant_of("sk-both"), admin=True)
    assert keys.holder([BOB.encode()]) == Holder("bob", admin=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no key"),
        ("# only\n", "has no key"),
        ("alice:", "line 1"),
        (":sk-secret", "no name before the colon"),
        ("a b:sk-secret", "line 1.*name"),
        ("ok:fine\nalice:sk secret", "line 2"),
        ("alice:sk-secret root", "line 1"),
        ("alice: admin", "line 1"),
        ("alice:sk-secret\nbob:sk-secret", "two tenants"),
    ],
)
def test_a_file_that_means_nothing_names_the_line_and_no_key(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        AccessFlags(api_keys_file=path).access()
    assert "secret" not in str(refused.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_keys(path)
    with pytest.raises(InputError, match="No such file"):
        read_keys(tmp_path / "none")
