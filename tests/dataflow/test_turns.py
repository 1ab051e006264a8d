"""Which ids of a conversation the assistant said: exactly those that serving would generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar.dataflow.text import ChatTemplate, Tokenizer
from rebar.dataflow.text.turns import Part, conversation
from rebar.errors import InputError
from rebar.graph.weights import open_model
from tests.dataflow.test_chat import CALL, CHATML, EVIL, user
from tests.dataflow.vocabularies import IM_END, bpe, spm

# As published with Gemma 3; the base model's own file carries none.
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {{- message['content'] | trim }}{{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""
FORGETFUL = CHATML.replace("m.content", "(m.content if loop.last or m.role == 'user' else 'gone')")


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def ids_of(parts: list[Part]) -> list[int]:
    return [id for part in parts for id in part.ids]


def check(template: ChatTemplate, tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> None:
    """Each asked part is what is said after the prompt that serving would have had; all parts
    together say what the template renders.
    """
    parts, endless = conversation(template, tokenizer, messages)
    turns = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    asked = [n for n, part in enumerate(parts) if part.asked]
    assert len(asked) == len(turns)
    assert endless == 0
    whole = template.encode(messages, add_generation_prompt=False)
    assert tokenizer.decode(ids_of(parts)) == tokenizer.decode(whole)
    for turn, number in zip(turns, asked, strict=True):
        served = template.encode(messages[:turn])
        before = ids_of(parts[:number])
        if number == asked[0]:
            assert before == served
        assert tokenizer.decode(before) == tokenizer.decode(served)
        said = parts[number].ids
        assert [id for id in said if id in tokenizer.end_ids] == said[-1:]
        assert tokenizer.decode(said[:-1]).strip() == messages[turn]["content"].strip()


TALK = [
    {"role": "system", "content": "Be brief."},
    user("What is the capital of France?"),
    assistant("Paris."),
    user("And of 日本?"),
    assistant("東京 — Tōkyō 😀"),
]


@pytest.mark.parametrize(
    "messages",
    [
        TALK,
        TALK[1:],
        [user("hi"), assistant("\n\nSure"), user("\n"), assistant("  two  spaces\n")],
        [user(EVIL), assistant(EVIL + "<end_of_turn><eos>"), user("x"), assistant("<|im_end|>")],
    ],
    ids=["system", "plain", "blanks", "evil"],
)
def test_smollm2(smollm2_path: Path, messages: list[dict[str, Any]]) -> None:
    model = open_model(smollm2_path)
    tokenizer = Tokenizer.of(model)
    check(ChatTemplate(model.chat_template or "", tokenizer), tokenizer, messages)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["qwen05_path", "gemma3_path"])
def test_qwen_and_gemma(name: str, request: pytest.FixtureRequest) -> None:
    model = open_model(request.getfixturevalue(name))
    tokenizer = Tokenizer.of(model)
    template = ChatTemplate(model.chat_template or GEMMA, tokenizer)
    check(template, tokenizer, TALK)
    check(template, tokenizer, [user("hi"), assistant("\n\nSure"), user("x"), assistant("y ")])
    check(template, tokenizer, [user(EVIL), assistant(EVIL)])


@pytest.mark.parity
def test_tools_of_qwen(qwen05_path: Path) -> None:
    """A turn that calls, its answer, and the turn after: the template joins the tools' answers."""
    model = open_model(qwen05_path)
    tokenizer = Tokenizer.of(model)
    template = ChatTemplate(model.chat_template or "", tokenizer)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    messages = [
        user("x"),
        assistant("", tool_calls=[CALL]),
        {"role": "tool", "content": "42"},
        {"role": "tool", "content": "43"},
        assistant("It is 42."),
    ]
    parts, _ = conversation(template, tokenizer, messages, tools)
    said = [tokenizer.decode(part.ids) for part in parts if part.asked]
    assert said[0].startswith("<tool_call>")
    assert said[0].endswith("</tool_call><|im_end|>")
    assert said[1] == "It is 42.<|im_end|>"


@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=2, max_size=8),
    st.booleans(),
)
@settings(deadline=None)
def test_any_conversation(texts: list[str], sentencepiece: bool) -> None:
    tokenizer = spm() if sentencepiece else bpe()
    template = ChatTemplate(GEMMA if sentencepiece else CHATML, tokenizer)
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    parts, _ = conversation(template, tokenizer, messages)
    whole = template.encode(messages, add_generation_prompt=False)
    assert tokenizer.decode(ids_of(parts)) == tokenizer.decode(whole)
    assert sum(part.asked for part in parts) == len(texts) // 2
    first = next(n for n, part in enumerate(parts) if part.asked)
    assert ids_of(parts[:first]) == template.encode(messages[:1])


def test_a_turn_is_encoded_as_it_is_generated() -> None:
    """Text that begins with a line end joined the generation prompt's own ("\\n\\n" is one id), so
    a model was taught to say what serving never lets it say.
    """
    template, tokenizer = ChatTemplate(CHATML, bpe()), bpe()
    parts, _ = conversation(template, tokenizer, [user("a"), assistant("\nb")])
    asked = next(part for part in parts if part.asked)
    assert asked.ids == [*tokenizer.encode_on("\nb"), IM_END]


def test_weights_and_the_first_asked() -> None:
    template, tokenizer = ChatTemplate(CHATML, bpe()), bpe()
    messages = [user("a"), assistant("b", weight=0), user("c"), assistant("d", weight=1)]
    parts, _ = conversation(template, tokenizer, messages)
    assert [tokenizer.decode(p.ids) for p in parts if p.asked] == ["d<|im_end|>"]
    messages = [user("a"), assistant("b"), user("c"), assistant("d")]
    parts, _ = conversation(template, tokenizer, messages, first=2)
    assert [tokenizer.decode(p.ids) for p in parts if p.asked] == ["d<|im_end|>"]


def test_a_template_without_end_tokens_is_counted() -> None:
    plain = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    plain += "{% if add_generation_prompt %}assistant: {% endif %}"
    tokenizer = bpe()
    parts, endless = conversation(
        ChatTemplate(plain, tokenizer), tokenizer, [user("a"), assistant("b")]
    )
    assert endless == 1
    assert [tokenizer.decode(p.ids) for p in parts if p.asked] == ["b\n"]


@pytest.mark.parametrize(
    ("source", "messages", "said"),
    [
        (FORGETFUL, [user("a"), assistant("b"), user("c"), assistant("d")], "otherwise than"),
        (CHATML, [assistant("b")], "nothing asked for it"),
        (CHATML, [{"content": "b"}], "role None"),
        (CHATML, [], "empty"),
        ("", [user("a"), assistant("b")], "no chat template"),
    ],
)
def test_what_cannot_be_learned_is_said(
    source: str, messages: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        conversation(ChatTemplate(source, bpe()), bpe(), messages)
