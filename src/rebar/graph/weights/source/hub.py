"""Models from a Hugging Face hub over plain HTTPS: resumable downloads, digests checked, names
never trusted.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO

from rebar.errors import CorruptFileError, DownloadError, ModelNameError, UnsupportedModelError
from rebar.graph.weights.model_file import Progress
from rebar.graph.weights.source.names import COMPLETE, HubName, is_safe_path
from rebar.hal.files import locked

TIMEOUT_SECONDS = 30.0
ATTEMPTS = 4
CHUNK = 1 << 20
MAX_LISTING_BYTES = 1 << 26
_AROUND = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_BROKEN = (ConnectionError, TimeoutError, http.client.HTTPException)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch(name: HubName, cache: Path, hub: str, report: Progress) -> Path:
    """Downloads a file or a repository's model files; gives the path. One process at a time
    does it.
    """
    if urllib.parse.urlsplit(hub).scheme not in ("http", "https"):
        raise DownloadError(f"The hub {hub!r} is no http(s) address. Set it to one.")
    folder = name.folder(cache)
    with locked(folder.parent / f".{folder.name}.lock"):
        found = name.cached(cache)
        if found is not None:
            return found
        try:
            return _fetch(_Remote(hub.rstrip("/"), name), folder, report)
        except _BROKEN as error:
            raise DownloadError(
                f"{hub} does not answer: {error}. Check the network, or give a model file's path."
            ) from error


def _fetch(remote: _Remote, folder: Path, report: Progress) -> Path:
    file = remote.name.file
    if file is None:
        return _fetch_all(remote, folder, report)
    _download(remote, "main", file, folder, report)
    return folder / file


@dataclass(frozen=True, slots=True)
class _Remote:
    hub: str
    name: HubName

    def listing(self) -> str:
        return f"{self.hub}/api/models/{self.name.org}/{self.name.repo}"

    def file(self, revision: str, file: str) -> str:
        place = f"{self.name.org}/{self.name.repo}/resolve/{revision}"
        return f"{self.hub}/{place}/{urllib.parse.quote(file)}"


def _fetch_all(remote: _Remote, folder: Path, report: Progress) -> Path:
    """All files from one commit, so that none belong to different states of the repository."""
    revision, files = _listing(remote)
    chosen = _chosen(remote.name, files)
    for file in chosen:
        _download(remote, revision, file, folder, report)
    only = chosen[0] if len(chosen) == 1 else ""
    (folder / COMPLETE).write_text(only, encoding="utf-8")
    return folder / only if only else folder


def _listing(remote: _Remote) -> tuple[str, list[str]]:
    with _open(remote.listing(), {}, remote.name).body as body:
        raw = body.read(MAX_LISTING_BYTES)
    try:
        listing = json.loads(raw)
        files = [str(entry["rfilename"]) for entry in listing["siblings"]]
        revision = str(listing.get("sha", "main"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DownloadError(
            f"{remote.listing()} answered with something that is no repository. Check the "
            "hub's address."
        ) from error
    if not re.fullmatch(r"[A-Za-z0-9]+", revision):
        raise DownloadError(f"{remote.listing()} names an impossible revision. Check the hub.")
    return revision, [file for file in files if is_safe_path(file)]


def _chosen(name: HubName, files: list[str]) -> list[str]:
    """config, tokenizer and safetensors; without safetensors the only GGUF file."""
    weights = [
        file
        for file in files
        if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?", file)
    ]
    if weights:
        return [*(file for file in _AROUND if file in files), *sorted(weights)]
    ggufs = sorted(file for file in files if file.endswith(".gguf"))
    if len(ggufs) == 1:
        return ggufs
    spelled = f"hf:{name.org}/{name.repo}"
    if ggufs:
        names = ", ".join(f"{spelled}:{file}" for file in ggufs[:20])
        raise ModelNameError(
            f"{spelled} has several files. Name one: {names}.",
            param="model",
            code="model_not_found",
        )
    raise UnsupportedModelError(
        f"{spelled} has neither model.safetensors nor a .gguf file (pickled weights are never "
        "read). Use another repository."
    )


def _download(remote: _Remote, revision: str, file: str, folder: Path, report: Progress) -> None:
    """Brings one file, going on where an earlier attempt stopped."""
    target = folder / file
    if target.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    url = remote.file(revision, file)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            digest = _transfer(remote, url, part, file, report)
            break
        except _BROKEN as error:
            if attempt == ATTEMPTS:
                raise DownloadError(
                    f"{url} broke off {ATTEMPTS} times ({error}). Try again: it goes on where "
                    "it stopped."
                ) from error
    _check_digest(part, digest, url)
    with part.open("rb") as whole:
        os.fsync(whole.fileno())
    part.replace(target)
    _tag_of(part).unlink(missing_ok=True)


def _transfer(remote: _Remote, url: str, part: Path, file: str, report: Progress) -> str | None:
    """Appends what is missing to `part`; gives the digest the server names.

    The ETag of the first bytes is kept beside them: If-Range makes the server start over when the
    file has changed.
    """
    tag = _tag_of(part)
    begin = part.stat().st_size if part.exists() and tag.exists() else 0
    going_on = {"Range": f"bytes={begin}-", "If-Range": tag.read_text("utf-8")} if begin else {}
    answer = _open(url, going_on, remote.name)
    with answer.body as body:
        if answer.status == 416:  # nothing is missing
            return answer.digest
        if answer.status != 206:
            begin = 0
        tag.unlink(missing_ok=True)
        if etag := answer.headers.get("ETag"):
            tag.write_text(etag, "utf-8")
        length = int(answer.headers.get("Content-Length") or 0)
        total = begin + length if length else 0
        with part.open("ab" if begin else "wb") as sink:
            done = _copy(body, sink, begin, lambda n: report(file, n, total))
    if total and done != total:
        raise ConnectionError(f"{done} of {total} bytes came")
    return answer.digest


def _tag_of(part: Path) -> Path:
    """Where the ETag of a part is kept."""
    return part.with_name(part.name + ".etag")


def _copy(body: IO[bytes], sink: IO[bytes], done: int, count: Callable[[int], None]) -> int:
    while chunk := body.read(CHUNK):
        sink.write(chunk)
        done += len(chunk)
        count(done)
    return done


def _check_digest(part: Path, digest: str | None, url: str) -> None:
    if digest is None:
        return
    with part.open("rb") as source:
        found = hashlib.file_digest(source, "sha256").hexdigest()
    if found != digest:
        part.unlink()
        _tag_of(part).unlink(missing_ok=True)
        raise CorruptFileError(
            f"{url} gave a file with sha256 {found}, the server says {digest}. Try again; "
            "tell the hub if it stays so."
        )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects and keeps the digest that the first answer names: the one behind it
    knows none.
    """

    def __init__(self) -> None:
        self.digest: str | None = None

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Only on to http(s)."""
        self.digest = self.digest or _digest(headers)
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Message
    body: IO[bytes]
    digest: str | None


def _digest(headers: Message) -> str | None:
    """The hub names a large file's sha256 in X-Linked-ETag, a plain server perhaps in ETag."""
    for key in ("X-Linked-ETag", "ETag"):
        value = (headers.get(key) or "").removeprefix("W/").strip('"')
        if _SHA256.fullmatch(value):
            return value
    return None


def _open(url: str, headers: dict[str, str], name: HubName) -> _Answer:
    redirects = _Redirects()
    request = urllib.request.Request(url, headers={"User-Agent": "rebar", **headers})
    try:
        answer = urllib.request.build_opener(redirects).open(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return _Answer(416, error.headers, error, redirects.digest or _digest(error.headers))
        error.close()
        raise _refused(url, error.code, name) from error
    except urllib.error.URLError as error:
        raise DownloadError(
            f"{url} does not answer: {error.reason}. Check the network, or give a model "
            "file's path."
        ) from error
    return _Answer(
        answer.status, answer.headers, answer, redirects.digest or _digest(answer.headers)
    )


def _refused(url: str, code: int, name: HubName) -> DownloadError | ModelNameError:
    if code == 404:
        return ModelNameError(
            f"{url} does not exist. Check the name hf:{name.org}/{name.repo}.",
            param="model",
            code="model_not_found",
        )
    if code in (401, 403):
        return DownloadError(
            f"{url} is private, gated or absent (HTTP {code}). Fetch it with your account and "
            "give the path."
        )
    return DownloadError(f"{url} answered HTTP {code}. Try again later.")
