"""Where settings come from: a flag over the TOML file of --config over a REBAR_ variable.

The file has one table per verb ([serve], [chat], ...) whose keys are its flags; a variable is
REBAR_ and the flag (REBAR_PORT, REBAR_MAX_CONTEXT) and serves every verb that has it. Names that
mean nothing are errors: a typing mistake must not start a server with other settings than the
ones written down.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts.config import Dict, Env

from rebar.errors import InputError

PREFIX = "REBAR_"
# What variables may set: the flags of all verbs (a test compares), and the two that are no flags.
MODEL = {"model", "offline", "threads", "memory", "max_context", "kv_tokens", "kv", "weights"}
SAMPLING = {"max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop"}
SERVING = {"host", "port", "served_model_name"}
SERVING |= {"api_key", "admin_key", "api_keys_file", "cors_origin"}
KEYS = ("api_key", "admin_key")
SERVING |= {"max_running", "max_waiting"}
SERVING |= {"adapter", "max_adapters", "max_lora_rank"}
SERVING |= {"drain_timeout", "request_timeout", "write_timeout", "read_timeout"}
OTHERS = {"prompt", "text", "source", "target", "system", "chat", "special", "force", "json"}
OTHERS |= {"only", "repeats", "speculation", "type", "as", "types_of"}
LOAD = {"url", "rate", "concurrency", "requests", "duration", "prompt_tokens", "output_tokens"}
LOAD |= {"shared_tokens", "ignore_eos", "route", "extra", "leave", "slo", "timeout", "warm_up"}
LOAD |= {"find_rate"}
TRAINING = {"data", "out", "eval_data", "eval_split", "eval_every", "on_error", "steps", "epochs"}
TRAINING |= {"batch", "batch_tokens", "rate", "schedule", "warmup", "optimizer", "weight_decay"}
TRAINING |= {"clip", "patience", "checkpoint_every", "keep", "resume", "recompute", "rank_timeout"}
TRAINING |= {"lora_r", "lora_alpha", "lora_targets", "rslora", "full", "show_batch"}
TRAINING |= {"context", "layers", "width", "heads", "kv_heads", "mlp_width", "tokenizer"}
TRAINING |= {"stages", "dropout", "shift", "degrees"}
FLAGS = frozenset(MODEL | SAMPLING | SERVING | OTHERS | LOAD | TRAINING)
PLACES = frozenset(["cache", "isa"])


@dataclass(frozen=True, slots=True)
class Places:
    """What the environment says once and for all verbs.

    cache: folder of downloads and converted models. hub: address of the model hub. isa: name
    of the instruction set to use, None for the best one.
    """

    cache: Path
    hub: str
    isa: str | None


def places(environment: Mapping[str, str] | None = None) -> Places:
    """Reads REBAR_CACHE (else a folder of the user's cache), HF_ENDPOINT and REBAR_ISA."""
    from rebar.graph.weights.source import DEFAULT_HUB

    env = os.environ if environment is None else environment
    home = env.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    cache = env.get("REBAR_CACHE") or str(Path(home) / "rebar")
    hub = env.get("HF_ENDPOINT") or DEFAULT_HUB
    return Places(Path(cache).expanduser(), hub.rstrip("/"), env.get("REBAR_ISA") or None)


def sources(
    config: Path | None, environment: Mapping[str, str], verbs: tuple[str, ...]
) -> list[Any]:
    """Settings sources for cyclopts, the strongest first."""
    check_variables(environment)
    variables = Env(PREFIX, command=False)
    if config is None:
        return [variables]
    return [Dict(read_file(config, verbs), source=str(config)), variables]


def check_variables(environment: Mapping[str, str]) -> None:
    """Refuses a REBAR_ variable that sets nothing."""
    known = {PREFIX + name.upper() for name in FLAGS | PLACES}
    unknown = sorted(n for n in environment if n.startswith(PREFIX) and n not in known)
    if unknown:
        raise InputError(
            f"{unknown[0]} is set, and no flag of Rebar has this name. "
            f"Unset it or use one of {', '.join(sorted(known))}.",
            param=unknown[0],
        )
    for name in KEYS:
        variable = PREFIX + name.upper()
        if variable in environment:
            refuse_no_key(environment[variable], variable)


def refuse_no_key(given: object, where: str) -> None:
    """Refuses a setting that was meant to hold an API key and holds none: without a word the server
    would let everybody in.
    """
    if not "".join(given if isinstance(given, list) else [str(given)]).strip():
        raise InputError(
            f"{where} is set and holds no key. Put one in, or take it out to let everybody ask.",
            param="api_key",
        )


def read_file(path: Path, verbs: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The tables of a settings file; unknown tables are refused here, unknown keys by the verb."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"{path}: {error.strerror}. Give --config a file that can be read."
        raise InputError(message) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}. Mend the line it names.") from error
    for name, table in tables.items():
        if name not in verbs or not isinstance(table, dict):
            known = ", ".join(verbs)
            message = f"{path}: [{name}] is no table of settings. Tables are {known}."
            raise InputError(message, param=name)
        for key in table:
            if key.replace("-", "_") in KEYS:
                refuse_no_key(table[key], f"{path}: {key}")
    return tables
