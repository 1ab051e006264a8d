"""Image classifiers as .rebar files: what is written is read, and what is damaged is refused."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rebar.errors import CorruptFileError, ModelFileError, UnsupportedModelError
from rebar.graph.classifier import ClassifierOptions, load_classifier
from rebar.graph.image_learner import ImageLearnerOptions, open_image_learner
from rebar.graph.models.image_config import tensor_shapes
from rebar.graph.weights import open_model, rebar_format, verify_digests
from rebar.graph.weights.classifier import is_classifier, open_classifier, write_classifier
from rebar.graph.weights.pack import LAYOUT_VERSION
from rebar.graph.weights.rebar_format import ClassifierHeader, data_start, decode, encode
from tests.tiny import tiny_gguf
from tests.tiny.classifier import CONFIG, tiny_classifier

OPTIONS = ClassifierOptions(threads=1, memory=64 << 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_classifier(tmp_path)


def test_a_file_computes_as_the_learner_that_wrote_it(path: Path) -> None:
    learner = open_image_learner(CONFIG, ImageLearnerOptions(threads=1, seed=3, memory=64 << 20))
    images = np.random.default_rng(0).standard_normal((9, CONFIG.values), dtype=np.float32)
    file = open_classifier(path)
    net = load_classifier(file, OPTIONS)
    assert (net.classify(images) == learner.classifier.classify(images)).all()
    assert (file.name, file.config, file.provenance) == ("shapes", CONFIG, {"tool": "tests"})
    assert {name: t.shape for name, t in file.tensors.items()} == dict(tensor_shapes(CONFIG))
    assert is_classifier(path)
    assert verify_digests(path) == sum(t.data.nbytes for t in file.tensors.values())


def test_each_kind_of_model_is_told_from_the_other(path: Path, tmp_path: Path) -> None:
    gguf = tiny_gguf(tmp_path)
    assert not is_classifier(gguf)
    assert not is_classifier(tmp_path)
    with pytest.raises(UnsupportedModelError, match="is an image classifier, not a language"):
        open_model(path)


def changed(path: Path, **fields: object) -> Path:
    """The file with another header, digests and lengths right."""
    raw = path.read_bytes()
    header, start = decode(memoryview(raw), LAYOUT_VERSION, "x", ClassifierHeader)
    data = raw[start:]
    head = encode(msgspec.structs.replace(header, **fields), len(data), LAYOUT_VERSION)
    path.write_bytes(head.ljust(data_start(len(head) - 64), b"\0") + data)
    return path


def test_tensors_that_are_not_those_of_the_description(path: Path) -> None:
    header, _ = decode(memoryview(path.read_bytes()), LAYOUT_VERSION, "x", ClassifierHeader)
    for tensors in (header.tensors[1:], header.tensors[:-1], header.tensors * 2):
        with pytest.raises(CorruptFileError):
            open_classifier(changed(path, tensors=tensors))
    narrower = msgspec.structs.replace(header.tensors[0], name="stages.9.conv0.weight")
    with pytest.raises(CorruptFileError, match=r"stages\.0\.conv0\.weight"):
        open_classifier(changed(path, tensors=(narrower, *header.tensors[1:])))


def test_a_description_that_cannot_be_is_damage(path: Path) -> None:
    """Its own rules hold for a file too, whatever its digests say."""
    raw = path.read_bytes()
    header, start = decode(memoryview(raw), LAYOUT_VERSION, "x", ClassifierHeader)
    told = msgspec.json.decode(msgspec.json.encode(header))
    told["config"]["labels"] = ["same", "same", "same"]
    body = msgspec.json.encode(told)

    whole = rebar_format.data_start(len(body)) + len(raw) - start
    prefix = rebar_format.PREFIX.pack(
        rebar_format.MAGIC,
        rebar_format.FORMAT_VERSION,
        LAYOUT_VERSION,
        len(body),
        whole,
        hashlib.sha256(body).digest(),
    )
    path.write_bytes((prefix + body).ljust(rebar_format.data_start(len(body)), b"\0") + raw[start:])
    with pytest.raises(CorruptFileError, match="name of its own"):
        open_classifier(path)


@pytest.mark.parametrize("cut", [0, 10, 63, 64, 200, 5000, -1])
def test_a_file_cut_anywhere_is_refused(path: Path, cut: int) -> None:
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelFileError):
        open_classifier(path)


def test_any_changed_byte_of_the_header_or_data_is_found(path: Path) -> None:
    raw = path.read_bytes()
    spans = open_classifier(path).tensors.values()
    random = np.random.default_rng(1)
    _, start = decode(memoryview(raw), LAYOUT_VERSION, "x", ClassifierHeader)
    for at in random.integers(0, 500, 20):
        broken = bytearray(raw)
        broken[at] ^= 0x10
        path.write_bytes(broken)
        with pytest.raises(ModelFileError):
            open_classifier(path)
    broken = bytearray(raw)
    broken[start + 3] ^= 1
    path.write_bytes(broken)
    open_classifier(path)
    with pytest.raises(CorruptFileError, match="does not have its digest"):
        verify_digests(path)
    assert spans


def test_a_place_that_cannot_be_written_is_told(path: Path, tmp_path: Path) -> None:
    learner = open_image_learner(CONFIG, ImageLearnerOptions(threads=1, memory=64 << 20))
    values = {p.name: p.value for p in learner.parameters}
    with pytest.raises(ModelFileError, match="cannot be written"):
        write_classifier(Path(os.devnull) / "x.rebar", "x", CONFIG, values, {})
