"""The errors of Rebar, a drawn tree. A message says what happened and ends with the next step.

RebarError
├── InputError            the caller's fault (HTTP: 4xx)
│   ├── ContextLengthError    more tokens than the context holds
│   └── ModelNameError        no model of that name can be found
├── ModelFileError        a model file that cannot be trusted or read
│   ├── MissingFileError      no such file, or not of the kind that is due
│   ├── CorruptFileError      lengths, offsets, numbers or digests that contradict the file
│   └── UnsupportedModelError sound, but of an architecture, type or version not known here
├── DataError             a data set, or a record of one, that cannot be read
├── DownloadError         a model that could not be fetched
├── MemoryBudgetError     a pool or plan that does not fit its budget
│   └── KVCacheFullError      no free KV block
├── TrainingError         a training run that cannot go on (data, state, another rank)
│   └── GradientExplosionError  a gradient that is no number or too large
├── ShapeError            sizes that must agree and do not
├── DeviceError           a device or back end that is missing or fails
├── CollectiveError       processes that train together and lost each other
├── DeadlineError         the caller's own deadline could not be met (HTTP: 504)
├── OverloadedError       the waiting queue is full (HTTP: 429)
└── EngineError           the engine failed inside; the request can be sent again
"""

from __future__ import annotations


class RebarError(Exception):
    """Root of every error raised on purpose."""


class InputError(RebarError):
    """The caller's fault. `param` names the offending field, `code` is machine-readable."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthError(InputError):
    """More tokens than the context holds; never cut silently."""


class ModelNameError(InputError):
    """No model of that name can be found."""


class ModelFileError(RebarError):
    """A model file that cannot be trusted or read."""


class MissingFileError(ModelFileError):
    """No such file, or not of the kind that is due (a folder, a pipe, an empty file)."""


class CorruptFileError(ModelFileError):
    """Lengths, offsets, numbers or digests that contradict the file."""


class UnsupportedModelError(ModelFileError):
    """A sound file of an architecture, type or version that this release does not know."""


class DataError(RebarError):
    """A data set, or a record of one, that cannot be read. The message begins with the file, and
    with the line where one is to blame (the first is 1).
    """


class DownloadError(RebarError):
    """A model that could not be fetched."""


class MemoryBudgetError(RebarError):
    """A pool or plan that does not fit its budget; carries both numbers in bytes."""

    def __init__(self, message: str, *, needed: int, available: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class KVCacheFullError(MemoryBudgetError):
    """No free KV block."""


class TrainingError(RebarError):
    """A training run that cannot go on: its data, its state or another of its processes."""


class GradientExplosionError(TrainingError):
    """A gradient that is no number or too large: `node` (or parameter), `step`, `magnitude`."""

    def __init__(self, message: str, *, node: str, step: int, magnitude: float) -> None:
        super().__init__(message)
        self.node = node
        self.step = step
        self.magnitude = magnitude


class ShapeError(RebarError):
    """Sizes that must agree and do not."""


class DeviceError(RebarError):
    """A device or back end that is missing or fails."""


class CollectiveError(RebarError):
    """Processes that train together did not meet, or one of them is gone."""


class DeadlineError(RebarError):
    """The deadline that the caller set could not be met; nothing was at fault."""


class OverloadedError(RebarError):
    """The waiting queue is full; `retry_after` is the whole seconds after which to try again."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineError(RebarError):
    """The engine failed inside; the request can be sent again."""
