"""Stop, max_tokens, finish_reason, usage, streaming: CASES group (b) and the text of group (a) over
HTTP.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import httpx
import pytest

from tests.service.fakes import END, words
from tests.service.live import Live, events_of, said

FOX = words("The", " quick", " br", "own f", "ox j", "umps")
MODES = list(itertools.product(("chat", "complete"), (False, True)))


def ask(live: Live, route: str, stream: bool, **fields: object) -> httpx.Response:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    asked: Callable[..., httpx.Response] = getattr(live, route)
    return asked(stream=stream, **options, **{"max_tokens": 50, **fields})


@pytest.mark.parametrize(("route", "stream"), MODES)
def test_characters_split_over_tokens_arrive_whole(live: Live, route: str, stream: bool) -> None:
    """A-a1: decoding each token alone turned halves of characters into U+FFFD."""
    live.runner.script = [0xF0, 0x9F, 0x98, 0x80, 0xE4, 0xB8, 0x96, 0xC4, 0x8F, ord("!")]
    answer = ask(live, route, stream)
    assert said(answer) == ("😀世ď!", "stop", 11)  # ten and the end id
    assert "\ufffd" not in answer.text


@pytest.mark.parametrize(("route", "stream"), MODES)
@pytest.mark.parametrize(
    ("script", "text"),
    [([0xE4, 0xB8, 0x96, *words(" a")], "世 a"), ([0xE4, 0xB8, *words(" a")], "\ufffd a")],
)
def test_space_does_not_cut_a_character(
    live: Live, route: str, stream: bool, script: list[int], text: str
) -> None:
    """A-a2: a detokenizer flushed at a leading space although a character was pending."""
    live.runner.script = script
    assert said(ask(live, route, stream))[0] == text


@pytest.mark.parametrize(("route", "stream"), MODES)
def test_end_inside_a_character(live: Live, route: str, stream: bool) -> None:
    """A-a3: the tail is one U+FFFD, the same in both modes."""
    live.runner.script = [0x41, 0xF0, 0x9F, 0x98, 0x80]
    assert said(ask(live, route, stream, max_tokens=3)) == ("A\ufffd", "length", 3)


@pytest.mark.parametrize(("route", "stream"), MODES)
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["own fox"], "The quick br"),
        (["fox", "own fox"], "The quick br"),
        ("ui", "The q"),
        (["umps"], "The quick brown fox j"),
    ],
)
def test_stop_string_never_leaks(
    live: Live, route: str, stream: bool, stop: str | list[str], text: str
) -> None:
    """A-b1: the beginning of a stop string that spans tokens had already been sent."""
    live.runner.script = FOX
    steps = len(live.runner.steps)
    assert said(ask(live, route, stream, stop=stop))[:2] == (text, "stop")
    assert len(live.runner.steps) - steps <= 1 + len(FOX), "work went on after the stop"


@pytest.mark.parametrize(("route", "stream"), MODES)
def test_the_beginning_of_a_stop_string_that_never_came_is_text(
    live: Live, route: str, stream: bool
) -> None:
    """It is held while it may still become one, and given out at the end, whatever the end is."""
    live.runner.script = list(b"abX")
    assert said(ask(live, route, stream, stop="XY")) == ("abX", "stop", 4)
    assert said(ask(live, route, stream, stop="XY", max_tokens=3)) == ("abX", "length", 3)


@pytest.mark.parametrize(("route", "stream"), MODES)
@pytest.mark.parametrize(
    ("script", "fields", "expected"),
    [
        (FOX[:5], {"max_tokens": 1}, ("The", "length", 1)),
        (FOX[:4], {"max_tokens": 5}, ("The quick brown f", "stop", 5)),
        (FOX, {"max_tokens": 5, "stop": "fox j"}, ("The quick brown ", "stop", 5)),
        (FOX, {"max_tokens": 5, "stop": "fox jumps"}, ("The quick brown fox j", "length", 5)),
    ],
)
def test_finish_reason_at_the_last_token(
    live: Live,
    route: str,
    stream: bool,
    script: list[int],
    fields: dict[str, object],
    expected: tuple[object, ...],
) -> None:
    """A-b3: "stop" was reported for a cut and "length" for an end on the last token."""
    live.runner.script = script
    assert said(ask(live, route, stream, **fields)) == expected


@pytest.mark.parametrize(("route", "stream"), MODES)
def test_context_end_is_length(live: Live, route: str, stream: bool) -> None:
    """A-b3: max_tokens is lowered to what the context has left; running into it is "length"."""
    live.runner.choose = lambda sequence, position: ord("z")
    text, finish, count = said(ask(live, route, stream, max_tokens=100_000))
    prompt = getattr(live, route)(max_tokens=1).json()["usage"]["prompt_tokens"]
    assert (finish, count) == ("length", live.runner.max_context - prompt)
    assert text == "z" * (live.runner.max_context - prompt)


def test_stop_token_ids_and_ignore_eos(live: Live) -> None:
    live.runner.script = [97, END, 98, 99]
    answer = live.chat(max_tokens=9, ignore_eos=True, stop_token_ids=[99])
    assert said(answer) == ("ab", "stop", 4)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("route", ["chat", "complete"])
@pytest.mark.parametrize(
    ("options", "reported"),
    [(None, 0), ({}, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)],
)
def test_usage_in_a_stream(
    live: Live, n: int, route: str, options: dict[str, bool] | None, reported: int
) -> None:
    """A-b6: usage came with choices, for empty options, or once per choice."""
    live.runner.script = FOX
    fields = {} if options is None else {"stream_options": options}
    body = getattr(live, route)(n=n, stream=True, max_tokens=9, **fields).text
    stream = events_of(body)
    assert stream[-1] == "[DONE]"
    usages = [event for event in stream[:-1] if event.get("usage")]
    assert len(usages) == reported
    assert all(("usage" in event) == bool(reported) for event in stream[:-1])
    if reported:
        whole = getattr(live, route)(n=n, max_tokens=9).json()["usage"]
        assert stream[-2] is usages[0]
        assert usages[0]["choices"] == []
        assert usages[0]["usage"] == whole
        assert whole["completion_tokens"] == n * (len(FOX) + 1)
        alone = getattr(live, route)(max_tokens=1).json()["usage"]
        assert whole["prompt_tokens"] == alone["prompt_tokens"]


def test_stream_options_without_stream(live: Live) -> None:
    """A-b6: an option of streams means nothing without one."""
    answer = live.chat(stream_options={"include_usage": True})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stream_options"


def test_chunks_have_openai_shape(live: Live) -> None:
    live.runner.script = words("hello", " wörld")
    stream = events_of(live.chat(stream=True, n=2).text)[:-1]
    assert {event["object"] for event in stream} == {"chat.completion.chunk"}
    assert len({event["id"] for event in stream}) == 1
    first = [event["choices"][0] for event in stream[:2]]
    assert [choice["index"] for choice in first] == [0, 1]
    assert all(choice["delta"] == {"role": "assistant", "content": ""} for choice in first)
    finals = [e["choices"][0] for e in stream if e["choices"][0]["finish_reason"]]
    assert [(choice["delta"], choice["finish_reason"]) for choice in finals] == [({}, "stop")] * 2


def test_text_is_escaped(live: Live) -> None:
    hostile = 'a"b\\c\nd\u2028\x00</script>é'
    live.runner.script = list(hostile.encode())
    for stream in (False, True):
        assert said(live.chat(stream=stream, max_tokens=60))[0] == hostile
