"""From a folder with an adapter to a copy in the cache, under its digest, that was read and found
sound.

An engine that takes over loads the adapter again, maybe hours later: by then somebody may have
trained on in the same folder, or removed it. It reads the copy, which nobody changes.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rebar.errors import CorruptFileError, InputError, MissingFileError, ModelFileError
from rebar.graph.lora.config import CONFIG, MAX_CONFIG_BYTES, read_config
from rebar.graph.lora.folder import PICKLED, WEIGHTS, Adapter, digest_of, read_adapter
from rebar.graph.models.adapted import AdapterRoom, slot_bytes
from rebar.graph.models.config import DecoderConfig

log = logging.getLogger("rebar.adapters")
HEADER_ROOM = 1 << 20  # of a safetensors file, for the names of its matrices
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class AdapterStore:
    """Takes adapters in for one model. cache: the folder of fetched and converted things. room:
    what the engine has for them. merged: digests of those that are in the model's weights already.
    base: digest of these weights.
    """

    cache: Path
    config: DecoderConfig
    room: AdapterRoom
    merged: tuple[str, ...] = ()
    base: str = ""

    def take(self, folder: Path) -> Adapter:
        """The copy of an adapter, made if it is not there. ModelFileError for one that is damaged
        or not for this model, InputError for one that is too large for its room.
        """
        place = self.cache / "adapters"
        place.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".adapter.", dir=place))
        try:
            adapter = self._copied(folder, temporary)
            if adapter.digest in self.merged:
                raise InputError(
                    f"{folder} is in this model's weights already, and would count twice. Ask for "
                    "the model itself.",
                    param="lora_path",
                    code="merged_twice",
                )
            if adapter.is_foreign(self.base):
                log.warning("%s", foreign_text(str(folder)))
            return self._kept(temporary, place / adapter.digest)
        except OSError as error:
            raise MissingFileError(
                f"{folder} cannot be copied: {error.strerror or error}. Check its name, and the "
                "room of the cache."
            ) from error
        except ModelFileError as error:  # it names the copy, which nobody knows
            text = str(error).replace(str(temporary), str(folder))
            raise type(error)(text) from error.__cause__
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _copied(self, folder: Path, to: Path) -> Adapter:
        if not (folder / WEIGHTS).exists() and (folder / PICKLED).exists():
            (to / PICKLED).touch()  # read_adapter says what is wrong with it
            return read_adapter(to, self.config)
        _copy(folder / CONFIG, to / CONFIG, MAX_CONFIG_BYTES)
        rank = read_config(to).largest_rank
        if rank > self.room.rank:
            raise InputError(
                f"The adapter has rank {rank}, the room for adapters is planned for "
                f"{self.room.rank}. Start with --max-lora-rank {rank}.",
                param="lora_path",
                code="rank_too_large",
            )
        _copy(folder / WEIGHTS, to / WEIGHTS, slot_bytes(self.config, self.room) + HEADER_ROOM)
        return read_adapter(to, self.config)

    def _kept(self, temporary: Path, final: Path) -> Adapter:
        """Puts the copy under its digest, unless a sound one is there."""
        try:
            sound = final.exists() and digest_of(final) == final.name
        except ModelFileError:
            sound = False
        if not sound:
            shutil.rmtree(final, ignore_errors=True)
            os.replace(temporary, final)
        return read_adapter(final, self.config, final.name)


def foreign_text(named: str) -> str:
    """What is said of an adapter that was trained on other weights."""
    return (
        f"adapter {named} was trained on other weights than these, maybe on the same model in "
        "another quantization. It is served, but its answers are not the trained ones to the bit."
    )


def _copy(source: Path, target: Path, most: int) -> None:
    """A plain copy, of a regular file of at most `most` bytes: a mapping would end this process
    when somebody cuts the file short.
    """
    if not source.is_file():
        raise MissingFileError(
            f"{source} is not there, or no file. Name a folder with {CONFIG} and {WEIGHTS}, as "
            "peft's save_pretrained writes it."
        )
    with source.open("rb") as read, target.open("wb") as write:
        left = most
        while chunk := read.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise CorruptFileError(
                    f"{source} has more than {most:,} bytes, and no adapter that there is room for "
                    "has. Look at the folder, or start with a larger --max-lora-rank."
                )
            write.write(chunk)
