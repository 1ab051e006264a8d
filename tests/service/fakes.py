"""Small fakes behind the service's real seams: a runner that says what it is told, a byte
tokenizer, a template.

ScriptedRunner checks its input as the real one relies on it: rows continue their sequence, counts
stay within max_rows, and what it wrote into the KV blocks of a sequence is still there at every
later step.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rebar.errors import EngineError, InputError, KVCacheFullError
from rebar.graph.sequence import Row, Sampled
from rebar.graph.sequence import Sequence as Ids

BLOCK = 16
END = 256
START_TURN, END_TURN, FIRST_WORD = 257, 258, 259
SPECIAL = {END: "<|end|>", START_TURN: "<|im_start|>", END_TURN: "<|im_end|>"}
WORDS = ("The", " quick", " br", "own f", "ox j", "umps", " a", "hello", " wörld", "😀")


class FakePool:
    """KV blocks, and what was written into each position of them."""

    block_size = BLOCK

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self._free = list(range(total_blocks))
        self.written: dict[int, tuple[int, int]] = {}

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def allocate(self, count: int, /) -> list[int]:
        if count > len(self._free):
            raise KVCacheFullError("full", needed=count, available=len(self._free))
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def release(self, blocks: list[int], /) -> None:
        assert not set(blocks) & set(self._free), "a block was given back twice"
        self._free += blocks


Chooser = Callable[[Ids, int], int]


def hashed(sequence: Ids, position: int) -> int:
    """An id that depends on every id up to `position`, the seed and the temperature, and on nothing
    else.
    """
    seed = sequence.sampling.seed if sequence.sampling.temperature > 0 else 0
    text = f"{sequence.tokens[: position + 1].tolist()}{seed}{sequence.sampling.logit_bias}"
    return 97 + hashlib.blake2b(text.encode(), digest_size=4).digest()[0] % 26


class ScriptedRunner:
    """Says `script`, then END; or what `choose(sequence, position)` says. Sleeps `slow` seconds a
    step.

    `before`: called with the rows of every step, may raise. `logprob`: what is reported, may be
    -inf or NaN.
    """

    def __init__(
        self,
        script: Iterable[int] = (),
        *,
        kv_blocks: int = 64,
        max_context: int = 128,
        max_rows: int = 32,
        slow: float = 0.0,
        choose: Chooser | None = None,
    ) -> None:
        self.script = list(script)
        self.kv = FakePool(kv_blocks)
        self.max_context = max_context
        self.max_rows = max_rows
        self.slow = slow
        self.choose = choose
        self.before: Callable[[list[Row]], None] | None = None
        self.logprob = -0.5
        self.steps: list[list[tuple[int, int]]] = []
        self.closed = False

    def reset(self) -> None:
        """As new, for the next test."""
        self.script, self.slow, self.choose, self.before = [], 0.0, None, None
        self.logprob = -0.5

    def step(self, rows: list[Row], /) -> list[list[Sampled]]:
        assert 0 < sum(row.count for row in rows) <= self.max_rows
        self.steps.append([(row.first, row.count) for row in rows])
        if self.slow:
            time.sleep(self.slow)
        if self.before:
            self.before(rows)
        for row in rows:
            self._write(row)
        return [[self._answer(row.sequence, position) for position in row.wants] for row in rows]

    def close(self) -> None:
        self.closed = True

    def _write(self, row: Row) -> None:
        """Writes the row's ids into its blocks, after checking that the earlier ones still stand
        there.
        """
        sequence = row.sequence
        assert row.count > 0
        assert row.first == sequence.computed
        for position in range(row.first + row.count):
            slot = sequence.blocks[position // BLOCK] * BLOCK + position % BLOCK
            token = (position, int(sequence.tokens[position]))
            if position >= row.first:
                self.kv.written[slot] = token
            assert self.kv.written[slot] == token, "another sequence wrote into this block"

    def _answer(self, sequence: Ids, position: int) -> Sampled:
        if position + 1 < sequence.total:
            return self._scored(int(sequence.tokens[position + 1]), sequence)
        said = position + 1 - sequence.prompt
        if self.choose:
            return self._scored(self.choose(sequence, position), sequence)
        return self._scored(self.script[said] if said < len(self.script) else END, sequence)

    def _scored(self, token: int, sequence: Ids) -> Sampled:
        count = sequence.sampling.logprobs
        if count is None:
            return Sampled(token)
        top = tuple((id, self.logprob - i) for i, id in enumerate([token, *range(65, 90)][:count]))
        return Sampled(token, self.logprob, top)


class ByteTokenizer:
    """Ids 0-255 are bytes, then three control tokens, then WORDS (never produced by encode)."""

    def __init__(self, *, bos: bool = False) -> None:
        self.vocab_size = FIRST_WORD + len(WORDS)
        self.end_ids = frozenset({END})
        self._bos = bos

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        ids = [END_TURN] if (self._bos if bos is None else bos) else []
        pieces = [text]
        if special:
            for marker in SPECIAL.values():
                pieces = [p for piece in pieces for p in _split(piece, marker)]
        control = {text: id for id, text in SPECIAL.items()} if special else {}
        for piece in pieces:
            ids += [control[piece]] if piece in control else list(piece.encode())
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        kept = (id for id in ids if not (skip_special and id in SPECIAL))
        return b"".join(self.token_bytes(id) for id in kept).decode("utf-8", "replace")

    def token_bytes(self, token: int, /) -> bytes:
        if token < 256:
            return bytes([token])
        return SPECIAL.get(token, WORDS[max(token - FIRST_WORD, 0)]).encode()


def _split(text: str, marker: str) -> list[str]:
    pieces = [piece for part in text.split(marker) for piece in (part, marker)][:-1]
    return [piece for piece in pieces if piece]


class PlainText:
    """Streaming text by the letter of its contract, slow and plain: the oracle for the real one."""

    def __init__(self, tokenizer: ByteTokenizer, stop: tuple[str, ...]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._raw, self._shown = b"", 0
        self.stopped = False

    def push(self, token: int, /) -> str:
        self._raw += b"" if token in SPECIAL else self._tokenizer.token_bytes(token)
        return self._show(_whole_characters(self._raw), final=False)

    def finish(self) -> str:
        return "" if self.stopped else self._show(self._raw.decode("utf-8", "replace"), final=True)

    def _show(self, text: str, *, final: bool) -> str:
        ends = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            text = text[: min(ends)]
        elif not final:
            text = text[: len(text) - self._held(text)]
        new, self._shown = text[self._shown :], max(self._shown, len(text))
        return new

    def _held(self, text: str) -> int:
        """Length of the longest end of `text` that could still become a stop string."""
        return max(
            (n for stop in self._stop for n in range(1, len(stop)) if text.endswith(stop[:n])),
            default=0,
        )


def _whole_characters(raw: bytes) -> str:
    """The text of `raw` without a last character that is not complete yet."""
    for cut in range(1, min(4, len(raw)) + 1):
        lead = raw[-cut]
        if lead & 0xC0 == 0x80:
            continue
        size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        return raw[: len(raw) - (cut if size > cut else 0)].decode("utf-8", "replace")
    return raw.decode("utf-8", "replace")


class FakeTemplate:
    """ChatML; says calls, refuses a conversation that begins with the assistant."""

    def __init__(self, tokenizer: ByteTokenizer, *, drop_system: bool = False) -> None:
        self._tokenizer, self._drop_system = tokenizer, drop_system

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        return "".join(
            text if isinstance(text, str) else SPECIAL[text]
            for text in self._parts(messages, add_generation_prompt)
        )

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        parts = self._parts(messages, add_generation_prompt)
        return [
            id
            for part in parts
            for id in ([part] if isinstance(part, int) else self._tokenizer.encode(part))
        ]

    def _parts(self, messages: Sequence[Mapping[str, Any]], prompt: bool) -> list[str | int]:
        if messages[0]["role"] == "assistant":
            raise InputError("A conversation must not begin with the assistant.", param="messages")
        parts: list[str | int] = []
        for turn in messages:
            if turn["role"] == "system" and self._drop_system:
                continue
            calls = "".join(f"{c['function']}" for c in turn.get("tool_calls", ()))
            parts += [START_TURN, f"{turn['role']}\n", turn["content"] + calls, END_TURN, "\n"]
        return parts + ([START_TURN, "assistant\n"] if prompt else [])


def words(*texts: str) -> list[int]:
    """Ids of WORDS."""
    return [FIRST_WORD + WORDS.index(text) for text in texts]


def failing(message: str = "boom") -> Callable[[list[Row]], None]:
    """A `before` that always raises."""

    def fail(_: list[Row]) -> None:
        raise EngineError(message)

    return fail
