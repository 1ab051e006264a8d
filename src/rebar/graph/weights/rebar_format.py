"""The .rebar file: what stands where.

    0      magic, 8 bytes: 0x89 "REBAR" CR LF (a transfer that rewrites line ends breaks it)
    8      u32 version of this format, u32 version of the packed layout (native/rebar.h)
    16     u64 bytes of the header, u64 bytes of the file
    32     sha256 of the header
    64     header, JSON (`Header`)
    data   from the next multiple of 4096 on; offsets in the header count from here

Data: the tokenizer's tables, the embedding, one blob a layer, the rest. A blob begins at a
multiple of 4096, so that pages come in the order of use; a tensor begins at a multiple of 64
inside it. Tensors stand in the order of their use, q, k, v and gate, up next to each other:
neighbours of one type without a gap are one matrix. All numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import struct
from typing import ClassVar, TypeVar

import msgspec

from rebar.errors import CorruptFileError, ShapeError, UnsupportedModelError
from rebar.graph.models.config import DecoderConfig
from rebar.graph.models.image_config import ConvNetConfig
from rebar.graph.weights.model_file import WeightType

MAGIC = b"\x89REBAR\r\n"
FORMAT_VERSION = 1
PREFIX = struct.Struct("<8sIIQQ32s")
BLOB_ALIGNMENT = 4096
TENSOR_ALIGNMENT = 64
MAX_HEADER_BYTES = 1 << 24  # 4,096 layers of 12 tensors need 11 MB

ProvenanceValue = str | int | float | bool | None


class Span(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes in the data part and their digest (sha256, hex)."""

    offset: int
    nbytes: int
    sha256: str


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor. packed: in the tiles of native/rebar.h, else plain."""

    name: str
    type: WeightType
    shape: tuple[int, ...]
    packed: bool
    span: Span


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All a reader must know before it touches the data of a language model."""

    KIND: ClassVar[str] = "decoder"

    name: str
    config: DecoderConfig
    tensors: tuple[TensorEntry, ...]
    vocabulary: Span
    chat_template: str | None
    provenance: dict[str, ProvenanceValue]

    @property
    def spans(self) -> list[tuple[str, Span]]:
        """What stands in the data, by name."""
        named = [(entry.name, entry.span) for entry in self.tensors]
        return [("the tokenizer's tables", self.vocabulary), *named]


class ClassifierHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The same of an image classifier; its labels and what becomes of pixels are in its config."""

    KIND: ClassVar[str] = "classifier"

    kind: str
    name: str
    config: ConvNetConfig
    tensors: tuple[TensorEntry, ...]
    provenance: dict[str, ProvenanceValue]

    @property
    def spans(self) -> list[tuple[str, Span]]:
        """What stands in the data, by name."""
        return [(entry.name, entry.span) for entry in self.tensors]


class _Kind(msgspec.Struct):
    """Of any header; a language model's says nothing."""

    kind: str = Header.KIND


AnyHeader = Header | ClassifierHeader
H = TypeVar("H", Header, ClassifierHeader)


def aligned(offset: int, alignment: int) -> int:
    """The next multiple of `alignment`."""
    return -(-offset // alignment) * alignment


def data_start(header_nbytes: int) -> int:
    """Where the data part begins."""
    return aligned(PREFIX.size + header_nbytes, BLOB_ALIGNMENT)


def encode(header: AnyHeader, data_nbytes: int, layout: int) -> bytes:
    """Prefix and header. The file is data_start + data_nbytes long."""
    body = msgspec.json.encode(header)
    whole = data_start(len(body)) + data_nbytes
    digest = hashlib.sha256(body).digest()
    return PREFIX.pack(MAGIC, FORMAT_VERSION, layout, len(body), whole, digest) + body


def decode(data: memoryview, layout: int, where: str, form: type[H]) -> tuple[H, int]:
    """(header, where the data part begins) of a whole file's bytes. Raises CorruptFileError or
    UnsupportedModelError, also for a model of another kind.
    """
    body, start = _checked(data, layout, where)
    kind = _decoded(body, _Kind, where).kind
    if kind != form.KIND:
        words = {"decoder": "a language model", "classifier": "an image classifier"}
        raise UnsupportedModelError(
            f"{where} is {words.get(kind, f'of the kind {kind!r}')}, not {words[form.KIND]}. Give "
            "one of those (`rebar serve` takes both)."
        )
    return _decoded(body, form, where), start


def decode_any(data: memoryview, layout: int, where: str) -> tuple[AnyHeader, int]:
    """As decode, of a model of any kind."""
    body, start = _checked(data, layout, where)
    forms: dict[str, type[AnyHeader]] = {f.KIND: f for f in (Header, ClassifierHeader)}
    kind = _decoded(body, _Kind, where).kind
    return _decoded(body, forms.get(kind, Header), where), start


def kind_of(data: memoryview, layout: int, where: str) -> str:
    """ "decoder" or "classifier". Raises as decode does."""
    return _decoded(_checked(data, layout, where)[0], _Kind, where).kind


F = TypeVar("F", bound=msgspec.Struct)


def _decoded(body: memoryview, form: type[F], where: str) -> F:
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise _corrupt(where, f"the header is unreadable ({error})") from error
    except ShapeError as error:
        raise _corrupt(where, str(error)) from error


def _checked(data: memoryview, layout: int, where: str) -> tuple[memoryview, int]:
    """The header's bytes, whose digest is right, and where the data part begins."""
    if len(data) < PREFIX.size:
        raise _corrupt(where, f"{len(data)} bytes cannot hold a beginning")
    magic, version, packing, header_nbytes, file_nbytes, digest = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise _corrupt(where, "it does not begin as a .rebar file does")
    for what, found, known in (("format", version, FORMAT_VERSION), ("layout", packing, layout)):
        if found != known:
            raise UnsupportedModelError(
                f"{where} has version {found} of the {what}, this release reads {known}. "
                "Convert the model again (rebar convert)."
            )
    if file_nbytes != len(data):
        raise _corrupt(where, f"it must be {file_nbytes} bytes long and is {len(data)}")
    if header_nbytes > MAX_HEADER_BYTES or data_start(header_nbytes) > file_nbytes:
        raise _corrupt(where, f"a header of {header_nbytes} bytes is impossible")
    body = data[PREFIX.size : PREFIX.size + header_nbytes]
    if hashlib.sha256(body).digest() != digest:
        raise _corrupt(where, "the header does not have its digest")
    return body, data_start(header_nbytes)


def _corrupt(where: str, what: str) -> CorruptFileError:
    return CorruptFileError(f"{where}: {what}. The file is damaged: convert the model again.")
