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

import msgspec

from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.models.config import DecoderConfig
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
    """All a reader must know before it touches the data."""

    name: str
    config: DecoderConfig
    tensors: tuple[TensorEntry, ...]
    vocabulary: Span
    chat_template: str | None
    provenance: dict[str, ProvenanceValue]


def aligned(offset: int, alignment: int) -> int:
    """The next multiple of `alignment`."""
    return -(-offset // alignment) * alignment


def data_start(header_nbytes: int) -> int:
    """Where the data part begins."""
    return aligned(PREFIX.size + header_nbytes, BLOB_ALIGNMENT)


def encode(header: Header, data_nbytes: int, layout: int) -> bytes:
    """Prefix and header. The file is data_start + data_nbytes long."""
    body = msgspec.json.encode(header)
    whole = data_start(len(body)) + data_nbytes
    digest = hashlib.sha256(body).digest()
    return PREFIX.pack(MAGIC, FORMAT_VERSION, layout, len(body), whole, digest) + body


def decode(data: memoryview, layout: int, where: str) -> tuple[Header, int]:
    """(header, where the data part begins) of a whole file's bytes. Raises CorruptFileError or
    UnsupportedModelError.
    """
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
    try:
        return msgspec.json.decode(body, type=Header), data_start(header_nbytes)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise _corrupt(where, f"the header is unreadable ({error})") from error


def _corrupt(where: str, what: str) -> CorruptFileError:
    return CorruptFileError(f"{where}: {what}. The file is damaged: convert the model again.")
