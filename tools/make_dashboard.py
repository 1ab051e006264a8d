"""Writes deploy/grafana.json: python tools/make_dashboard.py

A dashboard in rows: what users feel, what the queue does, what the engine does, what breaks. A test
holds the file against this script and every metric in it against a running server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "deploy" / "grafana.json"
MODEL = '{model_name=~"$model"}'
WIDTH, HEIGHT, COLUMNS = 8, 7, 3

Panel = tuple[str, str, str, list[tuple[str, str]]]
"""Title, unit, description, and (expression, legend) pairs."""


def quantiles(metric: str) -> list[tuple[str, str]]:
    """P50, P95 and P99 of a histogram."""
    series = f"sum by (le) (rate({metric}_bucket{MODEL}[$__rate_interval]))"
    return [(f"histogram_quantile({q}, {series})", f"P{q * 100:.0f}") for q in (0.5, 0.95, 0.99)]


def rate(metric: str, by: str, more: str = MODEL) -> tuple[str, str]:
    """A counter a second, by a label."""
    return (f"sum by ({by}) (rate({metric}{more}[$__rate_interval]))", f"{{{{{by}}}}}")


def gauge(metric: str, legend: str) -> tuple[str, str]:
    """A gauge over all chosen models."""
    return (f"sum({metric}{MODEL})", legend)


ROWS: dict[str, list[Panel]] = {
    "What users feel": [
        ("Time to first token", "s", "From arrival, waiting included. The level is 350 ms at P99.",
         quantiles("rebar_time_to_first_token_seconds")),
        ("Between tokens", "s", "Below 50 ms nobody reads faster.",
         quantiles("rebar_inter_token_latency_seconds")),
        ("Whole answers", "s", "", quantiles("rebar_e2e_request_latency_seconds")),
    ],
    "Requests": [
        ("Ended", "reqps", "As they should.",
         [rate("rebar_request_success_total", "finished_reason")]),
        ("Failed, refused, given up", "reqps", "", [
            rate("rebar_request_failures_total", "cause"),
            rate("rebar_request_rejections_total", "cause"),
            rate("rebar_request_aborts_total", "cause"),
        ]),
        ("HTTP by status", "reqps", "",
         [rate("rebar_http_requests_total", "status", "")]),
    ],
    "Queue": [
        ("Running and waiting", "short", "Scale out on what waits.", [
            gauge("rebar_num_requests_running", "running"),
            gauge("rebar_num_requests_waiting", "waiting"),
        ]),
        ("Oldest without a token", "s", "",
         [(f"max(rebar_queue_age_seconds{MODEL})", "age")]),
        ("Open by priority", "short", "",
         [(f"sum by (priority) (sg_request_priority_distribution{MODEL})", "{{priority}}")]),
    ],
    "Engine": [
        ("Tokens a second", "short", "", [
            (f"sum(rate(rebar_generation_tokens_total{MODEL}[$__rate_interval]))", "sampled"),
            (f"sum(rate(rebar_prompt_tokens_total{MODEL}[$__rate_interval]))", "prompts, computed"),
            (f"sum(rate(rebar_prefix_cache_hits_total{MODEL}[$__rate_interval]))",
             "prompts, known before"),
        ]),
        ("Positions a step", "short", "What the budget of a step allows, and the latest one.", [
            gauge("dfp_batch_size_current", "latest"), gauge("dfp_batch_size_limit", "limit"),
        ]),
        ("Cores", "percentunit", "Share of the cores that the server may use.", [
            ("sum by (process) (rate(rebar_process_cpu_seconds_total[$__rate_interval]))"
             " / scalar(max(rebar_cores))", "{{process}}"),
        ]),
    ],
    "Memory": [
        ("KV cache in use", "percentunit", "",
         [(f"max by (model_name) (rebar_kv_cache_usage_perc{MODEL})", "{{model_name}}")]),
        ("Free of the budget", "bytes", "", [gauge("hal_free_memory_bytes", "free")]),
        ("Resident", "bytes", "Mapped weights are in it.", [
            ("sum by (process) (rebar_process_resident_memory_bytes)", "{{process}}"),
        ]),
    ],
    "What breaks": [
        ("Engines replaced, pre-emptions", "short", "A minute.", [
            (f"sum(increase(rebar_engine_restarts_total{MODEL}[1m]))", "engines replaced"),
            (f"sum(increase(rebar_num_preemptions_total{MODEL}[1m]))", "pre-emptions"),
        ]),
        ("Event loop held up", "s", "Seconds a minute.", [
            ("sum(increase(rebar_event_loop_blocked_seconds_total[1m]))", "held up"),
        ]),
        ("Connections cut off", "short", "Clients that kept the server waiting, a minute.", [
            ("sum by (cause) (increase(rebar_http_connections_cut_off_total[1m]))", "{{cause}}"),
        ]),
    ],
}  # fmt: skip


def panel(number: int, place: tuple[int, int], given: Panel) -> dict[str, Any]:
    """A time series at column and height of the grid."""
    title, unit, description, queries = given
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": source,
        "gridPos": {"x": place[0], "y": place[1], "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + i), "datasource": source, "expr": expr, "legendFormat": legend}
            for i, (expr, legend) in enumerate(queries)
        ],
    }


def dashboard() -> dict[str, Any]:
    """The whole of it."""
    panels: list[dict[str, Any]] = []
    height = 0
    for title, given in ROWS.items():
        at = {"x": 0, "y": height, "w": 24, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": at,
                       "collapsed": False, "panels": []})  # fmt: skip
        for column, one in enumerate(given):
            panels.append(panel(len(panels) + 1, (column * WIDTH, height + 1), one))
        height += 1 + HEIGHT
    models = "label_values(rebar_engine_up, model_name)"
    variables = [
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"},
        {"name": "model", "type": "query", "query": models, "definition": models, "refresh": 2,
         "datasource": {"type": "prometheus", "uid": "${source}"}, "includeAll": True,
         "multi": True, "allValue": ".*", "label": "Model"},
    ]  # fmt: skip
    return {
        "title": "Rebar",
        "uid": "rebar",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


def text() -> str:
    """As the file holds it."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
