"""A vocabulary of 512 tokens: control tokens, all 256 bytes, and merges learned from one
paragraph.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise

TEXT = """The quick brown fox jumps over the lazy dog, and then the other foxes jump over the other
dogs. It is a truth that there is nothing that one can do in the morning that another one could not
do in the evening; when they were there, all of them said that this was what they had been looking
for. Numbers such as 1234567890 and 3.14159, names such as Alice, Bob and Carol, code such as def
main(x): return x + 1 and "quoted text" are part of this paragraph, because merges must be learned
from something; she sells sea shells by the sea shore, while Peter Piper picked a peck of pickled
peppers every Sunday. In the beginning there was the word, and the words were with them: hello
world, hello you, what is this?
"""

BPE_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPM_CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
SIZE = 512


@cache
def byte_alphabet() -> tuple[str, ...]:
    """GPT-2's printable character of each byte (openai/gpt-2, encoder.py, bytes_to_unicode)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return tuple(chr(byte) if byte in plain else chr(next(others)) for byte in range(256))


def _learn(words: Counter[tuple[str, ...]], count: int) -> list[tuple[str, str]]:
    """At most `count` most frequent pairs in turn (Sennrich et al., arXiv:1508.07909), ties by
    text.
    """
    merges: list[tuple[str, str]] = []
    while len(merges) < count and (pairs := _pairs(words)):
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = Counter({_merged(word, best): times for word, times in words.items()})
    return merges


def _pairs(words: Counter[tuple[str, ...]]) -> Counter[tuple[str, str]]:
    pairs: Counter[tuple[str, str]] = Counter()
    for word, times in words.items():
        for pair in pairwise(word):
            pairs[pair] += times
    return pairs


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for part in word:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


def _distinct(merges: list[tuple[str, str]], known: set[str], count: int) -> list[tuple[str, str]]:
    """The first `count` merges that give a new token."""
    chosen: list[tuple[str, str]] = []
    for left, right in merges:
        if len(chosen) < count and left + right not in known:
            known.add(left + right)
            chosen.append((left, right))
    return chosen


@cache
def bpe() -> tuple[list[str], list[int], list[str]]:
    """(tokens, types, merges) of a byte-level BPE."""
    alphabet = byte_alphabet()
    words = Counter(
        tuple(alphabet[byte] for byte in (" " * (i > 0) + word).encode())
        for i, word in enumerate(TEXT.split())
    )
    tokens = [*BPE_CONTROL, *alphabet]
    merges = _distinct(_learn(words, SIZE - len(tokens)), set(tokens), SIZE - len(tokens))
    tokens += [left + right for left, right in merges]
    tokens += [f"<|unused{i}|>" for i in range(SIZE - len(tokens))]
    used = len(BPE_CONTROL) + 256 + len(merges)
    types = [3] * len(BPE_CONTROL) + [1] * (used - len(BPE_CONTROL)) + [5] * (SIZE - used)
    return tokens, types, [f"{left} {right}" for left, right in merges]


@cache
def spm() -> tuple[list[str], list[int], list[float], list[str]]:
    """(tokens, types, scores, merges) of a SentencePiece-style BPE with byte fallback."""
    marked = [("▁" * (i > 0)) + word for i, word in enumerate(TEXT.split())]
    letters = sorted(set("".join(marked)) | {"\n"})
    tokens = [*SPM_CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    types = [3, 3, 3, 2, 3, 3] + [6] * 256 + [1] * len(letters)
    room = SIZE - len(tokens)
    merges = _distinct(_learn(Counter(map(tuple, marked)), room), set(tokens), room)
    tokens += [left + right for left, right in merges]
    types += [1] * len(merges) + [5] * (room - len(merges))
    tokens += [f"<unused{i}>" for i in range(SIZE - len(tokens))]
    first = SIZE - room
    scores = [-1000.0] * first + [-float(rank) for rank in range(room)]
    return tokens, types, scores, [f"{left} {right}" for left, right in merges]


CHATML = """
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""
TURNS = """
{{- bos_token -}}
{%- for message in messages -%}
{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] + '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""
