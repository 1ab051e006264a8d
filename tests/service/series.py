"""What /metrics says, as a dictionary."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.service.live import NAME, Client


def series(live: Client) -> dict[str, float]:
    """Every sample of /metrics by its whole name."""
    text = live.http.get("/metrics").text
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_model(found: dict[str, float], name: str) -> float:
    """The sample of the one model, or the sum over its causes."""
    return sum(
        value
        for key, value in found.items()
        if key.startswith(name + "[") and f"('model_name', '{NAME}')" in key
    )


def counters(found: dict[str, float]) -> dict[str, float]:
    """The samples that may only grow."""
    ends = ("_total", "_count", "_sum", "_bucket")
    return {key: value for key, value in found.items() if key.split("[")[0].endswith(ends)}
