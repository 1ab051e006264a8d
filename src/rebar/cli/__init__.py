"""The command line: the only layer that reads argv and the environment."""

import time

STARTED = time.perf_counter()
"""When the process began, within the milliseconds that the interpreter takes."""
