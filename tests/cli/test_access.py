"""Keys and origins on their way from flag, file and variable to the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from rebar.cli.main import build_app, main
from rebar.cli.serve import _who_may_ask
from rebar.service.http.access import Access
from rebar.service.http.keys import ApiKeys, NamedKey, tenant_of


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Access]:
    """What `rebar serve` would have started with."""
    seen: list[Access] = []

    def serve(*_: object, access: Access, **__: object) -> None:
        seen.append(access)

    monkeypatch.setattr("rebar.service.server.serve", serve)
    for variable in ("REBAR_API_KEY", "REBAR_ADMIN_KEY"):
        monkeypatch.delenv(variable, raising=False)
    return seen


def tenants(access: Access, *keys: str) -> list[str | None]:
    holders = [access.keys.holder([key.encode()]) for key in keys]
    return [None if holder is None else holder.tenant for holder in holders]


def admins(access: Access, *keys: str) -> list[bool]:
    holders = [access.keys.holder([key.encode()]) for key in keys]
    return [holder is not None and holder.admin for holder in holders]


def test_without_anything_everybody_may_ask(served: list[Access]) -> None:
    assert main(["serve"]) == 0
    assert not served[0].keys
    assert served[0].origins == ()


def test_flags_file_and_origins(served: list[Access], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice:sk-a\n")
    words = ["serve", "--api-key", "sk-1", "--api-key", "sk-2", "--api-keys-file", str(keys)]
    words += ["--cors-origin", "https://a.example", "--cors-origin", "http://localhost:3000"]
    assert main(words) == 0
    assert tenants(served[0], "sk-1", "sk-2", "sk-a", "sk-b") == [
        tenant_of("sk-1"), tenant_of("sk-2"), "alice", None,
    ]  # fmt: skip
    assert served[0].origins == ("https://a.example", "http://localhost:3000")


def test_a_variable_and_a_settings_file(
    served: list[Access], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REBAR_API_KEY", "sk-1 sk-2")
    assert main(["serve"]) == 0
    assert tenants(served[0], "sk-1", "sk-2") == [tenant_of("sk-1"), tenant_of("sk-2")]
    monkeypatch.setenv("REBAR_ADMIN_KEY", "sk-root")
    settings = tmp_path / "rebar.toml"
    settings.write_text('[serve]\napi-key = ["sk-3"]\n')
    assert main(["--config", str(settings), "serve"]) == 0
    assert tenants(served[1], "sk-1", "sk-3") == [None, tenant_of("sk-3")]
    assert admins(served[0], "sk-1", "sk-root") == [False, False]
    assert admins(served[1], "sk-3", "sk-root") == [False, True]


@pytest.mark.parametrize(
    ("words", "variable"),
    [([], ""), ([], "  "), (["--api-key", ""], None), (["--api-keys-file", "/nowhere"], None),
     (["--cors-origin", "a.example/x"], None)],
)  # fmt: skip
def test_what_means_nothing_starts_nothing(
    served: list[Access],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    variable: str | None,
) -> None:
    """REBAR_API_KEY=$UNSET in a unit file let everybody in: cyclopts takes an empty list for no
    list, and the flag's own check was never asked.
    """
    if variable is not None:
        monkeypatch.setenv("REBAR_API_KEY", variable)
    assert main(["serve", *words]) == 2
    assert served == []
    assert "rebar:" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["[]", '[""]', '""', '"  "'])
def test_a_settings_file_without_a_key_starts_nothing(
    served: list[Access], tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    settings = tmp_path / "rebar.toml"
    for name in ("api-key", "admin_key"):
        settings.write_text(f"[serve]\n{name} = {value}\n")
        assert main(["--config", str(settings), "serve"]) == 2
        assert served == []
        assert "holds no key" in capsys.readouterr().err


def test_a_wrong_key_is_not_printed(
    served: list[Access], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--api-key", "my secret"]) == 2
    assert "secret" not in capsys.readouterr().err


def test_the_help_says_where_keys_belong(capsys: pytest.CaptureFixture[str]) -> None:
    build_app("serve")(["serve", "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "REBAR_API_KEY" in said
    assert "lists processes" in said


@pytest.mark.parametrize(
    ("keys", "host", "word"),
    [([NamedKey("", "k")], "0.0.0.0", "there are 1, 0 of admins"),
     ([NamedKey("", "k"), NamedKey("", "a", admin=True)], "0.0.0.0", "there are 2, 1 of admins"),
     ([], "127.0.0.1", "this machine"), ([], "0.0.0.0", "everybody")],
)  # fmt: skip
def test_the_operator_is_told(keys: list[NamedKey], host: str, word: str) -> None:
    assert word in _who_may_ask(Access(keys=ApiKeys(keys)), host)
