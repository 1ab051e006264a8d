"""rebar version."""

from __future__ import annotations

import platform
from importlib import metadata

from rebar.cli.options import Json
from rebar.cli.output import emit


def version(*, json: Json = False) -> None:
    """Show the versions of Rebar and of what it runs on."""
    from rebar import _native

    emit(
        {
            "rebar": metadata.version("rebar-llm"),
            "native_abi": _native.ABI_VERSION,
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
        json=json,
    )
