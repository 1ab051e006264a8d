"""The server under load: its address, and what it says of itself beside the load.

Asked with plain blocking calls, before and after a run, never while something is measured.
"""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rebar.errors import InputError
from rebar.hal import read_machine
from rebar.hal.processes import busy_seconds

ASK_SECONDS = 10.0
LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
CPU = re.compile(r"^(?:rebar_)?process_cpu_seconds_total(?:\{[^}]*\})? (\S+)$", re.M)
CORES = re.compile(r"^rebar_cores(?:\{[^}]*\})? (\S+)$", re.M)


@dataclass(frozen=True, slots=True)
class CpuReading:
    """Processor seconds of the server since it began, and the cores it may use. source: who said
    so.
    """

    seconds: float
    cores: int
    source: str


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Where requests go. url: http(s)://host[:port][/prefix]. api_key: sent as a bearer token."""

    url: str
    api_key: str = ""
    host: str = field(init=False, default="")
    port: int = field(init=False, default=0)
    prefix: str = field(init=False, default="")
    tls: ssl.SSLContext | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url if "//" in self.url else f"http://{self.url}")
            port = parts.port
        except ValueError as error:
            raise InputError(f"{self.url!r} is no address: {error}.", param="url") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(
                f"{self.url!r} is no address. Write it like http://127.0.0.1:8000.", param="url"
            )
        if any(ord(letter) < 33 or ord(letter) > 126 for letter in self.api_key):
            raise InputError("An API key is one word of ASCII.", param="api_key")
        secure = parts.scheme == "https"
        for name, value in {
            "host": parts.hostname,
            "port": port or (443 if secure else 80),
            # OpenAI's clients are given the address with /v1: it is taken either way.
            "prefix": parts.path.rstrip("/").removesuffix("/v1"),
            "tls": ssl.create_default_context() if secure else None,
        }.items():
            object.__setattr__(self, name, value)

    @property
    def base(self) -> str:
        """The address without a path of the API."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"

    def request(self, path: str, body: bytes, request_id: str) -> bytes:
        """The bytes of a POST."""
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        head = (
            f"POST {self.prefix}{path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
            f"User-Agent: rebar-bench\r\nX-Request-Id: {request_id}\r\n{key}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def get(self, path: str, body: dict[str, Any] | None = None) -> bytes | None:
        """The body of a quick answer (a POST with a body); None when there is none to be had."""
        headers = {"Content-Type": "application/json", "User-Agent": "rebar-bench"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        raw = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, raw, headers)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.tls)
        )
        try:
            with opener.open(request, timeout=ASK_SECONDS) as answer:
                content: bytes = answer.read(1 << 24)
                return content
        except urllib.error.HTTPError as error:
            error.close()
            return None
        except (OSError, ValueError):
            return None

    def model(self) -> str:
        """The first model it serves. InputError when nobody answers."""
        raw = self.get("/v1/models")
        try:
            return str(json.loads(raw or b"")["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise InputError(
                f"{self.base}/v1/models says no model. Is a server there, and the key right "
                "(--api-key)? Name the model with --model to do without.",
                param="url",
            ) from error

    def characters_per_token(self, text: str) -> float | None:
        """Of this text under the server's vocabulary, where it has /tokenize."""
        sample = text[:4000]
        raw = self.get("/tokenize", {"prompt": sample, "add_special_tokens": False})
        try:
            return len(sample) / int(json.loads(raw or b"")["count"])
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            return None

    def cpu(self) -> CpuReading | None:
        """Processor time so far: as the server tells it, else of all processes of this machine but
        this one. None where neither can be known.
        """
        text = (self.get("/metrics") or b"").decode("utf-8", "replace")
        said = [float(value) for value in CPU.findall(text)]
        cores = CORES.search(text)
        if said and (cores or self.host in LOCAL):
            count = int(float(cores[1])) if cores else read_machine().cores
            return CpuReading(sum(said), count, "the server's processes")
        if self.host in LOCAL and (busy := busy_seconds()) is not None:
            return CpuReading(busy, read_machine().cores, "all processes here but this")
        return None
