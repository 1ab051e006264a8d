"""Opens a model file by what it contains, whatever its name says."""

from __future__ import annotations

from pathlib import Path

from rebar.errors import MissingFileError, UnsupportedModelError
from rebar.graph.weights import gguf
from rebar.graph.weights.gguf_model import open_gguf
from rebar.graph.weights.model_file import ModelFile


def open_model(path: Path) -> ModelFile:
    """Opens a .gguf file, a .rebar file or a Hugging Face folder.

    Nothing is copied but vectors that need another type; data is mapped. Raises ModelFileError:
    MissingFileError, CorruptFileError or UnsupportedModelError.
    """
    beginning = _beginning(path)
    if beginning.startswith(gguf.MAGIC):
        return open_gguf(path)
    raise UnsupportedModelError(f"{path} is no model file of a known kind. Use .gguf.")


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as source:
            return source.read(16)
    except OSError as error:
        raise MissingFileError(
            f"{path} cannot be opened: {error.strerror}. Check the name."
        ) from error
