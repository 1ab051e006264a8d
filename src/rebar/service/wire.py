"""The request bodies of the HTTP API as they stand in JSON, field by field (OpenAI API reference).

Types are strict: no bool or float passes for an integer, an unknown field is an error. `null` means
"not given". Ranges and everything that needs the model are the Validator's business. Fields typed
`Unsupported` exist in OpenAI's API but not here: a value that asks for something is refused, one
that asks for nothing is accepted.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

Unsupported = Any


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream reports."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CommonBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What every way to ask for text has in common."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    priority: int | None = None
    # Accepted and without effect here: they describe the caller or its bill, not the answer.
    user: str | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class SamplingBody(CommonBody, kw_only=True, forbid_unknown_fields=True):
    """What chat and plain completions have in common."""

    max_tokens: int | None = None
    n: int | None = None
    stop_token_ids: list[int] | None = None
    # The form of the answer: OpenAI's way, and vLLM's two (structured.py).
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    stream_options: StreamOptions | None = None
    explain: bool | None = None
    metadata: Any = None  # of the caller, without effect

    harmless: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Per unsupported field, the values that ask for nothing."""


class CompletionBody(SamplingBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: Unsupported = None

    harmless: ClassVar[dict[str, tuple[Any, ...]]] = {"suffix": ("",)}


class ContentPart(msgspec.Struct):
    """One part of a message's content; only type "text" has a meaning here."""

    type: str
    text: str | None = None


class FunctionCall(msgspec.Struct):
    """The call an assistant made in an earlier turn; `arguments` is JSON in a string."""

    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct):
    """A tool call of an earlier turn."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"
    index: int | None = None


class ToolFunction(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool of a request."""

    type: str
    function: ToolFunction


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    # What OpenAI's client sends back of an earlier answer; none of it is text of the turn.
    refusal: Unsupported = None
    audio: Unsupported = None
    function_call: Unsupported = None
    annotations: Unsupported = None


class ChatBody(SamplingBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: Unsupported = None
    function_call: Unsupported = None
    modalities: Unsupported = None
    audio: Unsupported = None
    prediction: Unsupported = None
    reasoning_effort: Unsupported = None
    verbosity: Unsupported = None
    web_search_options: Unsupported = None

    harmless: ClassVar[dict[str, tuple[Any, ...]]] = {
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
    }


class EmbeddingBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings. pooling: of ours; the rest is OpenAI's. dimensions: the first so many
    numbers, scaled to length 1 again.
    """

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    pooling: Literal["mean", "last"] | None = None
    priority: int | None = None
    user: str | None = None


PixelRows = list[list[float | list[float]]]
"""Rows of pixels from the top, each a number or a list of channels, 0 to 255."""


class ClassifyBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/classify. images: each a PNG file in base64 (or a data URL of one), or its pixels.
    top_k: labels to tell of each image, 5 if absent.
    """

    images: list[str | PixelRows]
    model: str | None = None
    top_k: int | None = None
    priority: int | None = None
    user: str | None = None


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: `prompt` or `messages` (the shapes of vLLM's route)."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class LoadAdapterBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/load_lora_adapter, with the fields of vLLM's route. lora_path: a folder of the
    server's, as peft's save_pretrained writes it.
    """

    harmless: ClassVar[dict[str, tuple[Any, ...]]] = {"load_inplace": (False,)}

    lora_name: str
    lora_path: str
    load_inplace: bool | None = None


class UnloadAdapterBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/unload_lora_adapter."""

    lora_name: str
