"""An engine process whose model costs nothing: what is left is the service itself.

Everything around the model is real: scheduler, streaming text, messages, supervisor. Started in the
place of rebar.service.engine_process (`COMMAND`); the model file of its spec is never opened.
"""

from __future__ import annotations

import time
from functools import partial

from rebar.dataflow.text import ChatTemplate, TextStream, Tokenizer, build_vocabulary
from rebar.dataflow.text.vocabulary import byte_alphabet
from rebar.graph import Row, RunnerOptions, Sampled, TokenizerData
from rebar.graph.blocks import BlockLedger
from rebar.service import engine_process, loading
from rebar.service.engine import InferenceEngine
from rebar.service.loading import LoadedEngine
from rebar.service.messages import EngineLimits, EngineSpec
from rebar.service.model import ServedModel

COMMAND = "from bench.scripted_engine import main; main()"
END = 256
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
BLOCKS = 1 << 16
SAID = [Sampled(97 + i) for i in range(26)]


class Pool(BlockLedger):
    """KV blocks that hold nothing."""

    block_size = 16
    block_bytes = 1


class FreeRunner:
    """Says the alphabet, a letter a step, and computes nothing. step_seconds: of a step, at least;
    a model that never waits says more than any front can pass on, and what it says is joined."""

    max_context = 1 << 16
    max_rows = 4096
    free_bytes = 0
    available_bytes = 1 << 40
    node_count = 0
    width = 0

    def __init__(self, step_seconds: float = 0.0) -> None:
        self.kv = Pool(BLOCKS)
        self._step_seconds = step_seconds
        self._due = 0.0

    def step(self, rows: list[Row], /) -> list[list[Sampled]]:
        """A letter for each position that is asked for."""
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = time.monotonic() + self._step_seconds
        return [[SAID[position % 26] for position in row.wants] for row in rows]

    def close(self) -> None:
        """Nothing to free."""


def tokenizer() -> Tokenizer:
    """A byte a token, and an end."""
    data = TokenizerData(
        kind="bpe",
        pre="gpt-2",
        tokens=[*byte_alphabet(), "<|end|>"],
        types=[1] * 256 + [3],
        merges=[],
        end_ids=(END,),
    )
    return Tokenizer(build_vocabulary(data))


def spec(max_running: int, max_waiting: int, step_seconds: float = 0.0) -> EngineSpec:
    """What the scripted engine is told; the path says how long its steps are. Nothing is guessed:
    an event a token is what is counted."""
    return EngineSpec(str(step_seconds), RunnerOptions(), max_running, max_waiting, speculation=0)


def served(limits: EngineLimits) -> ServedModel:
    """The front's half."""
    words = tokenizer()
    return ServedModel("scripted", words, ChatTemplate(TEMPLATE, words), limits)


def load_engine(
    step_seconds: float,
    _options: RunnerOptions,
    max_running: int,
    max_waiting: int,
    *,
    speculation: int = 0,
    kept: object = None,
) -> LoadedEngine:
    """In the place of loading.load_engine. Nothing is guessed: a letter is a step is an event; and
    nothing is kept."""
    runner, words = FreeRunner(step_seconds), tokenizer()
    engine = InferenceEngine(
        runner,
        partial(TextStream, words),
        vocab_size=words.vocab_size,
        max_running=max_running,
        speculation=0,
    )
    limits = EngineLimits(
        max_context=runner.max_context,
        kv_tokens=BLOCKS * Pool.block_size,
        vocab_size=words.vocab_size,
        max_open=max_running + max_waiting,
    )
    return LoadedEngine(engine, limits)


def main() -> None:
    """The engine's process."""
    import rebar.graph.weights as weights

    for module, name, value in (
        (weights, "open_model", lambda path: float(str(path))),
        (loading, "load_engine", load_engine),
        (loading, "warm_up", lambda runner: None),
    ):
        setattr(module, name, value)
    engine_process.main()


def serve_scripted(port: int, max_running: int, max_waiting: int, step_seconds: float) -> None:
    """A front over the scripted engine, until a signal."""
    from rebar.service.router import ModelService
    from rebar.service.server import serve

    engine_process.COMMAND = COMMAND

    def load() -> ModelService:
        given = spec(max_running, max_waiting, step_seconds)
        first = engine_process.EngineProcess(given)
        return ModelService.in_process(served(first.ready.limits), first, given)

    serve(load, port=port, on_ready=lambda url: print(f"ready {url}", flush=True))


if __name__ == "__main__":
    import sys

    first, second, third = map(int, sys.argv[1:4])
    serve_scripted(first, second, third, float(sys.argv[4]))
