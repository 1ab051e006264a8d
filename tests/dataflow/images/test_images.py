"""Images from files to batches: readers, stages and their footprints, windows by place."""

from __future__ import annotations

import json
import math
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rebar.dataflow.data import DataPipeline, Item, Stage
from rebar.dataflow.images import (
    ArrayImages,
    Augment,
    BatchImages,
    DecodeImages,
    ImageBatches,
    Picture,
    RawImage,
    held_out,
    open_images,
    split,
    survey_images,
)
from rebar.dataflow.images.augment import moved
from rebar.dataflow.images.dataset import ImageDataset
from rebar.dataflow.images.pixels import normalized, with_channels
from rebar.errors import DataError
from rebar.graph.image_batch import ImageBatch
from rebar.graph.models.image_config import ConvNetConfig
from tests.dataflow.data.test_footprints import measured
from tests.tiny.png import gray_png, png

DIGITS = Path(__file__).parents[2] / "data" / "digits.npz"
CONFIG = ConvNetConfig(8, 8, 1, tuple("0123456789"))


def folder_of(tmp_path: Path, count: int = 12) -> Path:
    """The first digits as PNG files in folders."""
    digits = ArrayImages(DIGITS)
    for i, raw in enumerate(digits.raws(np.arange(count))):
        assert isinstance(raw.image, np.ndarray)
        place = tmp_path / digits.labels[raw.label]
        place.mkdir(exist_ok=True)
        (place / f"{i:03}.png").write_bytes(gray_png(raw.image[..., 0]))
    return tmp_path


def decode(dataset: ImageDataset, **options: Any) -> DecodeImages:
    return DecodeImages(8, 8, 1, dataset.where, **options)


def test_arrays_and_folders_hold_the_same(tmp_path: Path) -> None:
    arrays, folder = open_images(DIGITS), open_images(folder_of(tmp_path))
    assert (len(arrays), arrays.labels) == (1797, CONFIG.labels)
    assert len(folder) == 12
    found = {}
    for dataset, count in ((arrays, 12), (folder, 12)):
        items = [Item(0, i, i, raw) for i, raw in enumerate(dataset.raws(np.arange(count)))]
        pictures = [item.value for item in decode(dataset).process_batch(items)]
        found[dataset] = sorted((p.label, p.pixels.tobytes()) for p in pictures)
    names = [folder.labels.index(arrays.labels[n]) for n, _ in found[arrays]]
    assert sorted(zip(names, [p for _, p in found[arrays]], strict=True)) == found[folder]
    assert folder.digest == open_images(tmp_path).digest != arrays.digest


class Trap:
    """Unpickled, it would leave a file."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (open, ("unpickled",))


BAD: dict[str, dict[str, Any]] = {
    "no `images`": {"labels": np.zeros(2, int)},
    "`images` of uint8": {"images": np.zeros((2, 8, 8)), "labels": np.zeros(2, int)},
    "the shape": {"images": np.zeros((2, 8), np.uint8), "labels": np.zeros(2, int)},
    r"`labels` is int64 \(3,\)": {
        "images": np.zeros((2, 8, 8), np.uint8),
        "labels": np.zeros(3, int),
    },
    "outside 0": {"images": np.zeros((2, 8, 8), np.uint8), "labels": np.array([0, -1])},
    "plain arrays": {"images": np.array([Trap()], object), "labels": np.zeros(1, int)},
}


@pytest.mark.parametrize("message", BAD)
def test_files_that_are_no_images(message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **BAD[message])
    with pytest.raises(DataError, match=message):
        ArrayImages(path)
    assert not Path("unpickled").exists()


def test_labels_are_bounded_and_are_text(tmp_path: Path) -> None:
    """A label of 10^12 asked for a name for each number below it: 8 TB."""
    images = np.zeros((2, 4, 4), np.uint8)
    np.savez(tmp_path / "far.npz", images=images, labels=np.array([0, 10**12]))
    with pytest.raises(DataError, match="labels outside 0"):
        ArrayImages(tmp_path / "far.npz")
    names = np.array([b"cat", "küken".encode()])
    np.savez(tmp_path / "bytes.npz", images=images, labels=np.array([0, 1]), names=names)
    assert ArrayImages(tmp_path / "bytes.npz").labels == ("cat", "küken")
    (tmp_path / "set" / os.fsdecode(b"\xff")).mkdir(parents=True)
    (tmp_path / "set" / os.fsdecode(b"\xff") / "a.png").write_bytes(gray_png(images[0]))
    with pytest.raises(DataError, match="no text in UTF-8"):
        open_images(tmp_path / "set")


def test_other_files_of_a_folder_are_told(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.JPG").write_bytes(b"x")
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"x")
    with pytest.raises(DataError, match=r"holds a \.png file, but a\.JPG and the like"):
        open_images(tmp_path)


def test_a_set_of_which_nothing_is_an_image(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"a\.png and all others are no images"):
        survey_images(open_images(tmp_path), "skip")


def test_a_pickle_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(pickle.dumps({"images": 1}))
    (tmp_path / "cut.npz").write_bytes(DIGITS.read_bytes()[:1000])
    for name in ("a.npz", "cut.npz", "absent.npz", "."):
        with pytest.raises(DataError, match="no set of images"):
            open_images(tmp_path / name)


def test_faults_name_the_file_or_are_counted(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "0" / "zzz.png").write_bytes(b"\xff\xd8\xff not a png")
    (folder / "0" / "zzy.png").write_bytes(gray_png(np.zeros((9, 8), np.uint8)))
    dataset = open_images(folder)
    items = [Item(0, i, i, raw) for i, raw in enumerate(dataset.raws(np.arange(len(dataset))))]
    with pytest.raises(DataError, match=r"zzy\.png: The image has 9 rows of 8 pixels"):
        decode(dataset).process_batch(items)
    skipping = decode(dataset, on_error="skip")
    assert len(skipping.process_batch(items)) == 12
    assert skipping.tally.counts == {"invalid": 2}
    assert "a JPEG" in skipping.tally.first("invalid")[1]


def test_colours_and_gray() -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], np.uint8)
    assert with_channels(colours, 1)[..., 0].tolist() == [[76, 150, 29, 255]]
    gray = np.array([[[7], [9]]], np.uint8)
    assert with_channels(gray, 3).tolist() == [[[7, 7, 7], [9, 9, 9]]]
    assert normalized(np.array([0, 255], np.uint8), CONFIG).tolist() == [-1.0, 1.0]


def test_pictures_move_and_turn_as_they_should() -> None:
    picture = np.zeros((5, 7, 1), np.uint8)
    picture[1, 2] = 200
    assert (moved(picture, 0, 0, 0) == picture).all()
    assert moved(picture, 1, -1, 0)[2, 1, 0] == 200
    assert moved(picture, 0.5, 0, 0)[1:3, 2, 0].tolist() == [100, 100]
    assert moved(picture, 9, 0, 0).max() == 0
    square = np.arange(9, dtype=np.uint8).reshape(3, 3, 1)
    turned = moved(square, 0, 0, math.pi / 2)[..., 0]
    assert np.abs(turned - np.rot90(square[..., 0], 1)).max() < 1e-5  # counter-clockwise


def pictures(count: int) -> list[Item[Picture]]:
    digits = open_images(DIGITS)
    raws = digits.raws(np.arange(count))
    return decode(digits).process_batch([Item(2, i, i, raw) for i, raw in enumerate(raws)])


def test_what_is_drawn_is_addressed() -> None:
    """One by one, or together; another epoch, sample or seed moves otherwise."""
    items, stage = pictures(20), Augment(5)
    together = [i.value.pixels.tobytes() for i in stage.process_batch(items)]
    alone = [stage.process_batch([item])[0].value.pixels.tobytes() for item in items]
    assert together == alone
    other_epoch = [Item(3, i.place, i.sample, i.value) for i in items]
    other_sample = [Item(2, i.place, i.sample + 1, i.value) for i in items]
    for changed in (
        stage.process_batch(other_epoch),
        stage.process_batch(other_sample),
        Augment(6).process_batch(items),
    ):
        assert all(a != b.value.pixels.tobytes() for a, b in zip(together, changed, strict=True))


def test_footprints_are_within_five_percent() -> None:
    digits = open_images(DIGITS)
    raws: list[Item[Any]] = [
        Item(0, i, i, raw) for i, raw in enumerate(digits.raws(np.arange(400)))
    ]
    large = np.random.default_rng(0).integers(0, 256, (64, 48, 3), dtype=np.uint8)
    files: list[Item[Any]] = [Item(0, i, i, RawImage(png(large, 2), 0)) for i in range(20)]
    wide = DecodeImages(64, 48, 3, str)
    config = ConvNetConfig(64, 48, 3, ("a", "b"))
    for first, given, c in ((decode(digits), raws, CONFIG), (wide, files, config)):
        items: Sequence[Item[Any]] = given
        stages: list[Stage[Any, Any]] = [first, Augment(0)]
        for stage in stages:
            check(stage, items)
            items = stage.process_batch(items)
        groups = [
            items[i].having(tuple(j.value for j in items[i : i + 10])) for i in range(0, 20, 10)
        ]
        check(BatchImages(c), groups)


def check(stage: Stage[Any, Any], items: Sequence[Item[Any]]) -> None:
    stage.process_batch(items)  # what a first call keeps for ever
    taken, told = measured(stage, items), stage.get_memory_footprint(items)
    assert abs(told - taken) <= 0.05 * taken, (stage.name, told, taken)


def source(epochs: int = 2, rows: int = 16, workers: int = 0, samples: int = 50) -> ImageBatches:
    learn, _ = split(open_images(DIGITS), 0.9, seed=3)
    pipeline = DataPipeline(learn, [decode(learn), Augment(1)], seed=4, workers=workers)
    return ImageBatches(pipeline, CONFIG, samples=samples, rows=rows, epochs=epochs)


def said(batch: ImageBatch) -> tuple[bytes, bytes, tuple[int, int], int]:
    return batch.images.tobytes(), batch.labels.tobytes(), batch.key, batch.first


def windows(source: ImageBatches) -> list[Any]:
    found = []
    while window := source.next_window():
        found.append((window.samples, [said(b) for b in window.batches], window.supervised))
    return found


def test_windows_hold_every_image_once_an_epoch() -> None:
    begun = source()
    found = windows(begun)
    assert len(found) == begun.windows == 8
    assert [len(samples) for samples, _, _ in found] == [50, 50, 50, 30] * 2
    first, second = ([s for samples, _, _ in found[i : i + 4] for s in samples] for i in (0, 4))
    assert sorted(first) == sorted(second) == list(range(180))
    assert first != second
    assert [b[3] for b in found[0][1]] == [0, 16, 32, 48]
    assert [w[1][0][2] for w in found] == [(4, n) for n in range(8)]


def test_a_source_goes_on_from_any_window_with_the_same_bits() -> None:
    """Positions go through JSON, as in a checkpoint."""
    all_at_once = windows(source())
    for number in range(8):
        begun = source()
        for _ in range(number):
            begun.next_window()
        told = json.loads(json.dumps(begun.position))
        again = source(workers=2)
        again.restore(told)
        assert windows(again) == all_at_once[number:]


def test_positions_of_another_run_are_refused() -> None:
    for position in ({}, {"epoch": 0, "place": 7}, {"epoch": -1, "place": 0}, {"epoch": "x"}):
        with pytest.raises(DataError):
            source().restore(position)
    assert source().digest == source().digest != source(samples=60).digest


def test_held_out_images_are_as_they_are_and_in_no_other_part() -> None:
    learn, held = split(open_images(DIGITS), 0.2, seed=0)
    assert (len(learn), len(held)) == (1438, 359)
    seen = {raw.image.tobytes() for raw in held.raws(np.arange(359))}
    twins = [r for r in learn.raws(np.arange(1438)) if r.image.tobytes() in seen]
    assert len(twins) <= 2, "the set itself holds a few digits twice"
    batches = held_out(held, CONFIG, 100)
    assert [b.rows for b in batches] == [100, 100, 100, 59]
    assert {float(v) for v in np.unique(batches[0].images)} >= {-1.0, 1.0}
    assert split(open_images(DIGITS), 0.2, seed=1)[1].digest != held.digest
    with pytest.raises(DataError, match="leave nothing"):
        split(open_images(DIGITS), 0.0, seed=0)
