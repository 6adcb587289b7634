"""Prometheus' rules and configuration: promtool accepts them, they name real metrics, and they fire."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

yaml: Any = import_module("yaml")

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="`promtool` is not installed: apt-get install prometheus"
)

#: Series, and the alerts that they fire after 20 minutes.
FIRING = [
    ({"inflight_gateway_worker_up{worker='w'}": "0x40"}, {"InflightNoWorker", "InflightWorkerDown"}),
    (
        {
            "inflight_gateway_worker_up{worker='w'}": "1x40",
            "inflight_gateway_worker_up{worker='x'}": "0x40",
        },
        {"InflightWorkerDown"},
    ),
    (
        {
            "inflight_gateway_requests_total{status='200'}": "0+100x40",
            "inflight_gateway_requests_total{status='503'}": "0+2x40",
        },
        {"InflightServerErrors"},
    ),
    (
        {
            "inflight_gateway_requests_total{status='200'}": "0+100x40",
            "inflight_gateway_requests_total{status='429'}": "0+10x40",
        },
        {"InflightOverloaded"},
    ),
    ({"inflight_gateway_generations_total{end='error',model='m'}": "0+5x40"}, {"InflightStreamsCut"}),
    (
        {
            "inflight_gateway_time_to_first_token_seconds_bucket{le='16.384'}": "0+1x40",
            "inflight_gateway_time_to_first_token_seconds_bucket{le='32.768'}": "0+60x40",
            "inflight_gateway_time_to_first_token_seconds_bucket{le='+Inf'}": "0+60x40",
        },
        {"InflightSlowFirstToken"},
    ),
    ({"nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type='fraction'}": "0.99x40"}, {"InflightCacheFull"}),
    ({"nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type='fraction'}": "0.5x40"}, set()),
]


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_name_metrics_that_exist() -> None:
    for rule in rules():
        named = set(re.findall(r"\b(?:inflight|nv)_\w+", rule["expr"]))
        assert named
        for metric in named:
            assert f"`{metric.removesuffix('_bucket')}`" in METRICS, metric


@needs_promtool
def test_promtool_accepts_rules_and_configuration(tmp_path: Path) -> None:
    promtool("check", "rules", str(MONITORING / "alerts.yaml"))
    text = (MONITORING / "prometheus.yaml").read_text()
    path = tmp_path / "prometheus.yaml"
    path.write_text(text.replace("/etc/prometheus/", f"{MONITORING}/"))
    promtool("check", "config", str(path))


@needs_promtool
def test_alerts_fire_for_what_they_are_about_and_for_nothing_else(tmp_path: Path) -> None:
    assert set().union(*(names for _, names in FIRING)) == {rule["alert"] for rule in rules()}
    # Labels are compared elsewhere: here, which alerts fire at all.
    query = 'count by (alertname) (ALERTS{alertstate="firing"})'
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": query,
                    "eval_time": "30m",
                    "exp_samples": [
                        {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)
                    ],
                }
            ],
        }
        for series, names in FIRING
    ]
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(MONITORING / "alerts.yaml")], "tests": tests}))
    promtool("test", "rules", str(path))
