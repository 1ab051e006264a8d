"""Adapters as PEFT's folders: adapter_config.json beside adapter_model.safetensors, in and out.

The law: an adapter is taken whole or not at all. Every matrix that the description means must be
there, in its shape, and nothing else; a name that matches nothing is an error, never passed over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from rebar.errors import CorruptFileError, MissingFileError, UnsupportedModelError
from rebar.graph.lora.config import CONFIG, AdapterConfig, read_config
from rebar.graph.lora.modules import Place, plain
from rebar.graph.lora.spec import LoraSpec, matrix_names
from rebar.graph.models.adapted import part_shape
from rebar.graph.models.config import DecoderConfig
from rebar.graph.weights.layout import floats
from rebar.graph.weights.model_file import StoredTensor
from rebar.graph.weights.rebar_writer import unwritten
from rebar.graph.weights.safetensors import FloatTensor, read_notes, read_safetensors
from rebar.graph.weights.safetensors_writer import safetensors_bytes
from rebar.hal.files import write_whole

F32 = NDArray[np.float32]
WEIGHTS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
TRAINED_ON = "trained_on"  # among the notes of the weights' file


@dataclass(frozen=True, slots=True)
class LowRank:
    """One module's matrices as they stand in the file, a (r, k) and b (n, r), and the factor of
    b a.
    """

    a: StoredTensor
    b: StoredTensor
    scale: float

    @property
    def rank(self) -> int:
        """Rank of b a."""
        return self.a.shape[0]

    def matrices(self) -> tuple[F32, F32]:
        """A and B in float32, exact."""
        a, b = (floats(t, t.name).reshape(t.shape) for t in (self.a, self.b))
        return a, b


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter in a folder, checked against a model. parts: by layer and part of it. digest:
    sha256 (hex) of its two files. trained_on: digest of the weights it was trained on, "" where
    nobody wrote it down.
    """

    path: Path
    digest: str
    config: AdapterConfig
    parts: Mapping[Place, LowRank]
    trained_on: str = ""

    @property
    def rank(self) -> int:
        """The largest rank of its matrices."""
        return max(low.rank for low in self.parts.values())

    def is_foreign(self, base: str) -> bool:
        """Whether it was trained on other weights than those with this digest, maybe the same model
        in another quantization: it can be served, but what is served is not what was trained.
        """
        return bool(base and self.trained_on) and base != self.trained_on


def digest_of(folder: Path) -> str:
    """sha256 (hex) of the two files of an adapter."""
    said = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        try:
            said.update(hashlib.sha256((folder / name).read_bytes()).digest())
        except OSError as error:
            raise MissingFileError(
                f"{folder / name} cannot be read: {error.strerror}. Name a folder with {CONFIG} "
                f"and {WEIGHTS}, as peft's save_pretrained writes it."
            ) from error
    return said.hexdigest()


def read_adapter(folder: Path, config: DecoderConfig, digest: str = "") -> Adapter:
    """Opens an adapter for a model. Raises ModelFileError naming what is missing, left over, of
    another shape or not known. digest: of an adapter that was read so before; its values are not
    looked through again.
    """
    if not (folder / WEIGHTS).exists() and (folder / PICKLED).exists():
        raise UnsupportedModelError(
            f"{folder} holds only {PICKLED}, a pickle, which can run code and is never read. Save "
            "it as safetensors where you trust it."
        )
    known, digest = bool(digest), digest or digest_of(folder)
    described = read_config(folder)
    where = str(folder / WEIGHTS)
    tensors = _named(read_safetensors(folder / WEIGHTS), where)
    places = described.places(config, where)
    parts = {
        place: _low_rank(described, module, part_shape(config, place.part), tensors, where)
        for module, place in places.items()
    }
    if not known:
        _check_numbers(parts.values(), where)
    if tensors:
        listed = ", ".join(sorted(tensors)[:5])
        raise UnsupportedModelError(
            f"{where}: {listed} belong{'s' if len(tensors) == 1 else ''} to no target of "
            f"{CONFIG}. Use an adapter whose description and weights go together."
        )
    trained_on = read_notes(folder / WEIGHTS).get(TRAINED_ON, "")
    return Adapter(folder, digest, described, parts, trained_on)


def _named(stored: Mapping[str, FloatTensor], where: str) -> dict[str, FloatTensor]:
    """The matrices by the names this decoder has, whatever prefix they carry."""
    found: dict[str, FloatTensor] = {}
    for full, tensor in stored.items():
        name = plain(full).replace(".default.weight", ".weight")
        if name in found:
            raise CorruptFileError(f"{where}: {full!r} stands there twice. Save the adapter again.")
        found[name] = tensor
    return found


def _low_rank(
    described: AdapterConfig,
    module: str,
    shape: tuple[int, int],
    tensors: dict[str, FloatTensor],
    where: str,
) -> LowRank:
    """Takes a module's two matrices out of `tensors`."""
    n, k = shape
    rank = described.rank_of(module)
    due = dict(zip(matrix_names(module), ((rank, k), (n, rank)), strict=True))
    taken: list[StoredTensor] = []
    for name, wanted in due.items():
        tensor = tensors.pop(name, None)
        if tensor is None:
            beside = f" ({next(iter(tensors))!r} is there)" if tensors else ""
            raise CorruptFileError(
                f"{where}: {name!r} is missing{beside}. Use an adapter that was made for this "
                "model and saved whole."
            )
        if tensor.shape != wanted:
            raise CorruptFileError(
                f"{where}: {name!r} has shape {tensor.shape}, this model and {CONFIG} ask for "
                f"{wanted}. Use an adapter that was made for this model."
            )
        taken.append(StoredTensor(name, tensor.shape, tensor.type, tensor.data))
    return LowRank(taken[0], taken[1], described.scale_of(module))


def _check_numbers(parts: Iterable[LowRank], where: str) -> None:
    for stored in (matrix for low in parts for matrix in (low.a, low.b)):
        if not np.isfinite(floats(stored, where)).all():
            raise CorruptFileError(
                f"{where}: {stored.name!r} holds what is no number. Train it again."
            )


def write_adapter(
    folder: Path,
    spec: LoraSpec,
    matrices: Mapping[str, F32],
    *,
    base: str = "",
    trained_on: str = "",
) -> None:
    """Writes a folder that peft opens. matrices: A and B in float32 by the names of lora_shapes.
    base, trained_on: name of the model, and digest of its weights. Whoever is stopped in between
    leaves no description, so that never new weights stand beside an old scale. ModelFileError when
    it cannot be written.
    """
    named = {f"base_model.model.{name}": values for name, values in sorted(matrices.items())}
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": spec.r,
        "lora_alpha": spec.alpha,
        "lora_dropout": 0.0,
        "use_rslora": spec.rslora,
        "target_modules": spec.targets[0] if spec.targets == ("all-linear",) else [*spec.targets],
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
    }
    notes = {"format": "pt"} | ({TRAINED_ON: trained_on} if trained_on else {})
    weights = safetensors_bytes(named, notes)
    try:
        (folder / CONFIG).unlink(missing_ok=True)
        with write_whole(folder / WEIGHTS, len(weights)) as file:
            file.write(weights)
        with write_whole(folder / CONFIG) as file:
            file.write(msgspec.json.format(msgspec.json.encode(described), indent=2) + b"\n")
    except OSError as error:
        raise unwritten(folder, error, len(weights)) from error
