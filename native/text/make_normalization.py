"""Writes normalization.inc: decompositions, compositions and mark classes of the reference.

The reference (`tokenizers`) normalizes by an older Unicode version than Python's; marks that came
later stand still there. The data is Python's, each entry kept only when the reference, asked, acts
on it. (A combining class never changes once it is given: Unicode stability policy.) Run it with the
`tokenizers` package installed:  python make_normalization.py > normalization.inc
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

import tokenizers
from tokenizers import normalizers

NFC, NFD = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
HANGUL = range(0xAC00, 0xD7A4)  # decomposed by arithmetic (Unicode 16, 3.12)


def points() -> Iterator[int]:
    """Every code point but surrogates and Hangul syllables."""
    for point in range(0x110000):
        if not 0xD800 <= point <= 0xDFFF and point not in HANGUL:
            yield point


def moves(point: int) -> bool:
    """Whether the reference reorders the mark `point`."""
    char = chr(point)
    if unicodedata.combining(char) > 1:
        return NFD("q" + char + "\u0334") == "q\u0334" + char
    return NFD("q\u0300" + char) == "q" + char + "\u0300"


def classes() -> list[tuple[int, int, int]]:
    """Runs (first, last, combining class)."""
    runs: list[list[int]] = []
    for point in points():
        kind = unicodedata.combining(chr(point))
        if kind == 0 or len(NFD(chr(point))) > 1 or not moves(point):
            continue
        if runs and runs[-1][1] == point - 1 and runs[-1][2] == kind:
            runs[-1][1] = point
        else:
            runs.append([point, point, kind])
    return [(first, last, kind) for first, last, kind in runs]


def decompositions() -> Iterator[tuple[int, int, int, int]]:
    """(point, first, second or 0, 1 when the two compose again), one step each."""
    for point in points():
        mapping = unicodedata.decomposition(chr(point))
        if not mapping or mapping.startswith("<") or NFD(chr(point)) == chr(point):
            continue
        parts = [int(part, 16) for part in mapping.split()]
        composes = len(parts) == 2 and NFC("".join(map(chr, parts))) == chr(point)
        yield point, parts[0], parts[1] if len(parts) == 2 else 0, int(composes)


def show(items: Iterator[str]) -> None:
    """Prints items in lines of at most 140 columns."""
    line = ""
    for item in items:
        if len(line) + len(item) > 140:
            print(line)
            line = ""
        line += item
    print(line)


def main() -> None:
    """Prints both tables."""
    print("// Made by make_normalization.py; do not edit.")
    print(
        f"// Sources: tokenizers {tokenizers.__version__} for what is acted on, "
        f"Unicode {unicodedata.unidata_version} for how."
    )
    print("constexpr MarkRange kMarks[] = {  // first, last, canonical combining class")
    show(f"{{0x{a:X},0x{b:X},{k}}}," for a, b, k in classes())
    print("};")
    print("constexpr Decomposition kDecompositions[] = {  // point, first, second, composes again")
    show(f"{{0x{p:X},0x{a:X},0x{b:X},{c}}}," for p, a, b, c in decompositions())
    print("};")


if __name__ == "__main__":
    main()
