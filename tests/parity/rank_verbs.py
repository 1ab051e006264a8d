"""Verbs of the command line in several processes, by the variables that torchrun sets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

Ended = tuple[int, str, str]  # exit code, output, errors


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def start_ranks(
    cache: Path,
    words: Sequence[str],
    size: int = 2,
    *,
    timeout: float = 30,
    more: Mapping[int, Sequence[str]] | None = None,
) -> list[subprocess.Popen[str]]:
    """more: words of single ranks."""
    shared = os.environ | {"REBAR_CACHE": str(cache), "WORLD_SIZE": str(size)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    shared |= {"REBAR_RANK_TIMEOUT": str(timeout)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "rebar", *words, *(more or {}).get(rank, ())],
            env=shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]  # fmt: skip


def ended(ranks: Sequence[subprocess.Popen[str]]) -> list[Ended]:
    """Waits for all of them; none is left behind."""
    found = []
    try:
        for process in ranks:
            out, err = process.communicate(timeout=120)
            found.append((process.returncode, out, err))
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    return found
