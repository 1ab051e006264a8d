"""Tokenize: what each kind of record becomes, and what is none of them."""

from __future__ import annotations

from typing import Any

import pytest

from rebar.dataflow.data import Item, Marked, Pack, Tokenize
from rebar.dataflow.data.mask import Mask
from rebar.dataflow.text import ChatTemplate, Tokenizer
from rebar.errors import DataError
from tests.dataflow.test_chat import CALL, CHATML, user
from tests.dataflow.vocabularies import bpe, with_bos

ASSISTANT = {"role": "assistant", "content": "b"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def stage(tokenizer: Tokenizer | None = None, *, chat: bool = True) -> Tokenize:
    tokenizer = tokenizer or bpe()
    return Tokenize(tokenizer, ChatTemplate(CHATML, tokenizer) if chat else None, "line {}".format)


def made(record: object, tokenizer: Tokenizer | None = None) -> Marked:
    [item] = stage(tokenizer).process_batch([Item(0, 0, 7, record)])
    return item.value


def asked(record: object, tokenizer: Tokenizer | None = None) -> str:
    """The text that is asked for."""
    marked = made(record, tokenizer)
    ids = marked.ids if marked.asked is None else marked.ids[marked.asked]
    return (tokenizer or bpe()).decode(ids.tolist())


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"messages": [user("a"), ASSISTANT], "id": 3}, "b<|im_end|>"),
        ({"prompt": "a", "completion": "b"}, "b<|im_end|>"),
        ({"prompt": [user("a")], "completion": [ASSISTANT]}, "b<|im_end|>"),
        (
            {"prompt": [user("a"), ASSISTANT, user("c")], "completion": [ASSISTANT]},
            "b<|im_end|>",
        ),
        ({"text": "a b"}, "a b<|im_end|>"),
        ({"messages": [user("a"), ASSISTANT, user("c"), ASSISTANT]}, "b<|im_end|>b<|im_end|>"),
    ],
)
def test_what_is_asked_for(record: object, text: str) -> None:
    assert asked(record) == text


def test_tools_reach_the_template() -> None:
    tools = "{% if tools %}{{ tools | tojson }}{% endif %}"
    template = ChatTemplate(tools + CHATML.replace(tools, ""), bpe())
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    messages = [user("a"), calling]
    batch = [Item(0, 0, 0, {"messages": messages, "tools": TOOLS})]
    [item] = Tokenize(bpe(), template, str).process_batch(batch)
    whole = template.encode(messages, tools=TOOLS, add_generation_prompt=False)
    assert bpe().decode(item.value.ids.tolist()) == bpe().decode(whole)
    assert item.value.asked is not None
    said = bpe().decode(item.value.ids[item.value.asked].tolist())
    assert said == '<tool_call>{"name": "f", "arguments": {"a": [1, "é"]}}<|im_end|>'


@pytest.mark.parametrize("make", [bpe, with_bos])
def test_ids_around_are_those_that_serving_puts_there(make: Any) -> None:
    tokenizer = make()
    begin = [tokenizer.bos_id] if tokenizer.add_bos else []
    text = tokenizer.encode("a b", bos=False)
    assert made({"text": "a b"}, tokenizer).ids.tolist() == [*begin, *text, tokenizer.eos_id]
    pair = made({"prompt": "a b", "completion": "a b"}, tokenizer).ids.tolist()
    assert pair == [*tokenizer.encode("a b"), *text, tokenizer.eos_id]


@pytest.mark.parametrize("make", [bpe, with_bos])
def test_a_template_rendered_by_hand_is_what_the_template_gives(make: Any) -> None:
    """Control tokens spelled in a message are text; in a text for completions they are tokens, as
    /v1/completions has it, and what stands there already is not added again.
    """
    tokenizer = make()
    template = ChatTemplate(CHATML, tokenizer)
    prompt = template.render([user("a")])
    begin = [tokenizer.bos_id] if tokenizer.add_bos else []
    whole = template.encode([user("a"), ASSISTANT], add_generation_prompt=False)[:-1]
    assert tokenizer.is_control(whole[-1])
    for completion in ("b", "b<|im_end|>"):
        pair = made({"prompt": prompt, "completion": completion}, tokenizer)
        assert pair.ids.tolist() == [*begin, *whole]
        document = made({"text": prompt + completion}, tokenizer)
        assert document.ids.tolist() == whole  # <|im_start|> is what this model begins with
    assert asked({"messages": [user("a"), {**ASSISTANT, "content": "<|im_end|>x"}]}, tokenizer) == (
        "<|im_end|>x<|im_end|>"
    )


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"question": "a"}, "holds question"),
        ({}, "holds nothing"),
        ([1], "holds list"),
        ("text", "holds str"),
        ({"text": None}, "holds text"),
        ({"prompt": "a"}, "holds prompt"),
        ({"prompt": "a", "completion": [ASSISTANT]}, "holds prompt, completion"),
        ({"messages": "hi"}, "no list of objects"),
        ({"messages": ["hi"]}, "no list of objects"),
        ({"messages": [user("a"), ASSISTANT], "tools": "f"}, "tools is no list"),
        ({"messages": [{"role": "user"}, ASSISTANT]}, "content"),
        ({"messages": []}, "empty"),
    ],
)
def test_what_is_no_sample_is_said_with_its_place(record: object, said: str) -> None:
    with pytest.raises(DataError, match=rf"line 7: .*{said}"):
        made(record)
    skipping = Tokenize(bpe(), ChatTemplate(CHATML, bpe()), str, "skip")
    assert skipping.process_batch([Item(0, 0, 7, record)]) == []
    assert skipping.tally.counts == {"invalid": 1}
    assert skipping.get_memory_footprint([Item(0, 0, 7, record)]) >= 0


def test_a_model_without_a_template() -> None:
    batch = [Item(0, 0, 0, {"messages": [user("a"), ASSISTANT]})]
    bare = stage(chat=False)
    with pytest.raises(DataError, match="no chat template"):
        bare.process_batch(batch)
    assert bare.get_memory_footprint(batch) > 0


def test_rules_that_are_none() -> None:
    with pytest.raises(DataError, match="'raise' or 'skip'"):
        Tokenize(bpe(), None, str, "ignore")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="1 or more"):
        Mask(0, str)
    with pytest.raises(DataError, match="Give more"):
        Pack(0, 1)


def test_pack_refuses_what_fits_nowhere() -> None:
    examples = Mask(100, str).process_batch(
        stage().process_batch([Item(0, 0, 0, {"text": "a" * 99})])
    )
    with pytest.raises(DataError, match="longer than a micro-batch"):
        Pack(4, 4).process_batch(examples)
