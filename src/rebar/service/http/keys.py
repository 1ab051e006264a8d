"""Who may ask: API keys, the tenant that each stands for, and who may change what is served.

The law: a key is compared by its digest with every key there is, each in constant time, so that an
answer's time tells nothing about a key; no key is kept, logged or shown. Whose key it is decides
whose computed prompts a request may share and whose history it may read.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from rebar.errors import InputError
from rebar.service.http.errors import (
    AdminNeededError,
    HttpError,
    KeyRefusedError,
    error_response,
)
from rebar.service.http.lifecycle import OPERATIONS

MAX_GIVEN = 4
"""Keys that one request may bring; more are nobody's."""
MAX_KEYS = 10_000  # each is compared with each request's: 0.3 us
ADMIN_PATHS = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""Paths that change what all tenants are served, and read folders of the server."""
_BEARER = re.compile(rb"bearer[ \t]+(.*)", re.IGNORECASE | re.DOTALL)
_KEY = re.compile(r"[^\s\x00-\x1f\x7f]{1,1024}")
_MARKED = re.compile(r"(\S.*\S|\S)\s+admin")
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class NamedKey(NamedTuple):
    """A key. tenant: "" for a name made of the key's digest. admin: may use ADMIN_PATHS."""

    tenant: str
    key: str
    admin: bool = False


class Holder(NamedTuple):
    """Who has a key that is known."""

    tenant: str
    admin: bool


class ApiKeys:
    """Keys and their holders. Without any, everybody may do everything, as one tenant, ""."""

    def __init__(self, named: Iterable[NamedKey] = ()) -> None:
        """A tenant may have several keys. Raises InputError for what can be no key, and for a key
        of two tenants.
        """
        self._secret = secrets.token_bytes(32)
        self._holders: dict[bytes, Holder] = {}
        for key in named:
            self._add(*key)
        if len(self._holders) > MAX_KEYS:
            raise InputError(f"More than {MAX_KEYS} API keys. Use fewer.", param="api_keys_file")

    def __bool__(self) -> bool:
        return bool(self._holders)

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def admins(self) -> int:
        """How many keys are an admin's."""
        return sum(holder.admin for holder in self._holders.values())

    def _add(self, tenant: str, key: str, admin: bool) -> None:
        if not _KEY.fullmatch(key):
            raise InputError(
                "An API key has 1 to 1024 characters, none of them a space. Mend the key.",
                param="api_key",
            )
        if tenant and not _TENANT.fullmatch(tenant):
            raise InputError(
                "A tenant's name has 1 to 64 letters, digits, points, _ or -. Mend the name "
                "before the colon.",
                param="api_keys_file",
            )
        name, digest = tenant or tenant_of(key), self._digest(key.encode())
        known = self._holders.get(digest, Holder(name, admin=False))
        self._holders[digest] = Holder(name, admin or known.admin)
        if known.tenant != name:
            raise InputError(
                f"One API key stands for two tenants, one of them {name}. Give each its own.",
                param="api_key",
            )

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, key=self._secret, digest_size=32).digest()

    def holder(self, given: Sequence[bytes]) -> Holder | None:
        """Of the first of the `given` keys that is one of ours; None when none is."""
        found: Holder | None = None
        for key in reversed(given[:MAX_GIVEN]):
            digest = self._digest(key)
            for known, holder in self._holders.items():
                if hmac.compare_digest(digest, known):
                    found = holder
        return found


def tenant_of(key: str) -> str:
    """What the holder of a key without a name is called: enough of its digest to tell keys apart,
    too little to be one.
    """
    return "key-" + blake2b(key.encode(), digest_size=6, person=b"rebar tenant").hexdigest()


def read_keys(path: Path) -> list[NamedKey]:
    """Of a file with a key a line, `name:key` or `key`, and `admin` behind those of admins.

    A line that begins with # is a comment. Raises InputError naming the line, never what it holds.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        message = f"{path}: {reason}. Give --api-keys-file a text file with a key a line."
        raise InputError(message, param="api_keys_file") from None
    named: list[NamedKey] = []
    for number, line in enumerate(text.split("\n"), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        named.append(_read_key(entry, f"{path}, line {number}"))
    if not named:
        message = f"{path} has no key. Write one a line, or start without --api-keys-file."
        raise InputError(message, param="api_keys_file")
    return named


def _read_key(entry: str, where: str) -> NamedKey:
    words, admin = entry, False
    if (marked := _MARKED.fullmatch(entry)) is not None:
        words, admin = marked[1], True
    name, colon, key = (part.strip() for part in words.partition(":"))
    found = NamedKey(name, key, admin) if colon else NamedKey("", words, admin)
    try:
        ApiKeys([found])
    except InputError as error:
        raise InputError(f"{where}: {error}", param="api_keys_file") from None
    if colon and not name:
        message = f"{where}: there is no name before the colon. Write name:key."
        raise InputError(message, param="api_keys_file")
    return found


def given_keys(scope: Scope) -> list[bytes]:
    """What a request brings: `Authorization: Bearer KEY`, and `x-api-key` as Anthropic's clients
    send it. Any bytes.
    """
    given: list[bytes] = []
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            given.append(value.strip())
        elif name == b"authorization" and (bearer := _BEARER.fullmatch(value.strip())):
            given.append(bearer[1].strip())
    return given


class KeyGuard:
    """Lets in who has a key, to ADMIN_PATHS who has an admin's; machines that watch the server
    (OPERATIONS) need none. Pure ASGI.

    `belongs_to` tells whoever logs the request whose it is.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["path"] in OPERATIONS or not self._keys:
            await self._app(scope, receive, send)
            return
        given = given_keys(scope)
        holder = self._keys.holder(given)
        if holder is None:
            await self._refuse(KeyRefusedError(given=bool(given)), scope, receive, send)
            return
        scope["request_record"].belongs_to(holder.tenant)
        if scope["path"] in ADMIN_PATHS and not holder.admin:
            await self._refuse(AdminNeededError(), scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _refuse(self, error: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
        await error_response(error, scope["path"])(scope, receive, send)
