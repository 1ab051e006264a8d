"""Text of every kind, the same on every run: prose, code, numbers, scripts, emoji, noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

WORD_LIST = """
the of and to in is was that it for on with as his her they be at one have this from or had by hot
word but what some we can out other were all there when up use your how said an each she which do
their time if will way about many then them write would like so these long make thing see him two
has look more day could go come did number sound no most people my over know water than call first
who may down side been now find any new work part take get place made live where after back little
only round man year came show every good me give our under don't we'll I've they're it's he'd
CAN'T THEY'LL extraordinarily tokenization antidisestablishmentarianism
"""
WORDS = WORD_LIST.split()
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇫🇷", "❤️", "🧑🏿‍🚀", "1️⃣", "🤷‍♀️", "🫩"]
RANGES = {
    "latin": (0x00C0, 0x024F),
    "ipa": (0x0250, 0x02FF),
    "greek": (0x0370, 0x03FF),
    "cyrillic": (0x0400, 0x052F),
    "hebrew": (0x0590, 0x05FF),
    "arabic": (0x0600, 0x06FF),
    "devanagari": (0x0900, 0x097F),
    "thai": (0x0E00, 0x0E7F),
    "hangul": (0xAC00, 0xD7A3),
    "jamo": (0x1100, 0x11FF),
    "kana": (0x3040, 0x30FF),
    "cjk": (0x4E00, 0x9FFF),
    "compatibility": (0xF900, 0xFAFF),
    "punctuation": (0x2000, 0x206F),
    "symbols": (0x2190, 0x2BFF),
    "fullwidth": (0xFF00, 0xFFEF),
    "mathematical": (0x1D400, 0x1D7FF),
    "extension B": (0x20000, 0x2A6DF),
    "private": (0xE000, 0xF8FF),
}
MARKS = range(0x0300, 0x0370)
SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    " \n ",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u0085",
]
CODE = (
    'def f(x: int) -> str:\n    if x == 0x1F:\n\t\treturn f"{x!r:>10}"  # ok\n'
    "    for (i=0;i<n;++i){ a[i]+=1.5e-3; }\n\n<table><tr><td>1</td></tr></table>\n</html>   "
    'let v: Vec<u8> = vec![0; 16];\r\n\tprintf("%d\\n", 42);\n\n\n'
)


def prose(random_: random.Random) -> str:
    """A sentence."""
    words = [random_.choice(WORDS) for _ in range(random_.randint(3, 25))]
    return " ".join(words).capitalize() + random_.choice([". ", "! ", "?\n", '."\n\n', " — ", "; "])


def numbers(random_: random.Random) -> str:
    """Digits of many kinds."""
    kinds = [
        str(random_.getrandbits(random_.randint(1, 90))),
        f"{random_.random() * 1e6:,.3f}",
        f"{random_.randint(0, 31)}/{random_.randint(1, 12)}/{random_.randint(1900, 2100)}",
        "".join(random_.choice("٠١٢٣४५६½²Ⅷ①𝟘") for _ in range(4)),
        f"0x{random_.getrandbits(64):X}",
    ]
    return random_.choice(kinds) + random_.choice(SPACES)


def script(random_: random.Random) -> str:
    """A few words of one script."""
    low, high = RANGES[random_.choice(sorted(RANGES))]
    words = (
        "".join(chr(random_.randint(low, high)) for _ in range(random_.randint(1, 9)))
        for _ in range(random_.randint(1, 8))
    )
    return random_.choice(SPACES).join(words)


def marked(random_: random.Random) -> str:
    """Letters under combining marks, composed and not."""
    letters = (random_.choice("aeiouAcnyśé가ᄀ<>=") for _ in range(12))
    return "".join(
        c + "".join(chr(random_.choice(MARKS)) for _ in range(random_.randint(0, 3)))
        for c in letters
    )


def controls(random_: random.Random) -> str:
    """Control characters, format characters, noncharacters."""
    pool = [*range(32), *range(0x7F, 0xA0), 0xFEFF, 0xFFFE, 0x200D, 0x202E, 0xFDD0, 0x10FFFF]
    return "".join(chr(random_.choice(pool)) for _ in range(random_.randint(1, 8)))


def noise(random_: random.Random) -> str:
    """Random bytes read as text."""
    data = random_.randbytes(random_.randint(1, 60))
    return data.decode(random_.choice(["utf-8", "latin-1", "cp437"]), "replace")


def anything(random_: random.Random) -> str:
    """Any code points but surrogates."""
    points = (random_.randint(0, 0x10FFFF) for _ in range(random_.randint(1, 10)))
    return "".join(chr(p) for p in points if not 0xD800 <= p <= 0xDFFF)


def runs(random_: random.Random) -> str:
    """One character, or a few, again and again."""
    unit = random_.choice(
        ["a", " ", "\n", "\t", "é", "=", "-", "0", "\r\n", "▁", "ab", "😀", " \n"]
    )
    return unit * random_.randint(1, 70)


def marked_up(random_: random.Random) -> str:
    """Tokens that are matched whole, and their parts."""
    pool = [
        "<tool_call>",
        "</tool_call>",
        "<|im_end|>",
        "<b>",
        "</h1>",
        "<bos>",
        "<unused7>",
        "<0x41>",
    ]
    text = random_.choice(
        [*pool, "[multimodal]", "<table>", "<start_of_turn>", "<|endoftext|>", "'\u017f"]
    )
    return text[random_.randint(0, 2) :] + random_.choice(["", " ", "\u0338", "x", "\n"])


def mixed_text(chars: int, seed: int) -> Iterator[str]:
    """Pieces of about 2000 characters, `chars` in all."""
    random_ = random.Random(seed)
    makers: list[Callable[[random.Random], str]] = [
        prose,
        prose,
        prose,
        numbers,
        script,
        script,
        marked,
        controls,
        noise,
        anything,
        runs,
    ]
    makers += [
        marked_up,
        lambda r: r.choice(EMOJI) * r.randint(1, 3),
        lambda r: CODE[r.randint(0, 40) :],
    ]
    made = 0
    while made < chars:
        piece = ""
        while len(piece) < 2000:
            piece += random_.choice(makers)(random_) + random_.choice(["", "", " ", "\n"])
        made += len(piece)
        yield piece


def own_sources(root: Path) -> Iterator[str]:
    """This project's own files: real code and prose."""
    for folder in ("src", "native", "tests"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".py", ".cpp", ".h", ".inc", ".md"}:
                yield path.read_text(encoding="utf-8", errors="replace")
