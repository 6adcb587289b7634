#!/usr/bin/env python3
"""Writes the dashboard for Grafana, for deploy/monitoring and for the Helm chart. Owns its questions, panels,
queries and layout; whether Grafana would accept them is tests/deploy/test_dashboard.py's.

    tools/write_dashboard.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: Helm reads no file outside the chart, so it has a copy.
FILES = (
    ROOT / "deploy/monitoring/dashboards/inflight.json",
    ROOT / "deploy/helm/inflight/files/dashboard.json",
)
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${source}"}
#: Those on which models work; the alerts have the same.
ROUTES = (
    "/v1/(chat/completions|completions|embeddings|messages|rerank|responses)"
    "|/v2/models/.+/(infer|generate|generate_stream)"
)
GATEWAY, WORKER = 'job=~"$gateways"', 'job=~"$workers"'
REQUESTS = "inflight_gateway_requests_total"
FOR_MODELS = f'{GATEWAY},route=~"{ROUTES}"'


def rate(metric: str, *labels: str) -> str:
    return f"rate({metric}{{{','.join(labels)}}}[$__rate_interval])"


def total(metric: str, by: str, *labels: str) -> str:
    """The rate of a counter, summed by some labels."""
    return f"sum by ({by}) ({rate(metric, *labels)})" if by else f"sum({rate(metric, *labels)})"


def quantile(share: float, metric: str, by: str, *labels: str) -> str:
    grouped = ", ".join(one for one in ("le", by) if one)
    return f"histogram_quantile({share}, sum by ({grouped}) ({rate(metric + '_bucket', *labels)}))"


def quantiles(metric: str) -> dict[str, str]:
    """Of a histogram of gateways, by model."""
    return {
        f"{{{{model}}}} p{share * 100:g}": quantile(share, metric, "model", GATEWAY)
        for share in (0.5, 0.95, 0.99)
    }


def failed(by: str = "") -> str:
    """The share of requests for models that get 5xx; 0 where none does."""
    every = total(REQUESTS, by, FOR_MODELS)
    wrong = total(REQUESTS, by, FOR_MODELS, 'status=~"5.."')
    return f"({wrong} or 0 * {every}) / {every}"


@dataclass(frozen=True)
class Panel:
    """One plot, or one number."""

    title: str
    #: What to do, in one sentence.
    action: str
    unit: str
    #: By legend.
    queries: dict[str, str]
    #: From where on a number is yellow, and red; `None`: a plot.
    thresholds: tuple[float, float | None] | None = None
    stacks: bool = False

    def written(self, number: int, x: int, y: int, width: int, height: int) -> dict[str, Any]:
        defaults: dict[str, Any] = {"unit": self.unit, "min": 0}
        if self.thresholds is None:
            kind, options = "timeseries", dict(OPTIONS)
            defaults["custom"] = {
                "fillOpacity": 40 if self.stacks else 8,
                "lineWidth": 1,
                "showPoints": "never",
            }
            if self.stacks:
                defaults["custom"]["stacking"] = {"mode": "normal", "group": "A"}
        else:
            kind, options = "stat", dict(NUMBER)
            colors = zip(("green", "orange", "red"), (None, *self.thresholds), strict=True)
            steps = [
                {"color": color, "value": value}
                for color, value in colors
                if value is not None or color == "green"
            ]
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        targets = [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(self.queries.items())
        ]
        return {
            "id": number,
            "type": kind,
            "title": self.title,
            "description": self.action,
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": width, "h": height},
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": options,
            "targets": targets,
        }


OPTIONS = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
NUMBER = {
    "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
    "colorMode": "background",
    "graphMode": "area",
    "justifyMode": "auto",
    "orientation": "auto",
    "textMode": "auto",
}
FIRST_TOKEN = "inflight_gateway_time_to_first_token_seconds"
CACHE = f'nv_trt_llm_kv_cache_block_metrics{{{WORKER},kv_cache_block_type="fraction"}}'
WAITING = f'nv_trt_llm_request_metrics{{{WORKER},request_type="waiting"}}'

#: A number for each question.
GLANCE = [
    Panel(
        "Slow? First token, p95",
        "If it is above what you promise, look at the plots of “Is it slow?”, then of “Is it full?”.",
        "s",
        {"p95": quantile(0.95, FIRST_TOKEN, "", GATEWAY)},
        (2, 10),
    ),
    Panel(
        "Full? Requests that wait in workers",
        "If it does not return to 0, add replicas or lower what clients may ask for.",
        "none",
        {"waiting": f"sum({WAITING})"},
        (1, None),
    ),
    Panel(
        "Wrong? Requests that get 5xx",
        "If it is above 0, the status in “Is it wrong?” says which kind of failure it is.",
        "percentunit",
        {"5xx": failed()},
        (0.001, 0.01),
    ),
    Panel(
        "Whose? Workers that are not ready",
        "If it is above 0, GET /health/ready of a gateway gives the reason for each worker.",
        "none",
        {
            "not ready": f"sum(1 - max by (worker) (inflight_gateway_worker_up{{{GATEWAY}}}))",
        },
        (1, None),
    ),
]
QUESTIONS: dict[str, list[Panel]] = {
    "Is it slow?": [
        Panel(
            "Time to the first token",
            "If it grows while requests wait, add replicas; if none waits, see its parts in “Whose fault?”.",
            "s",
            quantiles(FIRST_TOKEN),
        ),
        Panel(
            "Time between tokens",
            "If it grows with the number of open requests, lower the batch size of workers or add replicas.",
            "s",
            quantiles("inflight_gateway_inter_token_time_seconds"),
        ),
        Panel(
            "Time of whole requests",
            "If it grows and the plots to the left do not, answers are longer: lower `max_tokens`.",
            "s",
            quantiles("inflight_gateway_request_time_seconds"),
        ),
    ],
    "Is it full?": [
        Panel(
            "Requests that wait in each worker",
            "If all workers have some, add replicas; if only one has, look at that worker in “Whose fault?”.",
            "none",
            {
                "{{instance}} for their turn": f"sum by (instance) ({WAITING})",
                "{{instance}} for the executor": (
                    f"sum by (instance) (nv_inference_pending_request_count{{{WORKER}}})"
                ),
            },
        ),
        Panel(
            "KV cache in use",
            "If it stays near 100 %, requests wait for memory: add replicas or lower the length of answers.",
            "percentunit",
            {"{{instance}} {{model}}": f"max by (instance, model) ({CACHE})"},
        ),
        Panel(
            "Open requests",
            "If gateways have many more than executors work for, the difference waits: see the plots around.",
            "none",
            {
                "at gateway {{instance}}": (
                    f"sum by (instance) (inflight_gateway_active_requests{{{GATEWAY}}})"
                ),
                "in work in all executors": (
                    f'sum(nv_trt_llm_request_metrics{{{WORKER},request_type="scheduled"}})'
                ),
            },
        ),
        Panel(
            "Time until executors take requests, p95",
            "If it grows, executors are held up: look at processors, and for long prompts in the log.",
            "s",
            {"{{model}}": quantile(0.95, "inflight_worker_queue_time_seconds", "model", WORKER)},
        ),
        Panel(
            "Requests refused for load",
            "If gateways refuse (429), raise their limits or the keys'; if workers do (503), add replicas.",
            "reqps",
            {
                "by gateway {{instance}}": total(REQUESTS, "instance", FOR_MODELS, 'status="429"'),
                "by worker {{instance}}": total(
                    "nv_inference_request_failure", "instance", WORKER, 'reason="REJECTED"'
                ),
            },
        ),
        Panel(
            "Tokens in a second",
            "If it stays level while more requests wait, the workers are at their limit: add replicas.",
            "none",
            {
                "{{model}} generated": total("inflight_gateway_generated_tokens_total", "model", GATEWAY),
                "{{model}} of prompts": total("inflight_gateway_prompt_tokens_total", "model", GATEWAY),
            },
        ),
    ],
    "Is it wrong?": [
        Panel(
            "Requests that get 5xx",
            "If one gateway has many and others none, replace it; if all have, look at the workers below.",
            "percentunit",
            {"{{instance}}": failed("instance")},
        ),
        Panel(
            "Requests for models by status",
            "For 503 add workers, for 504 look at time limits, for 500 find the request id in the log; "
            "4xx are clients' mistakes.",
            "reqps",
            {"{{status}}": total(REQUESTS, "status", FOR_MODELS)},
            stacks=True,
        ),
        Panel(
            "How answers end",
            "If `error` grows, workers end under requests: look at restarts and drain times in the log.",
            "reqps",
            {"{{model}} {{end}}": total("inflight_gateway_generations_total", "model, end", GATEWAY)},
            stacks=True,
        ),
    ],
    "Whose fault?": [
        Panel(
            "First token by part, p95",
            "If workers have most of it, look at what waits there; else at gateways and the network.",
            "s",
            {
                "{{model}} at gateways": quantile(0.95, FIRST_TOKEN, "model", GATEWAY),
                "{{model}} in workers": quantile(
                    0.95, "inflight_worker_time_to_first_token_seconds", "model", WORKER
                ),
                "templates and tokenizers of gateways": quantile(
                    0.95, "inflight_gateway_tokenize_time_seconds", "", GATEWAY
                ),
            },
        ),
        Panel(
            "First token of each worker, p95",
            "If one worker is slower than the others, look at its machine and its log, and replace it.",
            "s",
            {
                "{{instance}}": quantile(
                    0.95, "inflight_worker_time_to_first_token_seconds", "instance", WORKER
                )
            },
        ),
        Panel(
            "Blocks of prompts found in the KV cache",
            "If it falls, prompts are computed again: let them begin alike, or enlarge the cache.",
            "percentunit",
            {"{{instance}} {{model}}": f"inflight_worker_kv_cache_hit_ratio{{{WORKER}}}"},
        ),
        Panel(
            "Workers that are ready",
            "If one stays at 0 longer than its model takes to load, GET /health/ready has the reason.",
            "none",
            {"{{worker}}": f"max by (worker) (inflight_gateway_worker_up{{{GATEWAY}}})"},
        ),
        Panel(
            "Requests on each worker",
            "If one has far more than the others, it is slow: compare its first token with theirs.",
            "none",
            {"{{worker}}": f"sum by (worker) (inflight_gateway_worker_active{{{GATEWAY}}})"},
        ),
        Panel(
            "Requests sent to another worker",
            "`unavailable` and `silent` are lost workers, `full` are busy ones, `leaving` are replacements; "
            "if any could not continue, clients got an error.",
            "reqps",
            {
                "before the answer: {{reason}}": total("inflight_gateway_retries_total", "reason", GATEWAY),
                "in the answer: {{reason}}": total("inflight_gateway_resumes_total", "reason", GATEWAY),
                "could not continue": total("inflight_gateway_resumes_failed_total", "", GATEWAY),
            },
        ),
        Panel(
            "Failures in workers",
            "For `BACKEND` read the worker's log, for `REJECTED` add replicas; "
            "behind `CANCELED` are clients that left.",
            "reqps",
            {"{{instance}} {{reason}}": total("nv_inference_request_failure", "instance, reason", WORKER)},
            stacks=True,
        ),
        Panel(
            "Requests that clients got wrong",
            "If it jumps, a client has changed: the log line `request failed` has field and code.",
            "reqps",
            {
                "{{status}} {{route}}": total(
                    REQUESTS, "status, route", FOR_MODELS, 'status=~"4..",status!="429"'
                )
            },
        ),
        Panel(
            "Processors and GPUs in use",
            "If GPUs idle while requests wait, processors are the limit: give the worker more.",
            "percentunit",
            {
                "{{instance}} processors": f"nv_cpu_utilization{{{WORKER}}}",
                "{{instance}} {{gpu_uuid}}": f"nv_gpu_utilization{{{WORKER}}}",
            },
        ),
    ],
}


def placed() -> Iterator[dict[str, Any]]:
    """All panels, from left to right and from top to bottom."""
    number, y = 1, 0
    width = WIDTH // len(GLANCE)
    for column, panel in enumerate(GLANCE):
        yield panel.written(number, column * width, y, width, 4)
        number += 1
    y += 4
    for question, panels in QUESTIONS.items():
        row = {"id": number, "type": "row", "title": question, "collapsed": False, "panels": []}
        yield {**row, "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}}
        number += 1
        y += 1
        for index, panel in enumerate(panels):
            yield panel.written(number, index % 3 * 8, y + index // 3 * 8, 8, 8)
            number += 1
        y += (len(panels) + 2) // 3 * 8


def jobs(name: str, label: str, metric: str) -> dict[str, Any]:
    """A choice among the jobs that export a metric."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({metric}, job)", "refId": "A"},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    return {
        "uid": "inflight",
        "title": "Inflight",
        "description": "Is it slow, is it full, is it wrong, and whose fault is it?",
        "tags": ["inflight"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                jobs("gateways", "Job of the gateways", "inflight_gateway_active_requests"),
                jobs("workers", "Job of the workers", "nv_trt_llm_request_metrics"),
            ]
        },
        "annotations": {"list": []},
        "panels": list(placed()),
    }


def written() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file in FILES:
        file.write_text(written(), encoding="utf-8")
