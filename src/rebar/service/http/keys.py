"""Who may ask: API keys, and the tenant that each stands for.

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

from starlette.types import ASGIApp, Receive, Scope, Send

from rebar.errors import InputError
from rebar.service.http.errors import KeyRefusedError, error_response
from rebar.service.http.lifecycle import OPERATIONS

MAX_GIVEN = 4
"""Keys that one request may bring; more are nobody's."""
MAX_KEYS = 10_000  # each is compared with each request's: 0.3 us
_BEARER = re.compile(rb"bearer[ \t]+(.*)", re.IGNORECASE | re.DOTALL)
_KEY = re.compile(r"[^\s\x00-\x1f\x7f]{1,1024}")
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class ApiKeys:
    """Keys and their tenants. Without any, everybody may ask and all are one tenant, ""."""

    def __init__(self, named: Iterable[tuple[str, str]] = ()) -> None:
        """named: (tenant, key); a tenant may have several keys, "" is a name made of the key's
        digest. Raises InputError for what can be no key, and for a key of two tenants.
        """
        self._secret = secrets.token_bytes(32)
        self._tenants: dict[bytes, str] = {}
        for tenant, key in named:
            self._add(tenant, key)
        if len(self._tenants) > MAX_KEYS:
            raise InputError(f"More than {MAX_KEYS} API keys. Use fewer.", param="api_keys_file")

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def __len__(self) -> int:
        return len(self._tenants)

    def _add(self, tenant: str, key: str) -> None:
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
        name = tenant or tenant_of(key)
        if self._tenants.setdefault(self._digest(key.encode()), name) != name:
            raise InputError(
                f"One API key stands for two tenants, one of them {name}. Give each its own.",
                param="api_key",
            )

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, key=self._secret, digest_size=32).digest()

    def tenant(self, given: Sequence[bytes]) -> str | None:
        """The tenant of the first of the `given` keys that is one of ours; None when none is."""
        found: str | None = None
        for key in reversed(given[:MAX_GIVEN]):
            digest = self._digest(key)
            for known, tenant in self._tenants.items():
                if hmac.compare_digest(digest, known):
                    found = tenant
        return found


def tenant_of(key: str) -> str:
    """What the holder of a key without a name is called: enough of its digest to tell keys apart,
    too little to be one.
    """
    return "key-" + blake2b(key.encode(), digest_size=6, person=b"rebar tenant").hexdigest()


def read_keys(path: Path) -> list[tuple[str, str]]:
    """(tenant, key) of a file with a key a line, `name:key` or `key`; # begins a comment line.

    Raises InputError naming the line, never what stands in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        message = f"{path}: {reason}. Give --api-keys-file a text file with a key a line."
        raise InputError(message, param="api_keys_file") from None
    named: list[tuple[str, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        name, colon, key = (part.strip() for part in entry.partition(":"))
        pair = (name, key) if colon else ("", entry)
        try:
            ApiKeys([pair])
        except InputError as error:
            message = f"{path}, line {number}: {error}"
            raise InputError(message, param="api_keys_file") from None
        if colon and not name:
            message = f"{path}, line {number}: there is no name before the colon. Write name:key."
            raise InputError(message, param="api_keys_file")
        named.append(pair)
    if not named:
        message = f"{path} has no key. Write one a line, or start without --api-keys-file."
        raise InputError(message, param="api_keys_file")
    return named


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
    """Lets in who has a key; machines that watch the server (OPERATIONS) need none. Pure ASGI.

    `admit` tells whoever logs the request whose it is.
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
        tenant = self._keys.tenant(given)
        if tenant is None:
            refusal = KeyRefusedError(given=bool(given))
            await error_response(refusal, scope["path"])(scope, receive, send)
            return
        scope["request_record"].belongs_to(tenant)
        await self._app(scope, receive, send)
