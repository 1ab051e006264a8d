"""Writes unicode_classes.inc: what the reference tokenizers take for letters, numbers and spaces.

The classes are not taken from a Unicode file but asked of the reference itself, one code point at a
time, so that both split text at the same places whatever Unicode versions the reference carries
(its regular expressions and its Digits step know different ones, hence two classes of numbers). Run
it with the `tokenizers` package installed:  python make_unicode_classes.py > unicode_classes.inc
"""

from __future__ import annotations

from typing import Protocol

import tokenizers
from tokenizers import Regex, pre_tokenizers

LETTER, NUMBER, SPACE, DIGIT = 1, 2, 4, 8  # \p{L}, \p{N}, \s, the Digits step
SEPARATOR = "\x00"  # in none of the classes
LAST = 0x10FFFF


class Splitter(Protocol):
    """A pre-tokenizer of the reference."""

    def pre_tokenize_str(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """Pieces and their places."""


def members(splitter: Splitter) -> set[int]:
    """Code points that `splitter` cuts out (surrogates cannot be asked)."""
    found: set[int] = set()
    for start in range(1, LAST + 1, 4096):
        points = range(start, min(start + 4096, LAST + 1))
        text = SEPARATOR.join(chr(p) for p in points if not 0xD800 <= p <= 0xDFFF)
        pieces = (piece for piece, _ in splitter.pre_tokenize_str(text))
        found.update(ord(piece) for piece in pieces if len(piece) == 1 and piece != SEPARATOR)
    return found


def classes() -> dict[int, int]:
    """Code point -> bits, for every point that is in a class."""
    bits: dict[int, int] = {}
    for bit, pattern in ((LETTER, r"\p{L}"), (NUMBER, r"\p{N}"), (SPACE, r"\s")):
        for point in members(pre_tokenizers.Split(Regex(pattern), "isolated")):
            bits[point] = bits.get(point, 0) | bit
    for point in members(pre_tokenizers.Digits(individual_digits=True)):
        bits[point] = bits.get(point, 0) | DIGIT
    return bits


def ranges(bits: dict[int, int]) -> list[tuple[int, int, int]]:
    """Runs (first, last, bits) of equal neighbours."""
    runs: list[list[int]] = []
    for point in sorted(bits):
        if runs and runs[-1][1] == point - 1 and runs[-1][2] == bits[point]:
            runs[-1][1] = point
        else:
            runs.append([point, point, bits[point]])
    return [(first, last, kind) for first, last, kind in runs]


def main() -> None:
    """Prints the table."""
    print("// Made by make_unicode_classes.py; do not edit.")
    print(f"// Source: tokenizers {tokenizers.__version__}, every code point asked.")
    print("// {first, last, bits}: 1 letter, 2 number, 4 space, 8 digit (cut out one by one).")
    line = ""
    for first, last, kind in ranges(classes()):
        item = f"{{0x{first:X},0x{last:X},{kind}}},"
        if len(line) + len(item) > 140:
            print(line)
            line = ""
        line += item
    print(line)


if __name__ == "__main__":
    main()
