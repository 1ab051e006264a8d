"""POST /v1/messages and /v1/messages/count_tokens as they stand in JSON (Anthropic API reference),
in the part of them that means something here; sampling fields of ours may be added.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from rebar.service.wire import Unsupported


class Block(msgspec.Struct, kw_only=True):
    """A content block: text, tool_use or tool_result. What it says of caching changes nothing:
    what was computed is kept in any case.
    """

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None


class InputMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One turn."""

    role: str
    content: str | list[Block]


class MessagesTool(msgspec.Struct, kw_only=True):
    """A tool of the caller's own; those that Anthropic runs do not exist here."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None


class ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether a tool is called: auto, any, none, or one by name."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    """Of the caller."""

    user_id: str | None = None


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The form of the answer: {"type": "json_schema", "schema": ...}."""

    format: dict[str, Any] | None = None
    effort: Unsupported = None


class CountTokensBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/messages/count_tokens: what a request's input comes to."""

    messages: list[InputMessage]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = None
    thinking: Unsupported = None
    context_management: Unsupported = None
    mcp_servers: Unsupported = None
    speed: Unsupported = None

    harmless: ClassVar[dict[str, tuple[Any, ...]]] = {
        "thinking": ({"type": "disabled"},),
        "context_management": ({},),
        "mcp_servers": ([],),
        "speed": ("standard",),
    }


class MessagesBody(CountTokensBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/messages. `max_tokens` has to be given, as there."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    # Of ours, as in chat.
    seed: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    # Accepted and without effect here.
    metadata: Metadata | None = None
    service_tier: str | None = None
    container: Unsupported = None
    inference_geo: Unsupported = None

    harmless: ClassVar[dict[str, tuple[Any, ...]]] = {
        **CountTokensBody.harmless,
        "container": (),
        "inference_geo": (),
    }
