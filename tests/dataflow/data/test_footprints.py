"""get_memory_footprint against what tracemalloc counts: within 5 %, on text of several kinds."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rebar.dataflow.data import Decode, Item, Mask, Pack, Stage, Tokenize
from rebar.dataflow.data.decode import tree_bytes
from rebar.dataflow.data.footprint import size_of_tree
from rebar.dataflow.data.pack import BatchStage
from rebar.dataflow.text import ChatTemplate, Tokenizer
from rebar.graph.weights import open_model
from tests.dataflow.test_chat import CHATML
from tests.dataflow.vocabularies import bpe

NOVEL = Path(__file__).parents[2] / "data" / "northanger_abbey.txt"
CHINESE = "天下之至柔，馳騁天下之至堅。無有入無間，吾是以知無為之有益。"
Made = dict[str, list[bytes]]


def paragraphs() -> list[str]:
    return [p for p in NOVEL.read_text().split("\n\n") if p]


def chat(texts: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": a[:200]},
                {"role": "assistant", "content": b},
                {"role": "user", "content": "Go on."},
                {"role": "assistant", "content": a},
            ]
        }
        for a, b in zip(texts[::2], texts[1::2], strict=False)
    ]


def records() -> Made:
    texts = paragraphs()
    code = [p for p in Path(__file__).read_text().split("\n\n") if p]
    mixed = [CHINESE * (1 + n % 3) if n % 2 else text for n, text in enumerate(texts)]
    plain: dict[str, list[dict[str, Any]]] = {
        "novel": [{"text": text} for text in texts],
        "short": [{"text": text[:40]} for text in texts],
        "code": [{"text": text, "n": n, "tags": ["a", "b"]} for n, text in enumerate(code)],
        "mixed": [{"text": text} for text in mixed],
        "chat": chat(texts),
        "chat_mixed": chat(mixed),
        "completions": [{"prompt": t[:99], "completion": t[99:]} for t in texts],
    }
    made = {k: [json.dumps(r, ensure_ascii=False).encode() for r in v] for k, v in plain.items()}
    return made | {"escaped": [json.dumps({"text": text}).encode() for text in mixed]}


def measured(stage: Stage[Any, Any], batch: Sequence[Item[Any]]) -> int:
    """Bytes that go when what the stage made goes. Collections empty the interpreter's lists of
    freed objects, out of which others are made that tracemalloc does not see.
    """
    gc.collect()
    tracemalloc.start()
    try:
        made = stage.process_batch(batch)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        del made
        gc.collect()
        return held - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def stages(smollm2_path: Path) -> list[Stage[Any, Any]]:
    model = open_model(smollm2_path)
    tokenizer = Tokenizer.of(model)
    assert model.chat_template
    return [
        Decode(str),
        Tokenize(tokenizer, ChatTemplate(model.chat_template, tokenizer), str),
        Mask(128, str),
        Pack(128, 16),
        BatchStage(),
    ]


@pytest.mark.parametrize("kind", records())
def test_every_stage_on_every_kind_of_text(stages: list[Stage[Any, Any]], kind: str) -> None:
    batch = [Item(0, n, n, memoryview(record)) for n, record in enumerate(records()[kind])]
    for stage in stages:
        estimate = stage.get_memory_footprint(batch)
        truth = measured(stage, batch)
        batch = stage.process_batch(batch)
        assert batch
        assert abs(estimate - truth) <= 0.05 * truth, (stage.name, estimate, truth)


@pytest.mark.parametrize("count", [5, 20])
def test_few_samples(stages: list[Stage[Any, Any]], count: int) -> None:
    batch: list[Item[Any]] = [
        Item(0, n, n, record) for n, record in enumerate(records()["novel"][:count])
    ]
    for stage in stages[:3]:
        estimate = stage.get_memory_footprint(batch)
        truth = measured(stage, batch)
        batch = stage.process_batch(batch)
        # NumPy keeps 7 freed headers of up to 32 bytes, and takes those first.
        assert abs(estimate - truth) <= 0.05 * truth + 7 * 32, (stage.name, estimate, truth)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=40,
)


@given(TREES, st.booleans())
def test_trees_of_any_shape(tree: object, ascii_only: bool) -> None:
    """size_of_tree adds up what sys.getsizeof says of each part. A number that Python writes
    without a point or exponent is an int; one-character texts below 256 exist once.
    """
    record = json.dumps(tree, ensure_ascii=ascii_only).encode()
    truth = size_of_tree(json.loads(record))
    assert abs(tree_bytes(record) - truth) <= 0.05 * truth + 16


PIECES = st.sampled_from([b"%c" % mark for mark in b'{}[]:,"\\g1-e.\xff '] + [b"true", b'"a"'])


@given(st.lists(PIECES).map(b"".join) | st.binary())
@example(b"g")
@example(b"-")
@example(b"1-2")
def test_estimates_of_what_is_no_json(record: bytes) -> None:
    """A line `g` among good ones ended a run by a ValueError out of its estimate, whatever the rule
    for faults: to tell of a broken line is for the stage.
    """
    assert tree_bytes(record) >= 0


KEYS = ["messages", "prompt", "completion", "text", "tools", "role", "content", "tool_calls"]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.lists(ANY, max_size=4))
@settings(deadline=None)
def test_estimates_of_records_of_no_kind(records: list[object]) -> None:
    """The same of Tokenize: what a record lacks is told when it is encoded, by the rule."""
    tokenizer = bpe()
    stage = Tokenize(tokenizer, ChatTemplate(CHATML, tokenizer), str, "skip")
    batch = [Item(0, n, n, record) for n, record in enumerate(records)]
    assert stage.get_memory_footprint(batch) >= 0
    made = stage.process_batch(batch)
    assert Mask(8, str).get_memory_footprint(made) >= 0


def test_an_array_counts_its_header() -> None:
    stage_free = np.empty((3, 4), np.float32)
    from rebar.dataflow.data.footprint import array_bytes

    assert array_bytes((3, 4), np.float32) == stage_free.__sizeof__()
