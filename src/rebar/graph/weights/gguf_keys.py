"""Typed access to the keys of a GGUF file: a key of the wrong type is the file's fault, told by
its name.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from rebar.errors import CorruptFileError
from rebar.graph.weights.gguf import GGUFFile, NumberArray, StringArray, Value

T = TypeVar("T")


class _Required:
    """Marks a key that has no value of its own when the file leaves it out."""


REQUIRED = _Required()


class Keys:
    """The keys of one file. With a default a missing key is no error; `architecture` prefixes
    `{arch}`.
    """

    def __init__(self, gguf: GGUFFile) -> None:
        self.values = gguf.values
        self.where = str(gguf.file.path)
        self.architecture = self.text("general.architecture")

    def integer(self, key: str, default: int | _Required = REQUIRED) -> int:
        """A non-negative integer below 2^53. Arrays of one repeated value count as that value."""
        value = self._value(key)
        if (
            isinstance(value, NumberArray)
            and len(value)
            and np.all(value.values == value.values[0])
        ):
            value = value.values[0].item()
        if value is None:
            return self._default(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
            raise self._wrong(key, "a non-negative integer")
        return value

    def number(self, key: str, default: float | _Required = REQUIRED) -> float:
        """A finite number."""
        value = self._value(key)
        if value is None:
            return self._default(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise self._wrong(key, "a finite number")
        return float(value)

    def text(self, key: str, default: str | _Required | None = REQUIRED) -> str:
        """A string; "" stands for a default of None."""
        value = self._value(key)
        if value is None:
            return self._default(key, default) or ""
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, "a boolean")
        return value

    def strings(self, key: str, count: int | None = None) -> list[str] | None:
        """A list of strings (of `count`), None when the key is absent."""
        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, StringArray):
            raise self._wrong(key, "an array of strings")
        self._check_count(key, len(value), count)
        return value.decode()

    def numbers(self, key: str, count: int) -> list[float] | None:
        """A list of `count` numbers, None when the key is absent."""
        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, NumberArray):
            raise self._wrong(key, "an array of numbers")
        self._check_count(key, len(value), count)
        listed: list[float] = value.values.tolist()
        return listed

    def _value(self, key: str) -> Value | None:
        return self.values.get(self.full(key))

    def full(self, key: str) -> str:
        """The key as the file spells it."""
        return key.replace("{arch}", self.architecture) if "{arch}" in key else key

    def _default(self, key: str, default: T | _Required) -> T:
        if isinstance(default, _Required):
            raise CorruptFileError(
                f"{self.where}: key {self.full(key)!r} is missing. Convert the model again."
            )
        return default

    def _wrong(self, key: str, what: str) -> CorruptFileError:
        return CorruptFileError(
            f"{self.where}: key {self.full(key)!r} is not {what}. Convert the model again."
        )

    def _check_count(self, key: str, found: int, due: int | None) -> None:
        if due is not None and found != due:
            raise CorruptFileError(
                f"{self.where}: {self.full(key)!r} has {found} entries, {due} are due. "
                "Convert the model again."
            )
