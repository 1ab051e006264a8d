"""Opens a model file by what it contains, whatever its name says.

A reader is imported when a file of its kind is opened: most starts map a .rebar file and need no
other.
"""

from __future__ import annotations

import stat
from pathlib import Path

from rebar.errors import MissingFileError, UnsupportedModelError
from rebar.graph.weights import rebar_format
from rebar.graph.weights.model_file import ModelFile
from rebar.graph.weights.rebar_reader import open_rebar

GGUF_MAGIC = b"GGUF"


def open_model(path: Path) -> ModelFile:
    """Opens a .gguf file, a .rebar file or a Hugging Face folder.

    Nothing is copied but vectors that need another type; data is mapped. Raises ModelFileError:
    MissingFileError, CorruptFileError or UnsupportedModelError.
    """
    if path.is_dir():
        from rebar.graph.weights.hf_model import open_hf_folder

        return open_hf_folder(path)
    beginning = _beginning(path)
    if beginning.startswith(GGUF_MAGIC):
        from rebar.graph.weights.gguf_model import open_gguf

        return open_gguf(path)
    if beginning.startswith(rebar_format.MAGIC):
        return open_rebar(path)
    raise UnsupportedModelError(
        f"{path} is {_guess(beginning)}. Give a .rebar or .gguf file or a Hugging Face folder."
    )


def _guess(beginning: bytes) -> str:
    """What a file that is no model here looks like."""
    if beginning[8:9] == b"{":
        return "a single safetensors file; its folder is the model"
    if beginning.startswith((b"PK\x03\x04", b"\x80")):
        return "an archive or a pickle, which can run code and is never read"
    return "no model file of a known kind"


def _beginning(path: Path) -> bytes:
    """The first bytes of a regular file; a pipe is not even opened, it could hold us for ever."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise MissingFileError(f"{path} is not a regular file. Name the model file itself.")
        with path.open("rb") as source:
            return source.read(16)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MissingFileError(f"{path} cannot be opened: {reason}. Check the name.") from error
