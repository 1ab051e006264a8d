"""The Python API: the same answers as over HTTP, without a server."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rebar.errors import ContextLengthError, EngineError, InputError
from rebar.service.local import Model
from tests.service.fakes import END, ScriptedRunner, failing, hashed, scripted_tokenizer, words
from tests.service.live import scripted_model, wait_for

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runner() -> ScriptedRunner:
    return ScriptedRunner(words("The", " quick", " br", "own f", "ox j"))


def model_over(runner: ScriptedRunner) -> Model:
    model = scripted_model(runner)
    return Model(model.served, model.engine)


@pytest.fixture
def model(runner: ScriptedRunner) -> Iterator[Model]:
    with model_over(runner) as model:
        yield model
    assert runner.closed
    assert runner.kv.free_blocks == runner.kv.total_blocks


def test_generate_is_text_that_knows_its_numbers(model: Model) -> None:
    answer = model.generate("go", temperature=0, stop=("own fox",))
    assert answer == "The quick br"
    assert (answer.finish_reason, answer.prompt_tokens) == ("stop", 2)
    assert answer.ids == words("The", " quick", " br", "own f", "ox j")
    assert model.generate([103, 111], max_tokens=1) == "The"
    assert model.generate("go", max_tokens=1).finish_reason == "length"


def test_stream_says_the_same_in_pieces(model: Model) -> None:
    pieces = list(model.stream("go"))
    assert pieces == ["The", " quick", " br", "own f", "ox j"]
    assert "".join(pieces) == model.generate("go")


def test_chat_takes_text_or_messages(model: Model) -> None:
    said = model.chat("hi")
    assert said == model.chat([{"role": "user", "content": "hi"}])
    assert "".join(model.stream_chat("hi")) == said
    assert model.render([{"role": "user", "content": "hi"}]).endswith("<|im_start|>assistant\n")


def test_leaving_a_stream_frees_the_engine(runner: ScriptedRunner, model: Model) -> None:
    runner.choose = lambda sequence, position: 97
    for piece in model.stream("go", max_tokens=100):
        assert piece == "a"
        break
    assert model.generate("go", max_tokens=2) == "aa"


def test_tokenize_and_back(model: Model) -> None:
    assert model.tokenize("aé") == [97, 0xC3, 0xA9]
    assert model.detokenize([97, 0xC3, 0xA9]) == "aé"
    assert model.tokenize("<|end|>", special=True) == [END]
    assert len(model.tokenize("<|end|>")) == 7
    with pytest.raises(InputError):
        model.detokenize([-1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 9},
        {"top_k": 0.5},
        {"no_such": 1},
        {"n": 2},
        {"max_tokens": True},
        {"stop": ""},
    ],
)
def test_wrong_parameters(model: Model, wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        model.generate("go", **wrong)


def test_what_the_engine_refuses_or_fails(runner: ScriptedRunner, model: Model) -> None:
    with pytest.raises(ContextLengthError):
        model.generate("x" * 200)
    runner.before = failing("the step failed")
    with pytest.raises(EngineError, match="the step failed"):
        model.generate("go")
    runner.before = None
    assert model.generate("go", max_tokens=1) == "The"


def test_threads_share_the_engine(runner: ScriptedRunner, model: Model) -> None:
    """Bounded hammering: 64 requests from 8 threads say what each says alone."""
    runner.choose = hashed

    def ask(i: int) -> str:
        return model.generate(f"prompt {i}", max_tokens=1 + i % 13, seed=i)

    alone = [ask(i) for i in range(64)]
    steps = len(runner.steps)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(64))) == alone
    assert max(len(rows) for rows in runner.steps[steps:]) > 1, "nothing ran together: void test"


def test_a_closed_model_says_so(runner: ScriptedRunner) -> None:
    model = model_over(runner)
    model.close()
    with pytest.raises(EngineError, match="closed"):
        model.generate("go")


def test_model_without_template(runner: ScriptedRunner) -> None:
    scripted = scripted_model(runner)
    served = type(scripted.served)("m", scripted_tokenizer(), None, scripted.served.limits)
    with Model(served, scripted.engine) as model, pytest.raises(InputError, match="template"):
        model.chat("hi")


def test_a_model_nobody_uses_frees_itself(runner: ScriptedRunner) -> None:
    """The engine's thread held the model: dropped without close(), it stayed for ever."""
    model = model_over(runner)
    assert model.generate("go", max_tokens=1) == "The"
    del model
    gc.collect()
    wait_for(lambda: runner.closed)


ABANDONED = """
from tests.service.fakes import ScriptedRunner
from tests.service.test_local import model_over

model = model_over(ScriptedRunner(choose=lambda s, p: 97, slow=0.05))
stream = model.stream("go", max_tokens=100)
print(next(stream))
"""


def test_a_program_may_end_in_the_middle_of_a_stream() -> None:
    """A thread inside native code that was cut off by the interpreter's end aborted the process."""
    done = subprocess.run(
        [sys.executable, "-c", ABANDONED],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\n", "")
