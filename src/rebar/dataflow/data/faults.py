"""What happens to a sample that cannot be used: a rule that somebody chose, and a count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rebar.dataflow.data.stage import Tally
from rebar.errors import DataError

OnError = Literal["raise", "skip"]
Where = Callable[[int], str]


class Faults:
    """raise: the first fault ends the run, named by file and line. skip: such samples are passed
    over, counted as `invalid`, and the first places and causes are kept.
    """

    def __init__(self, on_error: OnError, where: Where, tally: Tally) -> None:
        if on_error not in ("raise", "skip"):
            raise DataError(f"on_error is {on_error!r}. Choose 'raise' or 'skip'.")
        self._on_error = on_error
        self._where = where
        self._tally = tally

    def meet(self, sample: int, error: Exception) -> None:
        """Deals with a fault of this sample. Raises DataError if that is the rule."""
        place = self._where(sample)
        if self._on_error == "raise":
            raise DataError(
                f"{place}: {error} (To pass over such records and count them: on_error='skip'.)"
            ) from error
        self._tally.add("invalid", where=f"{place}: {error}")
