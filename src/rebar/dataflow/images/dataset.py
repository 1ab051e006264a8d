"""Labelled images as they lie: in one .npz file, or in a folder with a folder a label."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.parts import Subset, divided
from rebar.errors import DataError

MAX_PNG_BYTES = 1 << 26
MAX_LABELS = 1 << 16
ARRAYS = "images", "labels", "names"
# What NumPy and zipfile make of damaged bytes: lengths, names, methods, encryption, versions.
NO_ARRAYS: tuple[type[Exception], ...] = (
    ValueError, EOFError, TypeError, KeyError, OverflowError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class RawImage(msgspec.Struct, frozen=True):
    """The bytes of a PNG file, or pixels uint8 (height, width, channels); the label's number."""

    image: bytes | NDArray[np.uint8]
    label: int

    @property
    def nbytes(self) -> int:
        """Of the image."""
        return self.image.nbytes if isinstance(self.image, np.ndarray) else len(self.image)


class ImageDataset(Protocol):
    """A data set of a pipeline (data/dataset.py) whose samples are RawImages."""

    labels: tuple[str, ...]
    """Names by number."""
    remarks: tuple[str, ...]
    """What lies there and is not used, in words."""

    @property
    def digest(self) -> str:
        """Names the samples."""

    def __len__(self) -> int:
        """How many samples."""

    def raws(self, samples: NDArray[np.int64]) -> Sequence[RawImage]:
        """These samples."""

    def where(self, sample: int) -> str:
        """The place of a sample in words."""


class ArrayImages:
    """A .npz file: `images` uint8 (n, height, width) or (n, height, width, channels), `labels`
    whole numbers (n,), and `names` of the labels, else their numbers.
    """

    remarks: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        """Raises DataError for a file that holds no such arrays. Nothing in it can run code."""
        self.path = path
        try:
            with path.open("rb") as raw:
                with np.load(raw, allow_pickle=False) as file:
                    arrays = {name: file[name] for name in ARRAYS if name in file.files}
                raw.seek(0)
                self.digest = hashlib.file_digest(raw, "sha256").hexdigest()
        except OSError as error:
            raise _no_images(path, f"{error.strerror or error}") from error
        except MemoryError as error:
            raise _no_images(path, "its arrays do not fit into memory") from error
        except NO_ARRAYS as error:
            raise _no_images(path, "it is no .npz file of plain arrays") from error
        images, numbers = arrays.get("images"), arrays.get("labels")
        if images is None or numbers is None or images.dtype != np.uint8:
            raise _no_images(path, "it has no `images` of uint8 and `labels`")
        images = images[..., None] if images.ndim == 3 else images
        if images.ndim != 4 or images.shape[3] not in (1, 3) or not images.size:
            raise _no_images(path, f"`images` has the shape {images.shape}")
        if numbers.shape != images.shape[:1] or not np.issubdtype(numbers.dtype, np.integer):
            raise _no_images(path, f"`labels` is {numbers.dtype} {numbers.shape}")
        self._images, self._numbers = images, numbers.astype(np.int64)
        most = int(self._numbers.max())
        names = arrays.get("names", np.arange(min(most + 1, MAX_LABELS)))
        self.labels = tuple(_name(path, name) for name in names.ravel().tolist())
        if int(self._numbers.min()) < 0 or most >= len(self.labels):
            raise _no_images(path, f"there are labels outside 0 .. {len(self.labels) - 1}")

    def __len__(self) -> int:
        return len(self._images)

    def raws(self, samples: NDArray[np.int64]) -> list[RawImage]:
        """Views into the file's arrays."""
        labels = self._numbers[samples].tolist()
        return [RawImage(self._images[i], n) for i, n in zip(samples.tolist(), labels, strict=True)]

    def where(self, sample: int) -> str:
        """File and number."""
        return f"{self.path}, image {sample}"


class FolderImages:
    """DIR/LABEL/*.png, labels and files in the order of their names. Hidden files are none."""

    def __init__(self, path: Path) -> None:
        """Raises DataError for a folder without such files."""
        self.path = path
        try:
            folders = sorted(p for p in path.iterdir() if p.is_dir())
            found = [(p, sorted(f for f in p.iterdir() if f.name[0] != ".")) for p in folders]
        except OSError as error:
            raise _no_images(path, f"{error}") from error
        images = [(p, [f for f in files if f.suffix.lower() == ".png"]) for p, files in found]
        kept = [(folder, files) for folder, files in images if files]
        self.labels = tuple(_name(path, folder.name) for folder, _ in kept)
        self._files = [(file, n) for n, (_, files) in enumerate(kept) for file in files]
        others = [f for _, files in found for f in files if f.suffix.lower() != ".png"]
        self.remarks = _not_used(others)
        if not self._files:
            held = f", but {others[0].name} and the like" if others else ""
            raise _no_images(path, f"no folder in it holds a .png file{held}")

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names and contents."""
        said = hashlib.sha256()
        for file, _ in self._files:
            name = str(file.relative_to(self.path)).encode()
            said.update(name + b"\0" + hashlib.sha256(file.read_bytes()).digest())
        return said.hexdigest()

    def __len__(self) -> int:
        return len(self._files)

    def raws(self, samples: NDArray[np.int64]) -> list[RawImage]:
        """The bytes of the files. Raises DataError for one that is gone or huge."""
        return [RawImage(self._read(i), self._files[i][1]) for i in samples.tolist()]

    def _read(self, sample: int) -> bytes:
        try:
            with self._files[sample][0].open("rb") as file:
                data = file.read(MAX_PNG_BYTES + 1)
        except OSError as error:
            raise DataError(f"{self.where(sample)}: {error}. Put it back.") from error
        if len(data) > MAX_PNG_BYTES:
            raise DataError(f"{self.where(sample)} is larger than {MAX_PNG_BYTES:,} bytes. Cut it.")
        return data

    def where(self, sample: int) -> str:
        """The file."""
        return str(self._files[sample][0])


class Part(Subset):
    """Some images of a data set, under numbers of their own."""

    def __init__(self, whole: ImageDataset, samples: NDArray[np.int64]) -> None:
        super().__init__(whole, samples)
        self.labels, self.remarks = whole.labels, whole.remarks


def open_images(path: Path) -> ImageDataset:
    """The data set of that name. Raises DataError."""
    return FolderImages(path) if path.is_dir() else ArrayImages(path)


def split(whole: ImageDataset, share: float, seed: int) -> tuple[Part, Part]:
    """(to learn from, held out): a share of the samples, chosen by the seed alone."""
    held = round(len(whole) * share)
    if not 0 < held < len(whole):
        raise DataError(
            f"{share:g} of {len(whole)} images leave nothing on one side. Give another share."
        )
    learned, kept = divided(len(whole), held, seed)
    return Part(whole, learned), Part(whole, kept)


def _name(path: Path, name: object) -> str:
    """Of a label, as JSON can say it."""
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _no_images(path, f"the label {text!r} is no text in UTF-8") from error
    return text


def _not_used(others: list[Path]) -> tuple[str, ...]:
    if not others:
        return ()
    return (f"files that are no .png, passed over: {len(others):,}; the first: {others[0]}",)


def _no_images(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} is no set of images: {why}. Give a .npz file with `images` (n, height, width) and "
        "`labels`, or a folder with a folder of .png files for each label."
    )
