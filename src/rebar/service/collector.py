"""When a serving process looks for garbage in cycles.

A step's report to a thousand streams is some five thousand objects that all die within
milliseconds; with Python's own thresholds (700 new objects) the collector walked through every open
request again and again and took half of the front's time. Counts free nearly everything; what is
left for the collector are tracebacks and a few cycles a request.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE, OLD = 100_000, 20, 20
"""New objects before a look at the young ones (some ms); that many looks before the next ones.
A request leaves fewer than a hundred objects in cycles: some megabytes wait at most."""


def settle() -> None:
    """Called once a process is ready to serve: what is there now stays and is not walked again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
