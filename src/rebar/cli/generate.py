"""rebar generate"""

from __future__ import annotations

import sys
import time
from typing import Annotated

from cyclopts import Parameter

from rebar.cli.models import ADAPTER, load_named
from rebar.cli.options import (
    DEFAULT_MODEL,
    Adapter,
    AnswerFlags,
    Json,
    Model,
    Offline,
    SamplingFlags,
)
from rebar.cli.output import emit
from rebar.cli.text import read_text


def generate(
    prompt: Annotated[
        str,
        Parameter(help="The text to continue; - reads standard input.", allow_leading_hyphen=True),
    ],
    *,
    model: Model = DEFAULT_MODEL,
    chat: Annotated[bool, Parameter(help="Take PROMPT as a message and answer it.")] = False,
    adapter: Adapter = None,
    sampling: SamplingFlags | None = None,
    flags: AnswerFlags | None = None,
    json: Json = False,
    offline: Offline = False,
) -> None:
    """Continue a text, or answer one message with --chat.

    PROMPT is continued as it stands, control tokens in it included; with --chat it is the message
    of a user in the model's own chat format. The answer appears as it is made.
    """
    text = read_text(prompt)
    chosen = (sampling or SamplingFlags()).keywords()
    if adapter is not None:
        chosen["adapter"] = ADAPTER
    given = flags or AnswerFlags()
    with load_named(model, given, offline=offline, chat=chat, adapter=adapter) as loaded:
        if json:
            begin = time.perf_counter()
            answer = (loaded.chat if chat else loaded.generate)(text, **chosen)
            emit(
                {
                    "text": str(answer),
                    "finish_reason": answer.finish_reason,
                    "prompt_tokens": answer.prompt_tokens,
                    "completion_tokens": len(answer.ids),
                    "seconds": round(time.perf_counter() - begin, 3),
                },
                json=True,
            )
            return
        for piece in (loaded.stream_chat if chat else loaded.stream)(text, **chosen):
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.stdout.write("\n")
