"""What /metrics says. Numbers are kept as plain integers and become samples only when somebody
asks.

Labels come from fixed sets (route templates, status codes, names of served models), so that no
client can make a series.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rebar.service.router import ServiceRouter

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.35, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of the latency buckets; 0.35 s is the service level of the reports (P99)."""


class Histogram:
    """Counts by upper bound, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Adds one measurement."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts as Prometheus wants them."""
        out, sum_so_far = [], 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            sum_so_far += count
            out.append((bound, float(sum_so_far)))
        return out


class ServiceMetrics(Collector):
    """The service's counters, and the engines' as their last report told them."""

    def __init__(self, router: ServiceRouter) -> None:
        self._router = router
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._first_token: dict[str, Histogram] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def request_ended(self, route: str, status: int, seconds: float) -> None:
        """Books a request; `route` is a template of ours or "other"."""
        self._requests[route, status] += 1
        self._seconds.setdefault(route, Histogram()).observe(seconds)

    def first_token(self, model: str, seconds: float) -> None:
        """Books the time from a request's arrival to its first token, waiting included."""
        self._first_token.setdefault(model, Histogram()).observe(seconds)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client."""
        yield from self._http()
        yield from self._gauges()
        yield from self._counters()
        yield from self._engines()

    def _http(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "sg_requests", "HTTP requests by route and status", labels=("route", "status")
        )
        for (route, status), count in list(self._requests.items()):
            requests.add_metric((route, str(status)), count)
        yield requests
        for name, text, label, series in (
            ("sg_request_seconds", "Time to the end of the answer", "route", self._seconds),
            ("sg_first_token_seconds", "Time to the first token", "model", self._first_token),
        ):
            family = HistogramMetricFamily(name, text, labels=(label,))
            for key, histogram in list(series.items()):
                family.add_metric((key,), histogram.buckets(), histogram.total)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        stats = self._router.stats()
        for name, text, field in (
            ("sg_running", "Choices being computed", "running"),
            ("sg_waiting", "Choices waiting for memory or a place", "waiting"),
            ("sg_oldest_wait_seconds", "Age of the choice that is let in next", "oldest_wait"),
            ("dfp_batch_size_current", "Positions in the latest step", "rows"),
            ("dfp_batch_size_limit", "Positions a step with a prompt may hold", "row_limit"),
            ("hal_free_memory_bytes", "Bytes of the budget that nothing holds", "free_bytes"),
            ("cge_node_count", "Nodes of the model's graph as it runs", "nodes"),
            ("hal_kv_blocks_free", "Free blocks of the KV cache", "free_blocks"),
            ("hal_kv_blocks", "Blocks of the KV cache", "total_blocks"),
        ):
            gauge = GaugeMetricFamily(name, text, labels=("model",))
            for model, stat in stats.items():
                gauge.add_metric((model,), float(getattr(stat, field)))
            yield gauge
        yield self._priorities()

    def _priorities(self) -> Metric:
        gauge = GaugeMetricFamily(
            "sg_request_priority_distribution",
            "Open choices by priority",
            labels=("model", "priority"),
        )
        for model, stat in self._router.stats().items():
            for priority in ("high", "normal", "low"):
                gauge.add_metric((model, priority), float(getattr(stat, f"open_{priority}")))
        return gauge

    def _engines(self) -> Iterator[Metric]:
        restarts = CounterMetricFamily(
            "sg_engine_restarts", "Engine processes replaced", labels=("model",)
        )
        up = GaugeMetricFamily("sg_engine_up", "Whether an engine computes", labels=("model",))
        for service in self._router.services:
            restarts.add_metric((service.model.name,), service.worker.restarts)
            up.add_metric((service.model.name,), float(service.worker.alive))
        yield restarts
        yield up

    def _counters(self) -> Iterator[Metric]:
        stats = self._router.stats()
        for name, text, field in (
            ("sg_steps", "Engine steps", "steps"),
            ("sg_step_seconds", "Time spent in engine steps", "step_seconds"),
            ("sg_prompt_tokens", "Prompt tokens computed", "prompt_tokens"),
            ("sg_sampled_tokens", "Tokens sampled", "sampled_tokens"),
            (
                "sg_cached_tokens",
                "Positions not computed, as they had been before",
                "cached_tokens",
            ),
            ("sg_preemptions", "Times a choice gave its memory to another", "preemptions"),
            ("sg_kv_evictions", "Known KV blocks given up for memory", "evictions"),
            ("sg_expired", "Choices whose deadline could not be met", "expired"),
            ("sg_engine_failures", "Choices that failed in the engine", "failures"),
        ):
            counter = CounterMetricFamily(name, text, labels=("model",))
            for model, stat in stats.items():
                counter.add_metric((model,), float(getattr(stat, field)))
            yield counter
