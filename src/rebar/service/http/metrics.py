"""What /metrics says. Numbers are kept as plain integers and become samples only when somebody
asks.

The names that the field has (vLLM's) with our prefix, so that people find what they know; the four
of the project's reports as they stand there. Labels come from fixed sets (route templates, status
codes, names of served models, causes), so that no client can make a series.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rebar.hal import read_machine
from rebar.hal.processes import process_cpu_seconds, process_resident_bytes
from rebar.service.http.loop_guard import LoopGuard
from rebar.service.measures import Histogram, Measures
from rebar.service.messages import EngineStats
from rebar.service.router import ModelService, ServiceRouter

MODEL = ("model_name",)

GAUGES: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("rebar_num_requests_running", "Choices being computed", lambda s: s.running),
    ("rebar_num_requests_waiting", "Choices that wait for a place", lambda s: s.waiting),
    (
        "rebar_kv_cache_usage_perc",
        "Share of the KV cache in use, 1 is all of it",
        lambda s: 1 - s.free_blocks / s.total_blocks if s.total_blocks else 0.0,
    ),
    ("rebar_kv_blocks_free", "Free blocks of the KV cache", lambda s: s.free_blocks),
    ("rebar_kv_blocks", "Blocks of the KV cache", lambda s: s.total_blocks),
    (
        "rebar_kv_blocks_held_back",
        "Free blocks that the machine has no memory for",
        lambda s: s.held_back_blocks,
    ),
    ("dfp_batch_size_current", "Positions in the latest step", lambda s: s.rows),
    ("dfp_batch_size_limit", "Positions a step with a prompt may hold", lambda s: s.row_limit),
    (
        "hal_free_memory_bytes",
        "Bytes of the budget that nothing holds",
        lambda s: s.free_bytes,
    ),
    ("rebar_adapters_loaded", "Adapters that the engine holds", lambda s: s.adapters),
    ("cge_node_count", "Nodes of the model's graph as it runs", lambda s: s.nodes),
)
COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("rebar_engine_steps", "Engine steps", lambda s: s.steps),
    ("rebar_engine_step_seconds", "Time spent in engine steps", lambda s: s.step_seconds),
    ("rebar_prompt_tokens", "Prompt tokens computed", lambda s: s.prompt_tokens),
    ("rebar_generation_tokens", "Tokens sampled", lambda s: s.sampled_tokens),
    (
        "rebar_prefix_cache_hits",
        "Positions that were not computed, as they had been before",
        lambda s: s.cached_tokens,
    ),
    ("rebar_prefix_cache_evictions", "Known blocks given up for memory", lambda s: s.evictions),
    (
        "rebar_kv_blocks_adopted",
        "Known blocks taken over from an engine that ended",
        lambda s: s.adopted_blocks,
    ),
    (
        "rebar_spec_decode_num_draft_tokens",
        "Tokens that were guessed before they were sampled",
        lambda s: s.draft_tokens,
    ),
    (
        "rebar_spec_decode_num_accepted_tokens",
        "Guessed tokens that were then sampled",
        lambda s: s.accepted_tokens,
    ),
    ("rebar_images", "Images classified", lambda s: s.images),
    ("rebar_num_preemptions", "Times a choice gave its memory to another", lambda s: s.preemptions),
)
HISTOGRAMS: tuple[tuple[str, str, Callable[[Measures], Histogram]], ...] = (
    (
        "rebar_time_to_first_token_seconds",
        "From a request's arrival to its first token, waiting included",
        lambda m: m.first_token,
    ),
    (
        "rebar_inter_token_latency_seconds",
        "Between one token of a choice and the next; those that come together count once",
        lambda m: m.inter_token,
    ),
    (
        "rebar_request_time_per_output_token_seconds",
        "(last token - first token) / (tokens - 1) of a choice",
        lambda m: m.per_output_token,
    ),
    (
        "rebar_e2e_request_latency_seconds",
        "From a request's arrival to the end of a choice",
        lambda m: m.whole,
    ),
    (
        "rebar_request_queue_time_seconds",
        "From the engine's taking a choice in to its first step",
        lambda m: m.queue,
    ),
    (
        "rebar_request_prefill_time_seconds",
        "From a choice's first step to its first token",
        lambda m: m.prefill,
    ),
    ("rebar_request_prompt_tokens", "Tokens of a choice's prompt", lambda m: m.prompt_tokens),
    ("rebar_request_generation_tokens", "Tokens of a finished choice", lambda m: m.output_tokens),
)
CAUSES: tuple[tuple[str, str, str, Callable[[Measures], Counter[str]]], ...] = (
    (
        "rebar_request_success",
        "Choices that ended as they should",
        "finished_reason",
        lambda m: m.finished,
    ),
    ("rebar_request_failures", "Choices that ended with an error", "cause", lambda m: m.failed),
    ("rebar_request_rejections", "Choices that were not accepted", "cause", lambda m: m.refused),
    ("rebar_request_aborts", "Choices that were given up", "cause", lambda m: m.aborted),
)


class ServiceMetrics(Collector):
    """The front's numbers, and the engines' as their last report told them."""

    def __init__(self, router: ServiceRouter, guard: LoopGuard) -> None:
        self._router = router
        self._guard = guard
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._cut_off: Counter[str] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def request_ended(self, route: str, status: int, seconds: float) -> None:
        """Books a request; `route` is a template of ours or "other"."""
        self._requests[route, status] += 1
        self._seconds.setdefault(route, Histogram()).observe(seconds)

    def refused(self, status: int) -> None:
        """Books a request that was refused before anything of it could be routed; nobody measured
        how long it took.
        """
        self._requests["other", status] += 1

    def cut_off(self, cause: str) -> None:
        """Books a connection that was reset because its client kept us waiting."""
        self._cut_off[cause] += 1

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client."""
        services = self._router.services
        yield from self._http()
        yield from self._loop()
        yield from _per_engine(services)
        yield from _processes(services)
        yield from _gauges(services)
        yield from _priorities(services)
        yield from _counters(services)
        yield from _histograms(services)
        yield from _causes(services)
        yield from _adapters(services)

    def _http(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "rebar_http_requests", "HTTP requests by route and status", labels=("route", "status")
        )
        for (route, status), count in list(self._requests.items()):
            requests.add_metric((route, str(status)), count)
        yield requests
        seconds = HistogramMetricFamily(
            "rebar_http_request_duration_seconds",
            "Time to the end of the answer",
            labels=("route",),
        )
        for key, histogram in list(self._seconds.items()):
            seconds.add_metric((key,), histogram.buckets(), histogram.total)
        yield seconds
        cut_off = CounterMetricFamily(
            "rebar_http_connections_cut_off",
            "Connections reset because the client kept us waiting",
            labels=("cause",),
        )
        for cause in ("slow_reader", "slow_request"):
            cut_off.add_metric((cause,), self._cut_off[cause])
        yield cut_off

    def _loop(self) -> Iterator[Metric]:
        guard = self._guard
        blocks = CounterMetricFamily("rebar_event_loop_blocks", "Times the loop was held up")
        blocks.add_metric((), guard.blocks)
        yield blocks
        seconds = CounterMetricFamily("rebar_event_loop_blocked_seconds", "Time it was held up")
        seconds.add_metric((), guard.blocked_seconds)
        yield seconds


def _per_engine(services: Iterable[ModelService]) -> Iterator[Metric]:
    restarts = CounterMetricFamily("rebar_engine_restarts", "Engines replaced", labels=MODEL)
    accepted = CounterMetricFamily("rebar_requests_accepted", "Choices accepted", labels=MODEL)
    up = GaugeMetricFamily("rebar_engine_up", "Whether an engine computes", labels=MODEL)
    age = GaugeMetricFamily(
        "rebar_queue_age_seconds", "Age of the oldest request without a token", labels=MODEL
    )
    for service in services:
        name = (service.model.name,)
        restarts.add_metric(name, service.worker.restarts)
        accepted.add_metric(name, service.measures.accepted)
        up.add_metric(name, float(service.worker.alive))
        age.add_metric(name, service.queue_age)
    yield from (restarts, accepted, up, age)


def _processes(services: Iterable[ModelService]) -> Iterator[Metric]:
    """What the kernel says of this process and of each engine's. An engine in a thread is in the
    front's figures."""
    labels = ("process", *MODEL)
    cpu = CounterMetricFamily(
        "rebar_process_cpu_seconds", "Processor time, user and system", labels=labels
    )
    resident = GaugeMetricFamily(
        "rebar_process_resident_memory_bytes",
        "Memory in RAM, mapped weights included",
        labels=labels,
    )
    cpu.add_metric(("front", ""), process_cpu_seconds(os.getpid()) or 0.0)
    resident.add_metric(("front", ""), process_resident_bytes(os.getpid()) or 0)
    for service in services:
        if service.worker.pid not in (None, os.getpid()):
            name = ("engine", service.model.name)
            cpu.add_metric(name, service.worker.cpu_seconds)
            resident.add_metric(name, process_resident_bytes(service.worker.pid or 0) or 0)
    cores = GaugeMetricFamily("rebar_cores", "Cores that the server may use")
    cores.add_metric((), read_machine().cores)
    yield from (cpu, resident, cores)


def _gauges(services: Iterable[ModelService]) -> Iterator[Metric]:
    for name, text, value in GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=MODEL)
        for service in services:
            gauge.add_metric((service.model.name,), float(value(service.stats)))
        yield gauge


def _priorities(services: Iterable[ModelService]) -> Iterator[Metric]:
    gauge = GaugeMetricFamily(
        "sg_request_priority_distribution",
        "Open choices by priority",
        labels=(*MODEL, "priority"),
    )
    for service in services:
        stats = service.stats
        by_name = {"high": stats.open_high, "normal": stats.open_normal, "low": stats.open_low}
        for priority, count in by_name.items():
            gauge.add_metric((service.model.name, priority), float(count))
    yield gauge


def _counters(services: Iterable[ModelService]) -> Iterator[Metric]:
    for name, text, value in COUNTERS:
        counter = CounterMetricFamily(name, text, labels=MODEL)
        for service in services:
            counter.add_metric((service.model.name,), float(value(service.stats)))
        yield counter


def _histograms(services: Iterable[ModelService]) -> Iterator[Metric]:
    for name, text, of in HISTOGRAMS:
        family = HistogramMetricFamily(name, text, labels=MODEL)
        for service in services:
            histogram = of(service.measures)
            family.add_metric((service.model.name,), histogram.buckets(), histogram.total)
        yield family


def _causes(services: Iterable[ModelService]) -> Iterator[Metric]:
    for name, text, label, of in CAUSES:
        family = CounterMetricFamily(name, text, labels=(*MODEL, label))
        for service in services:
            for cause, count in list(of(service.measures).items()):
                family.add_metric((service.model.name, cause), count)
        yield family


def _adapters(services: Iterable[ModelService]) -> Iterator[Metric]:
    """Labels are the names of adapters that are loaded now, which the operator gave."""
    slots = GaugeMetricFamily("rebar_adapter_slots", "Adapters there is room for", labels=MODEL)
    names = (*MODEL, "adapter")
    running = GaugeMetricFamily("rebar_adapter_choices_open", "Choices in progress", labels=names)
    accepted = CounterMetricFamily(
        "rebar_adapter_choices", "Choices given to the engine since it was loaded", labels=names
    )
    for service in services:
        book = service.adapters
        slots.add_metric((service.model.name,), book.slots)
        for adapter in book.listed:
            label = (service.model.name, adapter.name)
            running.add_metric(label, book.open_choices(adapter))
            accepted.add_metric(label, book.accepted(adapter))
    yield from (slots, running, accepted)
