"""POST /v1/responses as it stands in JSON (OpenAI API reference, Responses), in the part of it that
means something here; sampling fields of ours may be added.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from rebar.service.wire import CommonBody, Unsupported


class InputPart(msgspec.Struct):
    """A part of an item's content: input_text, output_text or text."""

    type: str
    text: str | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """An item of the conversation: a message, a function_call or a function_call_output."""

    type: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class ResponseTool(msgspec.Struct, kw_only=True):
    """A tool; only functions have a meaning here."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer's text."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class StreamConfig(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream reports; what is here changes nothing."""

    include_obfuscation: bool | None = None


class ResponsesBody(CommonBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses. Nothing is stored: a conversation comes whole with each request."""

    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream_options: StreamConfig | None = None
    text: TextConfig | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None  # of the caller, without effect
    background: Unsupported = None
    context_management: Unsupported = None
    conversation: Unsupported = None
    include: Unsupported = None
    max_tool_calls: Unsupported = None
    previous_response_id: Unsupported = None
    prompt: Unsupported = None
    reasoning: Unsupported = None
    top_logprobs: Unsupported = None
    truncation: Unsupported = None

    harmless: ClassVar[dict[str, tuple[Any, ...]]] = {
        "background": (False,),
        "context_management": ([],),
        "include": ([], ["reasoning.encrypted_content"]),  # of reasoning there is none
        "max_tool_calls": (),
        "prompt": (),
        "reasoning": ({},),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    }
