"""Which ids a choice may say next, by a grammar: the engine's side of structured output.

The law: what is allowed is a function of the grammar and the ids said so far, so an engine that
takes over builds the same state from the packet's `said`. Grammars are compiled in a thread of
their own; a choice waits for its grammar and nobody else does. The matcher is llguidance's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rebar.errors import EngineError, InputError
from rebar.graph.sequence import MAX_GUESSES

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    from rebar.dataflow.text import Tokenizer

MAX_COMPILED = 64
"""Compiled grammars kept. One of 64 KiB takes a few MB, a usual schema some 100 KB."""


def limits() -> LLParserLimits:
    """What a grammar may cost. Fuel is counted in derivative steps, so a limit is the same on any
    machine: 200,000 take about a second to compile, 50,000 bound one mask to a fraction of it.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def refusal(reason: str, place: str = "response_format") -> InputError:
    """The caller's error for a grammar that cannot be used. place: the parameter at fault, and
    where in it.
    """
    return InputError(
        f"`{place}` cannot be used: {sentence_of(reason)}. Make it simpler, or take out what is "
        "not supported.",
        param=place,
        code="invalid_grammar",
    )


def sentence_of(reason: str) -> str:
    """The one line of llguidance's words that says what is wrong."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["it is not valid"]
    line = next((line for line in lines if line.startswith("error:")), lines[0])
    if line.startswith("NoExtension"):
        line = "nothing can match it"
    return line.removeprefix("error: ")[:300].rstrip(".")


class GrammarState:
    """Where one choice stands in its grammar. One thread at a time.

    masks (1 + MAX_GUESSES, words): row 0 says what may be said now, row i what after i of the ids
    that `look_ahead` was given. Those are tried on a copy, so that nothing has to be taken back and
    a grammar that becomes too costly on the way has not failed the choice.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._ahead: list[int] = []  # ids whose masks are known, from row 1 on
        self._used = 0  # of them were said since
        self.masks: NDArray[np.int32] = np.zeros(
            (1 + MAX_GUESSES, -(-vocab_size // 32)), dtype=np.int32
        )

    @property
    def allowed(self) -> NDArray[np.int32]:
        """What may be said now: bit id % 32 of word id // 32."""
        allowed: NDArray[np.int32] = self.masks[0]
        return allowed

    def replay(self, ids: tuple[int, ...]) -> None:
        """Goes through ids that were said before, then says what may follow."""
        if ids and not self._matcher.consume_tokens(list(ids)):
            self._raise()
        self._look(self._matcher, 0)

    def take(self, token: int) -> bool:
        """Goes on by one id; whether the grammar is complete, so that nothing may follow."""
        if not self._matcher.consume_token(token):
            self._raise()
        if self._matcher.is_stopped():
            return True
        if self._used < len(self._ahead) and self._ahead[self._used] == token:
            self._used += 1
            self.masks[0] = self.masks[self._used]
        else:
            self._ahead, self._used = [], 0
            self._look(self._matcher, 0)
        return False

    def look_ahead(self, ids: Sequence[int]) -> int:
        """How many of `ids` may follow one another from here, with something to say after each."""
        self._ahead, self._used = [], 0
        copy = self._matcher.deep_copy()
        for token in ids[:MAX_GUESSES]:
            if not copy.consume_token(token) or copy.is_stopped():
                break
            if not self._computed(copy, len(self._ahead) + 1):
                break
            self._ahead.append(token)
        return len(self._ahead)

    def _look(self, matcher: LLMatcher, row: int) -> None:
        if not self._computed(matcher, row):
            self._raise()

    def _computed(self, matcher: LLMatcher, row: int) -> bool:
        mask = self.masks[row]
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return not matcher.is_error()

    def _raise(self) -> None:
        raise refusal(self._matcher.get_error())


class Grammars:
    """Compiles grammars for one tokenizer and keeps the latest. `open` may be called by any thread
    for a grammar that is `ready`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tables: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._thread: ThreadPoolExecutor | None = None

    def ready(self, grammar: str, wait: float = 0.0) -> bool:
        """Whether `open` answers at once; begins to compile when it would not. Waits up to `wait`
        seconds.
        """
        future = self._future(grammar)
        if wait and not future.done():
            finished = threading.Event()
            future.add_done_callback(lambda _: finished.set())
            finished.wait(wait)
        return future.done()

    def open(self, grammar: str, said: tuple[int, ...]) -> GrammarState:
        """The state of a choice that said these ids. Raises InputError for a bad grammar."""
        matcher = self._future(grammar).result().deep_copy()
        state = GrammarState(matcher, self._tokenizer.vocab_size)
        state.replay(said)
        return state

    def close(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _future(self, grammar: str) -> Future[LLMatcher]:
        with self._lock:
            future = self._compiled.get(grammar)
            if future is None:
                if self._thread is None:
                    self._thread = ThreadPoolExecutor(1, thread_name_prefix="rebar-grammar")
                future = self._compiled[grammar] = self._thread.submit(self._compile, grammar)
                while len(self._compiled) > MAX_COMPILED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return future

    def _compile(self, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher

        if self._tables is None:
            self._tables = tables_of(self._tokenizer)
        matcher = LLMatcher(self._tables, grammar, log_level=0, limits=limits())
        if not matcher.is_error():
            matcher.compute_bitmask()  # a grammar that allows nothing says so here; warms the lexer
        if matcher.is_error():
            raise refusal(matcher.get_error())
        return matcher


class _Vocabulary:
    """What llguidance asks of a tokenizer. Control tokens are no text: no grammar lets them in."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = range(tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self.eos_token_id = end_id(tokenizer)
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(i) for i in ids]
        self.special_token_ids = [i for i in ids if tokenizer.is_control(i)]

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text, bos=False)


def end_id(tokenizer: Tokenizer) -> int:
    """The id that most likely ends an answer. EngineError for a model that has none."""
    ends = tokenizer.end_ids
    if tokenizer.eos_id in ends and tokenizer.eos_id is not None:
        return tokenizer.eos_id
    if not ends:
        raise EngineError("This model has no end token, so no grammar can end. Use another model.")
    return min(ends)


def tables_of(tokenizer: Tokenizer) -> LLTokenizer:
    """llguidance's view of a vocabulary: a trie of all tokens, 0.5 s for 150,000."""
    from llguidance import LLTokenizer, TokenizerWrapper

    vocabulary: Any = TokenizerWrapper(_Vocabulary(tokenizer))
    ends = [end_id(tokenizer), *sorted(tokenizer.end_ids - {end_id(tokenizer)})]
    return LLTokenizer(vocabulary, n_vocab=tokenizer.vocab_size, eos_token=ends)
