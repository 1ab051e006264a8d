"""The bytes of records to what their JSON says.

Most records are read by native code (native/text/bind_json.cpp), half of whose time is theirs to
begin with: memory for what they say. Whatever is not quite ordinary is read by msgspec, errors
among it; both read the same from the same bytes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from rebar._native import parse_records

__all__ = ["NO_JSON", "Json", "Raw", "parse", "parse_records"]

Json: TypeAlias = Any  # what a record says: dict, list, str, int, float, bool or None
Raw = bytes | memoryview
NO_JSON = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
parse = msgspec.json.Decoder().decode
"""What one record says. Raises one of NO_JSON."""
