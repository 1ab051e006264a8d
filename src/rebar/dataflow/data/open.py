"""From a file to windows: what a trainer opens.

.jsonl: records (tokenize.py); a folder: those of all such files in it, by name. A token shard: its
ids. Anything else is plain text in UTF-8, one document, which is encoded once into a shard in the
cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.batches import TrainingBatches
from rebar.dataflow.data.dataset import Dataset, MMapDataset
from rebar.dataflow.data.decode import Decode
from rebar.dataflow.data.faults import OnError
from rebar.dataflow.data.files import BOM, check_text, check_whole, map_data
from rebar.dataflow.data.index import line_number
from rebar.dataflow.data.mask import Long, Mask
from rebar.dataflow.data.pack import Pack
from rebar.dataflow.data.parts import Concat, Subset, divided
from rebar.dataflow.data.pipeline import DataPipeline
from rebar.dataflow.data.stage import AnyStage
from rebar.dataflow.data.tokenize import Tokenize
from rebar.dataflow.data.tokens import MAGIC, PIECE, Shift, TokenDataset, write_document
from rebar.dataflow.text.chat import ChatTemplate
from rebar.dataflow.text.tokenizer import Tokenizer
from rebar.errors import DataError
from rebar.hal.files import MappedFile, locked

RECORDS = {".jsonl", ".ndjson", ".json"}
SAID = {"text", "prompt", "completion"}
SPACE = 32
LETTER = np.array([chr(byte).isalpha() and byte < 128 for byte in range(256)])


@dataclass(frozen=True, slots=True)
class DataOptions:
    """How data become windows.

    rows: longest sequence, in positions. batch_rows, sequences: what a micro-batch has room for.
    samples: sequences of a window. held_out: share of the samples kept for evaluation, from the
    same file; which ones is decided by the seed. on_error, long: what happens to broken records and
    to conversations that are too long. cache: folder for indexes and shards; None: beside the file.
    """

    rows: int = 512
    batch_rows: int = 1024
    sequences: int = 32
    samples: int = 8
    epochs: int = 1
    seed: int = 0
    shuffle: bool = True
    held_out: float = 0.0
    on_error: OnError = "raise"
    long: Long = "cut"
    workers: int = 1
    prefetch_bytes: int = 16 << 20
    cache: Path | None = None


def open_training(
    path: Path, tokenizer: Tokenizer, template: ChatTemplate | None, options: DataOptions
) -> tuple[TrainingBatches, TrainingBatches | None]:
    """Windows to learn from and, with `held_out`, windows to evaluate on: one epoch, in the file's
    order. Raises DataError.
    """
    data: Dataset
    if records := path.suffix.lower() in RECORDS or path.is_dir():
        files = _files(path)
        sets = [MMapDataset(file, cache=options.cache) for file in files]
        for some in sets:
            _check_lines(some)
        data = sets[0] if len(sets) == 1 else Concat(sets)
    else:
        shard = _shard(path, tokenizer, options.cache)
        data = TokenDataset(shard, options.rows, fingerprint=tokenizer.fingerprint)

    def batches(part: Dataset, options: DataOptions) -> TrainingBatches:
        """With stages of its own: they name places by the numbers of this part."""
        stages: list[AnyStage] = [Shift()]
        if records:
            stages = record_stages(part, tokenizer, template, options)
        return _batches(part, stages, options)

    held = round(options.held_out * len(data))
    if not held:
        return batches(data, options), None
    if not 0 < held < len(data):
        raise DataError(
            f"{path}: {held} of {len(data)} samples would be held out. Hold out a share from 0 to "
            "below 1."
        )
    train, kept = (Subset(data, part) for part in divided(len(data), held, options.seed))
    return batches(train, options), batches(kept, replace(options, epochs=1, shuffle=False))


def texts_in(path: Path, cache: Path | None = None) -> Iterator[str]:
    """What a file says, without the JSON around it: plain text whole, of records the documents,
    prompts and completions. Raises DataError, OSError, UnicodeDecodeError.
    """
    if not (path.suffix.lower() in RECORDS or path.is_dir()):
        yield path.read_text(encoding="utf-8-sig")
        return
    for file in _files(path):
        data = MMapDataset(file, cache=cache)
        for record in map(data.__getitem__, range(len(data))):
            said = record.items() if isinstance(record, dict) else ()
            yield from (text for key, text in said if key in SAID and isinstance(text, str))


def record_stages(
    data: Dataset, tokenizer: Tokenizer, template: ChatTemplate | None, options: DataOptions
) -> list[AnyStage]:
    """From the bytes of a record to sequences."""
    return [
        Decode(data.where, options.on_error),
        Tokenize(tokenizer, template, data.where, options.on_error),
        Mask(options.rows, data.where, options.long),
    ]


def _files(path: Path) -> list[Path]:
    """A file, or those of a folder."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in RECORDS)
    if not found:
        raise DataError(f"{path} holds no {', '.join(sorted(RECORDS))} file. Name another folder.")
    return found


def _check_lines(data: MMapDataset) -> None:
    """A file that is one JSON value is told at once, not as a fault in each of its lines."""
    first = bytes(data.record(0)[: 1 << 16]) if len(data) else b""
    one_a_line = first[:1] == b"[" and not (len(data) > 1 and first.endswith(b"]"))
    if one_a_line or first == b"{":
        raise DataError(
            f"{data.path} is not JSON lines but one JSON value, over all of it. Write its parts a "
            "line each: jq -c '.[]' does that for an array."
        )


def _batches(data: Dataset, stages: list[AnyStage], options: DataOptions) -> TrainingBatches:
    pipeline = DataPipeline(
        data,
        stages,
        seed=options.seed,
        shuffle=options.shuffle,
        workers=options.workers,
        prefetch_bytes=options.prefetch_bytes,
    )
    pack = Pack(max(options.batch_rows, options.rows), options.sequences)
    return TrainingBatches(pipeline, pack, samples=options.samples, epochs=options.epochs)


def _shard(path: Path, tokenizer: Tokenizer, cache: Path | None) -> Path:
    """The shard at `path`, or the one of the plain text there, made if it is not there yet."""
    file = map_data(path)
    if file is None:
        raise DataError(f"{path} is empty. Give a file with text.")
    if bytes(file.data[: len(MAGIC)]) == MAGIC:
        return path
    check_text(file.data, path)
    state = (str(path.resolve()), file.nbytes, path.stat().st_mtime_ns, tokenizer.fingerprint)
    name = hashlib.sha256(repr(state).encode()).hexdigest()[:32] + ".ids"
    shard = path.with_name(f"{path.name}.{name}") if cache is None else cache / "tokens" / name
    try:
        with locked(shard.with_suffix(".lock")):
            if not shard.exists():
                write_document(shard, tokenizer, _texts(file, path))
    except OSError as error:
        raise DataError(
            f"{path}: its ids cannot be kept in {shard.parent}: {error.strerror or error}. "
            "Make the folder writable, or give another one for caches."
        ) from error
    return shard


def _texts(file: MappedFile, path: Path) -> Iterator[str]:
    """The text in pieces, cut before the space between two words: no token of any vocabulary here
    reaches over that, and none looks over it to find its end. (A line end will not do: how several
    are taken together depends on what follows.)
    """
    data, at = file.data, len(BOM) if bytes(file.data[: len(BOM)]) == BOM else 0
    while at < len(data):
        end = _between_words(data, at + PIECE)
        piece = bytes(data[at:end])
        check_whole(file)
        try:
            yield piece.decode()
        except UnicodeDecodeError as error:
            line = line_number(data, at + error.start)
            raise DataError(
                f"{path}, line {line}: no UTF-8 ({error.reason}). Convert it with iconv."
            ) from error
        at = end
    if file.rewritten():
        raise DataError(f"{path} changes while it is read. Wait until its writer is done.")


def _between_words(data: NDArray[np.uint8], at: int) -> int:
    """The first place from `at` on with a letter before it, a space, a letter; or the end."""
    for begin in range(at, len(data), PIECE):
        some = data[begin - 1 : begin + PIECE + 1]
        letter = LETTER[some]
        places = np.flatnonzero(letter[:-2] & (some[1:-1] == SPACE) & letter[2:])
        if places.size:
            return begin + int(places[0])
    return len(data)
