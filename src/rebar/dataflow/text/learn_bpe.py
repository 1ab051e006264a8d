"""A byte-level BPE vocabulary learned from a text (Sennrich et al., arXiv:1508.07909): for models
that are trained from nothing.

The most frequent pair of neighbours becomes a token, again and again; of equals the first in the
order of bytes. Pairs are counted within words as GPT-2 cuts them, a space before a word belonging
to it; encoding then splits by the same rule. A byte has a token of its own, so that every text has
ids.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import pairwise

from rebar.dataflow.text.vocabulary import byte_alphabet
from rebar.errors import InputError
from rebar.graph.weights.end_tokens import CONTROL, NORMAL
from rebar.graph.weights.model_file import TokenizerData

END = "<|endoftext|>"
# openai/gpt-2, encoder.py, with \p{L} and \p{N} as far as Python's re has them.
_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
Pair = tuple[bytes, bytes]


def learn_bpe(text: str, size: int) -> TokenizerData:
    """A vocabulary of at most `size` tokens: the end of a text, 256 bytes, merges; fewer when
    no pair occurs twice any more. Raises InputError for less than 257.
    """
    if size < 257:
        raise InputError(
            f"a vocabulary of {size} tokens has no room for 256 bytes and the end of a text. Give "
            "--tokenizer bytes or bpe:257 and up.",
            param="tokenizer",
        )
    merges = _merges(Counter(word.encode() for word in _WORD.findall(text)), size - 257)
    shown = byte_alphabet()
    tokens = [END, *shown, *("".join(shown[b] for b in a + c) for a, c in merges)]
    return TokenizerData(
        kind="bpe",
        pre="gpt-2",
        tokens=tokens,
        types=[CONTROL] + [NORMAL] * (len(tokens) - 1),
        merges=[
            "".join(shown[b] for b in a) + " " + "".join(shown[b] for b in c) for a, c in merges
        ],
        bos_id=0,
        eos_id=0,
        end_ids=(0,),
    )


def _merges(words: Counter[bytes], count: int) -> list[Pair]:
    """The pairs in the order in which they became tokens. Only words that hold the pair are counted
    anew.
    """
    parts = [[bytes([b]) for b in word] for word in words]
    times = list(words.values())
    often: Counter[Pair] = Counter()
    holders: defaultdict[Pair, set[int]] = defaultdict(set)
    for i, word in enumerate(parts):
        _count(word, times[i], i, often, holders)
    found: list[Pair] = []
    while len(found) < count and often:
        best = min(often, key=lambda pair: (-often[pair], pair))
        if often[best] < 2:
            break
        found.append(best)
        for i in sorted(holders.pop(best)):
            _count(parts[i], -times[i], i, often, holders)
            parts[i] = _merged(parts[i], best)
            _count(parts[i], times[i], i, often, holders)
        del often[best]
    return found


def _count(
    word: list[bytes],
    times: int,
    number: int,
    often: Counter[Pair],
    holders: defaultdict[Pair, set[int]],
) -> None:
    for pair in pairwise(word):
        often[pair] += times
        if times > 0:
            holders[pair].add(number)
        elif not often[pair]:
            del often[pair]


def _merged(word: list[bytes], pair: Pair) -> list[bytes]:
    out: list[bytes] = []
    at = 0
    while at < len(word):
        if at + 1 < len(word) and (word[at], word[at + 1]) == pair:
            out.append(word[at] + word[at + 1])
            at += 2
        else:
            out.append(word[at])
            at += 1
    return out
