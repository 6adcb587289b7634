"""The dashboard and the alerts on a live system: a real Prometheus scrapes gateways and workers with clients
of every kind. Nothing fires while it is healthy; after real faults every query has numbers and every alert
fires.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from support.metrics import total
from support.processes import wait_until
from support.prometheus import MISSING, PROMETHEUS, Prometheus, prometheus
from support.servers import MODEL, Start
from support.watched import PACED, Watched, watched

yaml: Any = import_module("yaml")

pytestmark = [
    pytest.mark.skipif(PROMETHEUS is None, reason=MISSING),
    pytest.mark.skipif(MODEL is not None, reason="the embedded model calls tools and embeds"),
    pytest.mark.timeout(300),
]

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboards" / "inflight.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
#: What only a machine with an NVIDIA GPU has.
EXEMPT = () if shutil.which("nvidia-smi") else ("nv_gpu_",)
#: Long enough for a first token after eleven seconds, on a busy machine.
PATIENCE_S = 90.0


def filled(query: str) -> str:
    """A query with Grafana's variables filled in."""
    for variable, value in (
        ("$__rate_interval", "30s"),
        ("$gateways", "inflight-gateway"),
        ("$workers", "inflight-worker"),
    ):
        query = query.replace(variable, value)
    assert "$" not in query
    return query


#: By panel and legend.
QUERIES = {
    f"{panel['title']}: {target['legendFormat']}": (filled(target["expr"]), target["legendFormat"])
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
}


@pytest.fixture(scope="module")
def system(start_for_session: Start) -> Iterator[Watched]:
    with watched(start_for_session) as system:
        yield system


@pytest.fixture(scope="module")
def server(system: Watched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """With the alerts at once: how long they wait is tested by promtool."""
    groups = [
        {**group, "rules": [{**rule, "for": "0s"} for rule in group["rules"]]} for group in RULES["groups"]
    ]
    rules = yaml.safe_dump({"groups": groups})
    with prometheus(tmp_path_factory.mktemp("prometheus"), system.jobs, rules) as server:
        yield server


@pytest.fixture(scope="module")
def healthy(system: Watched, server: Prometheus) -> Prometheus:
    """Once clients of every kind have been answered."""
    system.begin_traffic()
    for path, status in (
        ("/v1/chat/completions", 200),
        ("/v1/embeddings", 200),
        ("/v1/messages", 200),
        ("/v1/responses", 200),
        ("/v1/completions", 400),
        ("/v1/completions", 404),
        ("/v2/models/{model}/generate", 200),
        ("/v2/models/{model}/generate_stream", 200),
    ):
        counted = f'inflight_gateway_requests_total{{route="{path}",status="{status}"}}'
        wait_until(f"{counted} is scraped", lambda counted=counted: bool(server.series(counted)))  # type: ignore[misc]
    return server


@pytest.fixture(scope="module")
def alerts_of_a_healthy_system(healthy: Prometheus) -> dict[str, str]:
    wait_until("rates are there", lambda: bool(healthy.series(QUERIES["Slow? First token, p95: p95"][0])))
    return healthy.alerts()


@pytest.fixture(scope="module")
def faulty(system: Watched, healthy: Prometheus, alerts_of_a_healthy_system: dict[str, str]) -> Prometheus:
    """Refusals, slow first tokens, a full cache, cut answers, a spoiled file, and a worker that is killed."""
    system.fill_the_strict_gateway()
    system.fill_the_narrow_worker()
    system.cut_answers()
    system.spoil_the_file()
    wait_until(
        "requests are refused for load",
        lambda: healthy.alerts()["InflightOverloaded"] == "firing",
        PATIENCE_S,
    )
    wait_until("the first worker gives a long answer", system.hold_an_answer)
    system.workers["first"].kill()
    wait_until("answers continue", lambda: total(system.moving, "inflight_gateway_resumes_total") > 0)
    wait_until("no other is sent", lambda: total(system.strict, "inflight_gateway_worker_up") == 0)
    return healthy


def test_no_alert_fires_while_the_system_is_healthy(alerts_of_a_healthy_system: dict[str, str]) -> None:
    assert alerts_of_a_healthy_system == dict.fromkeys(ALERTS, "inactive")


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_of_the_dashboard_has_numbers(name: str, faulty: Prometheus) -> None:
    query, legend = QUERIES[name]
    if query.startswith(tuple(EXEMPT) or ("-",)):
        pytest.skip("this machine has no GPU")
    found: list[str] = []

    def answers() -> bool:
        found[:] = faulty.complaints(query, legend, exempt=EXEMPT)
        return not found

    try:
        wait_until("the query has numbers", answers)
    except AssertionError:
        pytest.fail("\n".join(found))


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_fires_and_names_what_is_there(name: str, faulty: Prometheus) -> None:
    rule = ALERTS[name]
    try:
        wait_until(f"{name} fires", lambda: faulty.alerts()[name] == "firing", PATIENCE_S)
    except AssertionError:
        pytest.fail("\n".join(faulty.complaints(rule["expr"])))
    shown = " ".join(rule["annotations"].values())
    wait_until("its parts have numbers", lambda: faulty.complaints(rule["expr"], shown) == [])


def test_the_choices_of_the_dashboard_are_there(faulty: Prometheus) -> None:
    found = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric = variable["query"]["query"].removeprefix("label_values(").removesuffix(", job)")
            found[variable["name"]] = faulty.ask("label/job/values", **{"match[]": metric})
    assert found == {"gateways": ["inflight-gateway"], "workers": ["inflight-worker"]}


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        (
            "KV cache in use: {{instance}} {{model}}",
            "nv_trt_llm_kv_cache_block_metrics",
            "nv_trt_llm_kv_blocks",
        ),
        ("KV cache in use: {{instance}} {{model}}", "kv_cache_block_type", "block_type"),
        ("KV cache in use: {{instance}} {{model}}", '"fraction"', '"usage"'),
        ("KV cache in use: {{instance}} {{model}}", "(instance, model)", "(instance, name)"),
        ("Requests on each worker: {{worker}}", "by (worker)", "by (address)"),
        # Where a zero takes the place of what is not there.
        ("Wrong? Requests that get 5xx: 5xx", "status=~", "code=~"),
        (
            "Requests that get 5xx: {{instance}}",
            "inflight_gateway_requests_total",
            "inflight_gateway_requests",
        ),
        ("Time to the first token: {{model}} p95", "_seconds_bucket", "_seconds"),
    ],
)
def test_a_planted_wrong_name_is_found(name: str, right: str, wrong: str, faulty: Prometheus) -> None:
    query, legend = QUERIES[name]
    assert right in query
    assert faulty.complaints(query.replace(right, wrong), legend)


def test_a_planted_wrong_legend_is_found(faulty: Prometheus) -> None:
    query, _ = QUERIES["Requests on each worker: {{worker}}"]
    assert faulty.complaints(query, "{{ $labels.instance }}")
    assert faulty.complaints(query, "{{model}}")


def test_the_paced_model_lives_on(system: Watched, faulty: Prometheus) -> None:
    """One worker is left for it, so that what fired is not that nothing works."""
    query = f'sum(rate(inflight_gateway_generations_total{{model="{PACED}",end="length"}}[10s]))'
    wait_until("answers end well", lambda: any(value > 0 for _, value in faulty.series(query)))


@pytest.mark.timeout(600)
@pytest.mark.skipif("UPDATE_SNAPSHOTS" not in os.environ, reason="the pictures of the documentation are kept")
def test_pictures_are_renewed(start: Start, tmp_path: Path) -> None:
    """Four minutes: a healthy one, then one fault after the other."""
    with watched(start) as system, prometheus(tmp_path, system.jobs, yaml.safe_dump(RULES)) as server:
        system.begin_traffic()
        time.sleep(80)
        system.fill_the_narrow_worker()
        time.sleep(50)
        system.fill_the_strict_gateway()
        time.sleep(40)
        system.cut_answers()
        time.sleep(20)
        system.workers["first"].kill()
        time.sleep(50)
        draw = runpy.run_path(str(ROOT / "tools" / "plot_dashboard.py"))["draw_all"]
        pictures = draw(f"http://{server.address}", 4, ROOT / "docs" / "images")
    assert len(pictures) == 4
    assert all(picture.stat().st_size < 150_000 for picture in pictures)
