"""Behind the service's real seam: a runner that says what it is told, and words for it to say.

ScriptedRunner checks its input as the real one relies on it: rows continue their sequence, counts
stay within max_rows, and what it wrote into a sequence's KV blocks still stands there later.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.text import Tokenizer, build_vocabulary
from rebar.errors import EngineError
from rebar.graph import Row, Sampled, TokenizerData
from rebar.graph import Sequence as Ids
from rebar.graph.blocks import BlockLedger
from tests.tiny.vocabulary import byte_alphabet

BLOCK = 16
WIDTH = 8
END = 256
START_TURN, END_TURN, FIRST_WORD = 257, 258, 259
SPECIAL = {END: "<|end|>", START_TURN: "<|im_start|>", END_TURN: "<|im_end|>"}
WORDS = ("The", " quick", " br", "own f", "ox j", "umps", " a", "hello", " wörld", "😀")


class FakePool(BlockLedger):
    """KV blocks, and what was written into each position of them: a digest of all ids so far."""

    def __init__(self, total_blocks: int) -> None:
        super().__init__(total_blocks)
        self.written: dict[int, int] = {}
        self.block_bytes = 1000


Chooser = Callable[[Ids, int], int]


def hashed(sequence: Ids, position: int) -> int:
    """An id that depends on every id up to `position`, the seed and the temperature, and on nothing
    else.
    """
    seed = sequence.sampling.seed if sequence.sampling.temperature > 0 else 0
    text = f"{sequence.tokens[: position + 1].tolist()}{seed}{sequence.sampling.logit_bias}"
    return 97 + hashlib.blake2b(text.encode(), digest_size=4).digest()[0] % 26


def hidden_state(sequence: Ids, position: int) -> NDArray[np.float32]:
    """WIDTH numbers that depend on every id up to `position`."""
    text = f"{sequence.tokens[: position + 1].tolist()}"
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).standard_normal(WIDTH, dtype=np.float32)


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
        self.free_bytes = 1 << 20
        self.available_bytes = 1 << 40
        self.node_count = 3
        self.width = WIDTH
        self.before: Callable[[list[Row]], None] | None = None
        self.logprob = -0.5
        self.steps: list[list[tuple[int, int]]] = []
        self.closed = False

    def reset(self) -> None:
        """As new, for the next test."""
        self.script, self.slow, self.choose, self.before = [], 0.0, None, None
        self.logprob = -0.5

    @contextmanager
    def saying(self, text: bytes) -> Iterator[None]:
        """Says this to whoever asks, at once; as before afterwards."""
        names = ("script", "slow", "choose", "before", "logprob")
        kept = {name: getattr(self, name) for name in names}
        self.reset()
        self.script = list(text)
        try:
            yield
        finally:
            for name, value in kept.items():
                setattr(self, name, value)

    def step(self, rows: list[Row], /) -> list[list[Sampled]]:
        assert 0 < sum(row.count for row in rows) <= self.max_rows
        self.steps.append([(row.first, row.count) for row in rows])
        if self.slow:
            time.sleep(self.slow)
        if self.before:
            self.before(rows)
        for row in rows:
            self._write(row)
        return [[self._of(row, position) for position in row.wants] for row in rows]

    def close(self) -> None:
        self.closed = True

    def _write(self, row: Row) -> None:
        """Writes the row's ids into its blocks, after checking that the earlier ones still stand
        there.
        """
        sequence, past = row.sequence, 0
        assert row.count > 0
        assert row.first == sequence.computed
        for position in range(row.first + row.count):
            slot = sequence.blocks[position // BLOCK] * BLOCK + position % BLOCK
            past = hash((past, position, int(sequence.tokens[position])))
            if position >= row.first:
                self.kv.written[slot] = past
            assert self.kv.written[slot] == past, "another sequence wrote into this block"

    def _of(self, row: Row, position: int) -> Sampled:
        if row.hidden:
            return Sampled(-1, hidden=hidden_state(row.sequence, position).tobytes())
        return self._answer(row.sequence, position)

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


def scripted_tokenizer(*, bos: bool = False) -> Tokenizer:
    """Ids 0-255 are bytes, then three control tokens, then WORDS, which encode never gives."""
    return Tokenizer(_vocabulary(bos))


@cache
def _vocabulary(bos: bool) -> bytes:
    alphabet = byte_alphabet()
    tokens = [*alphabet, *SPECIAL.values()]
    tokens += ["".join(alphabet[byte] for byte in word.encode()) for word in WORDS]
    data = TokenizerData(
        kind="bpe",
        pre="gpt-2",
        tokens=tokens,
        types=[1] * 256 + [3] * len(SPECIAL) + [1] * len(WORDS),
        merges=[],
        bos_id=END_TURN,
        end_ids=(END,),
        add_bos=bos,
    )
    return build_vocabulary(data)


TEMPLATE = """
{%- if messages[0]['role'] == 'assistant' -%}
{{ raise_exception('A conversation must not begin with the assistant.') }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}
{%- for call in message['tool_calls'] or [] -%}{{ call['function'] | tojson }}{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""


def words(*texts: str) -> list[int]:
    """Ids of WORDS."""
    return [FIRST_WORD + WORDS.index(text) for text in texts]


def failing(message: str = "boom") -> Callable[[list[Row]], None]:
    """A `before` that always raises."""

    def fail(_: list[Row]) -> None:
        raise EngineError(message)

    return fail
