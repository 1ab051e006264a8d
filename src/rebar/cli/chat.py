"""rebar chat"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from rebar.cli.models import ADAPTER, load_named
from rebar.cli.options import DEFAULT_MODEL, Adapter, AnswerFlags, Model, Offline, SamplingFlags
from rebar.cli.output import note
from rebar.errors import InputError

if TYPE_CHECKING:
    from rebar.service.local import Model as LocalModel

HELP = "/new forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."


def chat(
    model: Model = DEFAULT_MODEL,
    *,
    system: Annotated[str | None, Parameter(help="What the model is told first.")] = None,
    adapter: Adapter = None,
    sampling: SamplingFlags | None = None,
    flags: AnswerFlags | None = None,
    offline: Offline = False,
) -> None:
    """Talk to a model in the terminal.

    Ctrl-C stops an answer, Ctrl-D leaves. The whole conversation is the model's context. Lines may
    also come from a pipe.
    """
    chosen = (sampling or SamplingFlags()).keywords()
    if adapter is not None:
        chosen["adapter"] = ADAPTER
    given = flags or AnswerFlags()
    with load_named(model, given, offline=offline, adapter=adapter) as loaded:
        if sys.stdin.isatty():
            note(HELP)
        beginning = [{"role": "system", "content": system}] if system else []
        turns = list(beginning)
        for line in _lines():
            if line == "/new":
                turns = list(beginning)
                continue
            turns.append({"role": "user", "content": line})
            turns.append({"role": "assistant", "content": _answer(loaded, turns, chosen)})


def _lines() -> Iterator[str]:
    """What the user types, until /exit or the end of input; Ctrl-C drops the line begun."""
    prompt = "> " if sys.stdin.isatty() else ""
    if prompt:
        import readline  # noqa: F401  input() then has history and line editing
    while True:
        try:
            line = input(prompt).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if not prompt:
                raise
            sys.stdout.write("\n")
            continue
        except UnicodeDecodeError as error:
            raise InputError("The input is not UTF-8. Convert it first, with iconv.") from error
        if line == "/exit":
            return
        if line:
            yield line


def _answer(model: LocalModel, turns: list[dict[str, Any]], sampling: dict[str, Any]) -> str:
    """Writes the answer as it comes and returns it; Ctrl-C ends it where it is."""
    said = ""
    pieces = model.stream_chat(turns, **sampling)
    try:
        for piece in pieces:
            said += piece
            sys.stdout.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write(" [stopped]")
    sys.stdout.write("\n")
    return said
