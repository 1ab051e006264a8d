"""A server process for tests of its life; arguments: PORT LOAD_SECONDS DRAIN_SECONDS."""

from __future__ import annotations

import sys
import time

from rebar.errors import InputError
from rebar.service.http.lifecycle import TimeLimits
from rebar.service.router import ModelService
from rebar.service.server import serve
from tests.service.fakes import ScriptedRunner
from tests.service.live import scripted_service


def main() -> int:
    port, load_seconds, drain = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])

    def load() -> ModelService:
        print("loading", flush=True)
        time.sleep(load_seconds)
        runner = ScriptedRunner(choose=lambda s, p: ord("z"), slow=0.05, max_context=100_000)
        runner.kv = type(runner.kv)(10_000)
        return scripted_service(runner)

    try:
        limits = TimeLimits(drain=drain)
        serve(load, port=port, limits=limits, on_ready=lambda url: print(url, flush=True))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
