"""rebar serve"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rebar.cli import STARTED
from rebar.cli.models import find_named, open_found
from rebar.cli.notify import tell_manager
from rebar.cli.options import (
    DEFAULT_MODEL,
    AccessFlags,
    AdapterFlags,
    AnswerFlags,
    Host,
    LimitFlags,
    Model,
    Offline,
    Port,
    QueueFlags,
)
from rebar.cli.output import note, timed
from rebar.cli.settings import places

if TYPE_CHECKING:
    from pathlib import Path

    from rebar.graph import ModelFile, RunnerOptions
    from rebar.service.adapter_book import AdapterBook
    from rebar.service.http.access import Access
    from rebar.service.router import ModelService

CURL = """curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"messages": [{{"role": "user", "content": "Why is the sky blue?"}}], "stream": true}}'"""

CLASSIFY_CURL = """curl {url}/v1/classify -H 'Content-Type: application/json' \\
  -d "{{\\"images\\": [\\"$(base64 -w0 IMAGE.png)\\"]}}\""""


def serve(
    model: Model = DEFAULT_MODEL,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    served_model_name: Annotated[
        tuple[str, ...],
        Parameter(
            help="Name that clients use; repeatable, the first is listed. Without it: the "
            "model's name, or the last part of its path."
        ),
    ] = (),
    flags: AnswerFlags | None = None,
    adapters: AdapterFlags | None = None,
    queue: QueueFlags | None = None,
    limits: LimitFlags | None = None,
    access: AccessFlags | None = None,
    offline: Offline = False,
) -> None:
    """Serve a model over HTTP, with the OpenAI API.

    Ctrl-C finishes open requests, for --drain-timeout at most, and answers new ones with 503; a
    second one ends at once.
    """
    from rebar.service.server import serve as run

    who = (access or AccessFlags()).access()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

    example = CURL

    def load() -> ModelService:
        nonlocal example
        service = _load(
            model,
            served_model_name,
            flags or AnswerFlags(),
            adapters or AdapterFlags(),
            queue or QueueFlags(),
            offline,
        )
        if service.model.classifier is not None:
            example = CLASSIFY_CURL
        return service

    def ready(url: str) -> None:
        seconds = time.perf_counter() - STARTED
        note(f"ready      {seconds:.2f} s after the start: {url}, described by /openapi.json")
        note(_who_may_ask(who, host))
        note(example.format(url=url))
        tell_manager("READY=1")

    waits = (limits or LimitFlags()).time_limits()
    run(load, host=host, port=port, limits=waits, access=who, on_ready=ready)


def _who_may_ask(access: Access, host: str) -> str:
    """For the operator's eye: a server that others can reach and that asks for no key."""
    if access.keys:
        return (
            f"access     with an API key, of which there are {len(access.keys)}, "
            f"{access.keys.admins} of admins"
        )
    if host in {"127.0.0.1", "::1", "localhost"}:
        return "access     programs on this machine, without a key"
    return "access     everybody who reaches the port; --api-keys-file changes that"


def _load(
    model: str,
    names: tuple[str, ...],
    flags: AnswerFlags,
    adapters: AdapterFlags,
    queue: QueueFlags,
    offline: bool,
) -> ModelService:
    """The model in an engine process; says what the machine and the plan are, and how long each
    phase took.
    """
    from rebar.dataflow.models import public_name
    from rebar.graph import plan_memory
    from rebar.graph.weights.classifier import is_classifier
    from rebar.hal import DeviceManager
    from rebar.service.engine_process import EngineProcess
    from rebar.service.loading import open_served, spec_of
    from rebar.service.router import ModelService
    from rebar.service.succession import new_memory

    where = places()
    options = adapters.with_room(flags.runner_options(where.isa))
    device = DeviceManager(threads=options.threads, memory=options.memory, isa=options.isa)
    note(f"machine    {device.machine.cpu}, {device.machine.memory_total / 1e9:.1f} GB")
    note(f"device     {device.backend.describe()}")
    with timed("fetch"):
        source = find_named(model, offline=offline)
    if is_classifier(source):
        return _load_classifier(source, model, names, options, queue)
    with timed("convert"):
        file = open_found(source)
    for line in plan_memory(file, options, device.budget, kept=True).lines():
        note(f"  {line}")
    names = names or (public_name(model), model)
    book = _book(adapters, options, file, where.cache, names)
    spec = spec_of(file, options, queue.max_running, queue.max_waiting, flags.guesses)
    with timed("engine"):
        first = EngineProcess(spec, new_memory())
    served = open_served(file, first.ready.limits, name=names[0], aliases=names[1:], source=model)
    return ModelService.in_process(served, first, spec, book)


def _book(
    flags: AdapterFlags,
    options: RunnerOptions,
    file: ModelFile,
    cache: Path,
    names: tuple[str, ...],
) -> AdapterBook:
    """The adapters that were asked for, copied and checked, and the room for more."""
    from rebar.service.adapter_book import AdapterBook

    book = AdapterBook()
    if options.room is not None:
        from rebar.dataflow.adapters import AdapterStore
        from rebar.graph.weights.provenance import merged_digests, weights_digest

        merged, base = merged_digests(file), weights_digest(file)
        store = AdapterStore(cache, file.config, options.room, merged, base)
        book = AdapterBook(store, options.max_adapters)
    book.taken = frozenset(names)
    for name, folder in flags.folders.items():
        book.preload(name, book.take(name, folder), str(folder))
        note(f"adapter    {name} from {folder}")
    return book


def _load_classifier(
    source: Path, model: str, names: tuple[str, ...], options: RunnerOptions, queue: QueueFlags
) -> ModelService:
    """An image classifier in an engine process."""
    from rebar.dataflow.models import public_name
    from rebar.graph.weights.classifier import open_classifier
    from rebar.service.engine_process import EngineProcess
    from rebar.service.messages import EngineSpec
    from rebar.service.router import ModelService
    from rebar.service.starting import served_classifier

    file = open_classifier(source)
    c = file.config
    note(f"classifier {c.height} x {c.width} x {c.channels} pixels, {len(c.labels)} labels")
    spec = EngineSpec(str(source), options, queue.max_running, queue.max_waiting)
    with timed("engine"):
        first = EngineProcess(spec)
    name, *aliases = names or (file.name or public_name(model), public_name(model), model)
    served = served_classifier(
        file, first.ready.limits, name=name, aliases=tuple(aliases), source=model
    )
    return ModelService.in_process(served, first, spec)
