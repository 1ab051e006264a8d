"""Small vocabularies, and naive tokenizers over them that say what is right."""

from __future__ import annotations

import re
import struct
import unicodedata
from dataclasses import replace
from functools import cache
from itertools import pairwise

from rebar.dataflow.text import Tokenizer, build_vocabulary
from rebar.graph.weights.model_file import TokenizerData
from tests.tiny import vocabulary as tiny

CONTROL, USER = 3, 4
IM_START, IM_END = 1, 2
MASK = (1 << 64) - 1


@cache
def bpe_data(pre: str = "smollm") -> TokenizerData:
    """512 tokens learned from a paragraph; <tool_call> and <tool are user-defined."""
    tokens, types, merges = tiny.bpe()
    tokens, types = list(tokens), list(types)
    for text, kind in (("<tool_call>", USER), ("<tool", USER), ("<|im_start|><|im_end|>", CONTROL)):
        tokens.append(text)
        types.append(kind)
    return TokenizerData(
        kind="bpe", pre=pre, tokens=tokens, types=types, merges=list(merges), bos_id=1, eos_id=2,
        end_ids=(0, 2), pad_id=0,
    )  # fmt: skip


@cache
def spm_data(*, prefix: bool = False) -> TokenizerData:
    """Pieces with scores, byte tokens, user-defined runs of line ends and spaces, as in GGUF."""
    tokens, types, scores, _ = tiny.spm()
    tokens, types, scores = list(tokens), list(types), list(scores)
    for text in ("\n\n", "\n\n\n", "  ", "   ", "    ", "<b>"):
        tokens.append(text)
        types.append(USER)
        scores.append(-1000.0)
    return TokenizerData(
        kind="spm", pre="default", tokens=tokens, types=types, scores=scores, bos_id=2, eos_id=1,
        end_ids=(1,), unknown_id=3, pad_id=0, add_bos=True, add_space_prefix=prefix,
    )  # fmt: skip


@cache
def bpe(pre: str = "smollm") -> Tokenizer:
    """Opened."""
    return Tokenizer(build_vocabulary(bpe_data(pre)))


@cache
def spm(*, prefix: bool = False) -> Tokenizer:
    """Opened."""
    return Tokenizer(build_vocabulary(spm_data(prefix=prefix)))


@cache
def with_bos(pre: str = "smollm") -> Tokenizer:
    """A BPE model that wants bos before each text."""
    return Tokenizer(build_vocabulary(replace(bpe_data(pre), add_bos=True)))


def merged(symbols: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Byte-pair merging as it is defined: lowest rank first, among equals leftmost."""
    while len(symbols) > 1:
        pairs = list(pairwise(symbols))
        best = min(range(len(pairs)), key=lambda i: (ranks.get(pairs[i], 1 << 40), i))
        if pairs[best] not in ranks:
            break
        symbols = [*symbols[:best], "".join(pairs[best]), *symbols[best + 2 :]]
    return symbols


def naive_bpe(data: TokenizerData, text: str) -> list[int]:
    """Ids of ordinary text by regular expressions and the slow merge."""
    ranks = {tuple(m.split(" ")): i for i, m in enumerate(data.merges or [])}
    pairs = {(a, b): rank for (a, b), rank in ranks.items()}
    vocab = {token: i for i, token in enumerate(data.tokens)}
    if data.pre == "qwen2":
        text = unicodedata.normalize("NFC", text)
    ids: list[int] = []
    for piece in pieces(data.pre, text):
        word = [tiny.byte_alphabet()[byte] for byte in piece.encode()]
        if data.pre == "llama-bpe" and "".join(word) in vocab:
            ids.append(vocab["".join(word)])
        else:
            ids += [vocab[symbol] for symbol in merged(word, pairs)]
    return ids


def pieces(pre: str, text: str) -> list[str]:
    """The published patterns, over a copy of the text in which each character is its class."""
    classes = "".join(map(_class, text))
    if pre == "smollm":
        cut = [m.span() for m in re.finditer("N|[^N]+", classes)]
        return [p for a, b in cut for p in _matches("gpt-2", text[a:b], classes[a:b])]
    return _matches(pre, text, classes)


def _matches(pre: str, text: str, classes: str) -> list[str]:
    contraction = re.compile(r"'(?:s|t|re|ve|m|ll|d)", 0 if pre == "gpt-2" else re.IGNORECASE)
    # W: the space character, S: other spaces, R: line ends, L, N, and O for the rest
    rest = {
        "gpt-2": "W?L+|W?N+|W?O+|[WSR]+(?![^WSR])|[WSR]+",
        "qwen2": "[WSO]?L+|N|W?O+R*|[WSR]*R+|[WSR]+(?![^WSR])|[WSR]+",
        "llama-bpe": "[WSO]?L+|N{1,3}|W?O+R*|[WSR]*R+|[WSR]+(?![^WSR])|[WSR]+",
    }[pre]
    pattern, at, out = re.compile(rest), 0, []
    while at < len(text):
        match = contraction.match(text, at) or pattern.match(classes, at)
        assert match is not None
        out.append(text[at : match.end()])
        at = match.end()
    return out


def _class(char: str) -> str:
    if char == " ":
        return "W"
    if char in "\r\n":
        return "R"
    if char in "\t\v\f\x85\xa0\u2003\u3000":
        return "S"
    return {"L": "L", "N": "N"}.get(unicodedata.category(char)[0], "O")


def naive_spm(data: TokenizerData, text: str) -> list[int]:
    """Ids of a text without user-defined tokens by the slow merge over derived merges."""
    spelled = [t.replace(" ", "▁") for t in data.tokens]
    vocab = {t: i for i, t in enumerate(spelled) if data.types[i] == 1 or not t.strip("▁")}
    scores = data.scores or []
    rules = []
    for token, i in vocab.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                user = data.types[i] == USER
                rules.append((not user, 0.0 if user else -scores[i], i, -cut, (left, right)))
    ranks = {rule[-1]: rank for rank, rule in enumerate(sorted(rules))}
    text = ("▁" if data.add_space_prefix and text else "") + text.replace(" ", "▁")
    symbols = []
    for char in text:
        symbols += [char] if char in vocab else [f"<0x{b:02X}>" for b in char.encode()]
    names = {token: i for i, token in enumerate(spelled)}
    return [names[symbol] for symbol in merged(symbols, ranks)]


def sealed(table: bytearray) -> bytes:
    """A table with its length and checksum put right, as a hostile writer would."""
    struct.pack_into("<Q", table, 16, len(table))
    data = bytes(table[32:])
    lanes, odd, at = [len(data), 1, 2, 3], 0x9FB21C651E98DF25, 0

    def turn(x: int) -> int:
        x = x * odd & MASK
        return (x << 29 | x >> 35) & MASK

    while len(data) - at >= 32:
        for i, word in enumerate(struct.unpack_from("<4Q", data, at)):
            lanes[i] = turn(lanes[i] ^ word)
        at += 32
    while at < len(data):
        lanes[0] = turn(lanes[0] ^ int.from_bytes(data[at : at + 8], "little"))
        at += 8
    total = 0
    for lane in reversed(lanes):
        total = _mix(lane ^ total)
    struct.pack_into("<Q", table, 24, total)
    return bytes(table)


def _mix(x: int) -> int:
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & MASK
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ x >> 33
