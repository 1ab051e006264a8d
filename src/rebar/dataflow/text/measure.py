"""How long the results of a template's operations are, before they are made.

The limits are counts, not seconds: the same template and messages always end the same way.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined

LONGEST = 16 << 20  # characters of one text, and of the prompt
WORK = 1 << 29  # characters handled in one rendering: copying them takes well under a second
STEPS = 200_000  # rounds of loops, calls of macros, filters and methods in one rendering
ELEMENT = 16  # what an element of a list weighs in characters (its memory)
NODE = 128  # what a value weighs that is walked over (its time: copying 128 characters takes less)
LARGEST_ARGUMENT = 10_000  # numbers given to filters and methods: widths, counts
LARGEST_EXPONENT = 64
WIDEST_BITS = 256  # of the product of two whole numbers


class Budget(threading.local):
    """What the rendering of this thread has used."""

    steps = 0
    work = 0

    def reset(self) -> None:
        """At the start of each rendering."""
        self.steps = self.work = 0

    def step(self) -> None:
        """One more round of a loop, or call."""
        self.steps += 1
        if self.steps > STEPS:
            raise SecurityError(f"it takes more than {STEPS} steps")

    def spend(self, length: int) -> None:
        """An operation is about to make something of `length`."""
        self.work += length
        self.check(length)

    def check(self, length: int) -> None:
        """Refuses a text of `length`, and more work than is allowed."""
        if length > LONGEST or self.work > WORK:
            raise SecurityError("it makes too long a text")

    def listed(self, items: Iterator[object]) -> list[object]:
        """What a generator yields, counted."""
        result = []
        for item in items:
            self.step()
            result.append(item)
        return result


def length_of(value: object) -> int:
    """Of a text or container, in characters; 1 for anything else."""
    if isinstance(value, list | tuple | dict):
        return len(value) * ELEMENT
    return len(value) if isinstance(value, str) else 1


def size_of(value: object, *, printed: bool = False) -> int:
    """At least how long str(value) is; walks no further than a text may be.

    printed: refuses values whose own str() could be of any length.
    """
    total = 0
    levels: list[Iterator[object]] = [iter((value,))]
    while levels and total <= LONGEST:
        for item in levels[-1]:
            total += NODE + (len(item) if isinstance(item, str) else 0)
            if isinstance(item, Mapping):
                levels.append(iter([*item.keys(), *item.values()]))
                break
            if isinstance(item, list | tuple):
                levels.append(iter(item))
                break
            if printed and not isinstance(item, str | int | float | None | Undefined):
                raise SecurityError(f"a {type(item).__name__} cannot be printed")
        else:
            levels.pop()
    return total


def length_of_sum(left: object, right: object) -> int:
    """Of left + right."""
    return length_of(left) + length_of(right)


def length_of_product(left: object, right: object) -> int:
    """Of left * right."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() + right.bit_length()
        return 1 if bits <= WIDEST_BITS else LONGEST + 1
    if isinstance(left, int):
        left, right = right, left
    return length_of(left) * max(right, 0) if isinstance(right, int) else 1


def length_of_power(left: object, right: object) -> int:
    """Of left ** right."""
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return 1
    return 1 if abs(left) <= 1_000_000 and abs(right) <= LARGEST_EXPONENT else LONGEST + 1


def length_of_format(form: object, values: object) -> int:
    """Of form % values, or form.format(*values)."""
    if not isinstance(form, str):
        return 1
    if re.search(r"\d{4}|\*", form):
        raise SecurityError("it formats with too large a width")
    fields = form.count("%") + form.count("{")
    return len(form) + fields * (size_of(values, printed=True) + LARGEST_ARGUMENT)


def length_of_call(name: str, subject: object, arguments: Sequence[object]) -> int:
    """Of what filter or method `name` makes of `subject`."""
    if name in {"format", "format_map"}:
        return length_of_format(subject, list(arguments))
    if name == "join":
        return _joined(subject, arguments)
    if name == "replace" and len(arguments) >= 2:
        old, new = str(arguments[0]), str(arguments[1])
        text = subject if isinstance(subject, str) else str(subject)
        return len(text) + text.count(old) * len(new)
    if name == "indent":
        width = max((len(a) for a in arguments if isinstance(a, str)), default=LARGEST_ARGUMENT)
        return length_of(subject) + (str(subject).count("\n") + 1) * width
    if name in {"ljust", "rjust", "zfill", "center"}:
        return length_of(subject) + LARGEST_ARGUMENT
    if name in {"expandtabs", "translate"}:
        raise SecurityError(f"{name} is not supported")
    return length_of(subject)


def _joined(subject: object, arguments: Sequence[object]) -> int:
    """The filter joins its subject by its argument, the method its argument by its subject."""
    method = isinstance(subject, str) and len(arguments) == 1 and not isinstance(arguments[0], str)
    items, by = (arguments[0], subject) if method else (subject, arguments[0] if arguments else "")
    return size_of(items, printed=True) + length_of(items) * (1 + len(str(by)))


def check_numbers(name: str, arguments: Sequence[object]) -> None:
    """Refuses widths, counts and the like that make small things huge."""
    if any(isinstance(a, int) and abs(a) > LARGEST_ARGUMENT for a in arguments):
        raise SecurityError(f"it gives {name or 'a call'} too large a number")
