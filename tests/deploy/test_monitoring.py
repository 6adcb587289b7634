"""Prometheus' rules and configuration, the dashboard and the collector: promtool accepts rules and queries,
they name real metrics and labels, and the alerts fire.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from inflight import _native
from inflight.cli.serve import serve
from inflight.launch.render import render
from inflight.launch.topology_file import parse

yaml: Any = import_module("yaml")

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
COMPOSE = ROOT / "deploy" / "compose"
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="`promtool` is not installed: apt-get install prometheus"
)


def request(status: int, route: str = "/v1/completions") -> str:
    return f"inflight_gateway_requests_total{{route='{route}',status='{status}'}}"


def answer(end: str) -> str:
    return f"inflight_gateway_generations_total{{end='{end}',model='m'}}"


def worked(end: str, reason: str = "") -> str:
    labels = f",reason='{reason}'" if reason else ""
    return f"nv_inference_request_{end}{{model='m',version='1'{labels}}}"


class _Rates(dict[int, str]):
    """Samples of a counter that grows by so many a minute."""

    def __missing__(self, rate: int) -> str:
        return f"0+{rate}x40"


RATE = _Rates()
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
    ({"inflight_gateway_troubled_sources": "0x5 1x35"}, {"InflightSourceWrong"}),
    ({"inflight_gateway_unlisted_workers": "0x5 2x35"}, {"InflightSourceWrong"}),
    # One that comes and goes is followed again and again.
    ({"inflight_gateway_troubled_sources": "0 1 0 1 " * 10}, set()),
    # 2 % of many requests.
    ({request(200): RATE[100], request(503): RATE[2]}, {"InflightServerErrors"}),
    # Half of the completions of a quiet gateway, which is probed, scraped and asked for its models.
    (
        {
            request(
                200, "/v1/chat/completions"
            ): "0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9 9 10 10 11 11 12 12 13 13 14 14 15 15",
            request(
                500, "/v1/chat/completions"
            ): "0 1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9 9 10 10 11 11 12 12 13 13 14 14 15 15 16",
            request(200, "/health/ready"): RATE[24],
            request(200, "/metrics"): RATE[4],
            request(200, "/v1/models"): RATE[60],
        },
        {"InflightServerErrors"},
    ),
    # Probes of a model that loads, and nobody asks it anything.
    ({request(503, "/health/ready"): RATE[24], request(503, "/v2/health"): RATE[12]}, set()),
    ({request(503, "/health/ready"): RATE[24], request(200): RATE[1]}, set()),
    # One failure in a night.
    ({request(200): RATE[1], request(500): "0x25 1x15"}, set()),
    ({request(200): RATE[100], request(429): RATE[10]}, {"InflightOverloaded"}),
    # Few refusals among requests for models; many other requests do not hide them.
    (
        {request(200): RATE[9], request(429): RATE[1], request(200, "/metrics"): RATE[500]},
        {"InflightOverloaded"},
    ),
    ({worked("success"): RATE[90], worked("failure", "REJECTED"): RATE[10]}, {"InflightWorkersFull"}),
    ({worked("success"): RATE[90], worked("failure", "CANCELED"): RATE[90]}, set()),
    ({worked("success"): RATE[99], worked("failure", "REJECTED"): RATE[1]}, set()),
    ({answer("stop"): RATE[5], answer("error"): RATE[5]}, {"InflightStreamsCut"}),
    (
        {
            answer("stop"): "0 0 0 1x3 2x3 3x3 4x3 5x3 6x3 7x3",
            answer("error"): "0 0 1x3 2x3 3x3 4x3 5x3 6x3 7x3 8x3",
        },
        {"InflightStreamsCut"},
    ),
    ({answer("stop"): RATE[100], answer("error"): RATE[1]}, set()),
    ({answer("cancelled"): RATE[5]}, set()),
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


def queries() -> list[str]:
    """What the dashboard's panels and variables ask for, with Grafana's own variables filled in."""
    dashboard = json.loads((MONITORING / "dashboards" / "inflight.json").read_text())
    made = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [re.sub(r"\$(gateways|workers)", ".*", one.replace("$__rate_interval", "5m")) for one in made]


def labels_of(metric: str) -> set[str]:
    """The labels of a metric on the page, and those that Prometheus adds; fails where the page has it not."""
    name = metric.removesuffix("_bucket")
    row = re.search(rf"^\| `{name}` \| (\w+) \| (.*?) \|", METRICS, re.MULTILINE)
    assert row is not None, f"`{metric}` is not in docs/reference/metrics.md"
    assert metric.endswith("_bucket") == (row[1] == "histogram"), metric
    return {*re.findall(r"`(\w+)`", row[2]), "job", "instance", *({"le"} if row[1] == "histogram" else ())}


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_ask_for_metrics_and_labels_that_exist() -> None:
    assert len(queries()) > 20
    for query in [*queries(), *(rule["expr"] for rule in rules())]:
        selectors = re.findall(r"\b((?:inflight|nv)_\w+)(?:\{([^}]*)\})?", query)
        assert selectors, query
        for metric, labels in selectors:
            assert {*re.findall(r"(\w+)(?:=~?|!=|!~)\"", labels)} <= labels_of(metric), query
        shared = set.intersection(*(labels_of(metric) for metric, _ in selectors))
        grouped = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
        assert grouped <= shared, query


def test_failures_are_counted_on_the_routes_for_which_models_work() -> None:
    labels: set[str] = set()
    for path, label in (
        ("gateway/src/routes.rs", r'Operation::\w+\(\w+, "(/[^"]+)"'),
        ("rest/src/route.rs", r'=> "(/[\w/{}]+)"'),
    ):
        code = (ROOT / "crates" / path).read_text(encoding="utf-8").partition("#[cfg(test)]")[0]
        labels |= set(re.findall(label, code))
    assert {"/health/ready", "/v2/health", "/metrics", "/v1/models"} <= labels
    chosen = {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/rerank",
        "/v1/responses",
        "/v2/models/{model}/infer",
        "/v2/models/{model}/generate",
        "/v2/models/{model}/generate_stream",
    }
    selectors = {
        pattern
        for query in [*queries(), *(rule["expr"] for rule in rules())]
        for pattern in re.findall(r'route=~"([^"]*)"', query)
    }
    assert len(selectors) == 1
    for selector in selectors:
        assert {label for label in labels if re.fullmatch(selector, label)} == chosen


@needs_promtool
def test_promtool_accepts_the_queries_of_panels(tmp_path: Path) -> None:
    records = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries())]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))
    promtool("check", "rules", str(path))


def test_panels_do_not_overlap_and_have_a_data_source() -> None:
    dashboard = json.loads((MONITORING / "dashboards" / "inflight.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    variables = {variable["name"]: variable["type"] for variable in dashboard["templating"]["list"]}
    assert variables == {"source": "datasource", "gateways": "query", "workers": "query"}
    uids = {one["datasource"]["uid"] for panel in panels for one in panel.get("targets", ())}
    assert uids == {"${source}"}


def test_compose_mounts_what_there_is_where_each_program_looks() -> None:
    services = yaml.safe_load((MONITORING / "compose.yaml").read_text())["services"]
    mounted = {}
    for service in services.values():
        for volume in service.get("volumes", ()):
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                assert (MONITORING / source).exists(), source
                mounted[target] = source
    provider = yaml.safe_load((MONITORING / "dashboards.yaml").read_text())["providers"][0]
    assert mounted[provider["options"]["path"]] == "./dashboards"
    assert set(services) == {"prometheus", "grafana", "jaeger", "collector"}


def scraped() -> dict[str, tuple[str, int]]:
    """By job: the name in the network, and the port."""
    jobs = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())["scrape_configs"]
    found = {job["job_name"]: job["dns_sd_configs"][0] for job in jobs}
    return {name: (one["names"][0], one["port"]) for name, one in found.items()}


@pytest.mark.parametrize(
    "topology",
    [
        "models: [{}]",
        "models: [{replicas: 3}]\ngateways: {replicas: 2, port: 9000}",
        "models: [{name: a, replicas: 2}, {name: b, grpc_port: 7000, metrics_port: 7100}]",
    ],
)
def test_prometheus_finds_every_worker_and_gateway_of_a_rendering(topology: str) -> None:
    written = render(parse(topology, Path("/srv")), "compose")
    services = yaml.safe_load(written["compose.yaml"])["services"]
    jobs = scraped()
    for name, service in services.items():
        job = "inflight-gateway" if name.startswith("gateway") else "inflight-worker"
        alias, port = jobs[job]
        option = "--port" if job == "inflight-gateway" else "--metrics-port"
        assert service["networks"] == {"default": {"aliases": [alias]}}
        assert f"{option}={port}" in service["command"]
        assert "--host=0.0.0.0" in service["command"]


def test_prometheus_finds_what_the_other_compose_files_start() -> None:
    jobs = scraped()
    networks = yaml.safe_load((MONITORING / "compose.yaml").read_text())["networks"]
    assert networks["inflight"]["name"] == "${NETWORK:-inflight_default}"
    for file, service, job in (
        ("triton.yaml", "gateway", "inflight-gateway"),
        ("triton.yaml", "triton", "inflight-worker"),
        ("hub.yaml", "inflight", "inflight-gateway"),
        ("all-in-one.yaml", "inflight", "inflight-gateway"),
    ):
        one = yaml.safe_load((COMPOSE / file).read_text())["services"][service]
        assert one["networks"] == {"default": {"aliases": [jobs[job][0]]}}, file


@pytest.mark.parametrize("file", sorted(path.name for path in COMPOSE.glob("*.yaml")))
def test_the_commands_of_compose_files_are_understood(file: str) -> None:
    for service in yaml.safe_load((COMPOSE / file).read_text())["services"].values():
        command = [
            re.sub(r"\$\{\w+(?::-([^}]*)|:\?[^}]*)\}", r"\1", word) or "x" for word in service["command"]
        ]
        if command[0] == "tritonserver":
            continue
        gateway = {f"--{option.flag}" for option in _native.gateway_options()}
        known = gateway | (
            {option for one in (*serve.params, *serve.worker_options) for option in one.opts}
            if command[0] == "serve"
            else set()
        )
        given = {word.partition("=")[0] for word in command if word.startswith("--")}
        assert given <= known, given - known


def test_traces_go_where_the_page_says() -> None:
    page = (MONITORING / "README.md").read_text()
    services = yaml.safe_load((MONITORING / "compose.yaml").read_text())["services"]
    endpoints = re.findall(r"otlp_endpoint: http://([\w-]+):4317", page)
    assert set(endpoints) == {"jaeger"}
    assert {"jaeger", "collector"} <= services.keys()
    (topology,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    services = yaml.safe_load(render(parse(topology, Path("/srv")), "compose")["compose.yaml"])["services"]
    for service in services.values():
        assert "--otlp-endpoint=http://jaeger:4317" in service["command"]


def test_the_collector_uses_what_it_declares_and_scrapes_what_prometheus_does() -> None:
    collector = yaml.safe_load((MONITORING / "collector.yaml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(collector[kind])
    scraped = collector["receivers"]["prometheus"]["config"]["scrape_configs"]
    theirs = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())["scrape_configs"]
    assert [{**one, "scrape_interval": "15s"} for one in theirs] == scraped


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
