"""Work that would hold up the event loop, and so every other client: done in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rebar.service.grammar_check import GrammarChecker

INLINE_BYTES = 4 * 1024
"""A body up to this size is checked and tokenized in the event loop: 2 ms at 2 MB/s. Longer ones go
to a thread, so that they hold nobody up."""

T = TypeVar("T")


class OffLoop:
    """Threads for texts, and one that asks the grammar checker's process."""

    def __init__(self) -> None:
        self._texts = ThreadPoolExecutor(2, thread_name_prefix="rebar-text")
        self._grammars = ThreadPoolExecutor(1, thread_name_prefix="rebar-check")
        self._checker = GrammarChecker()

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Runs `work`, in a thread when a body of `size` bytes is long enough to hold up others."""
        if size <= INLINE_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._texts, work)

    async def check(self, grammar: str, place: str) -> None:
        """Raises InputError for a grammar that cannot be compiled in bounded time. Who asks for a
        known one does not queue behind those whose grammars have to be tried.
        """
        if self._checker.known(grammar) is not None:
            self._checker.check(grammar, place)
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._grammars, self._checker.check, grammar, place)

    def close(self) -> None:
        """Ends threads and process."""
        self._texts.shutdown(wait=False)
        self._grammars.shutdown(wait=False)
        self._checker.close()
