"""The Helm chart: rendered by a real helm for every set of values that its page shows, and checked offline.

`INFLIGHT_TEST_HELM` names the program where it is not on PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from inflight import _native
from inflight.cli.worker import worker

yaml: Any = import_module("yaml")

CHART = Path(__file__).parents[2] / "deploy" / "helm"
HELM = os.environ.get("INFLIGHT_TEST_HELM") or shutil.which("helm")
pytestmark = pytest.mark.skipif(HELM is None, reason="`helm` is not installed: see deploy/helm/README.md")

#: The blocks of values on the page, by the words before each.
SHOWN = dict(re.findall(r"^(\w[^\n]*):\n\n```yaml\n(.*?)```", (CHART / "README.md").read_text(), re.S | re.M))
CASES = {"defaults": "{}", **SHOWN}
#: A ServiceMonitor as the Prometheus operator documents it (monitoring.coreos.com/v1), as far as the chart
#: writes one.
SERVICE_MONITOR = {
    "type": "object",
    "additionalProperties": False,
    "required": ["selector", "endpoints"],
    "properties": {
        "selector": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"matchLabels": {"additionalProperties": {"type": "string"}}},
        },
        "endpoints": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "port": {"type": "string"},
                    "path": {"type": "string"},
                    "interval": {"type": "string", "pattern": "^[0-9]+(s|m)$"},
                },
            },
        },
    },
}


def helm(*arguments: str, values: str = "{}") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(HELM), *arguments, str(CHART / "inflight"), "--values", "-"],
        input=values,
        capture_output=True,
        text=True,
    )


def rendered(values: str) -> list[dict[str, Any]]:
    done = helm("template", "demo", "--namespace", "llm", "--kube-version", "1.30.0", values=values)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def test_the_page_shows_values() -> None:
    assert len(SHOWN) >= 3


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_kubernetes_accepts_what_is_rendered(values: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    jsonschema: Any = pytest.importorskip("jsonschema")
    linted = helm("lint", "--strict", values=values)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    found = rendered(values)
    for one in found:
        if one["kind"] == "ServiceMonitor":
            jsonschema.validate(one["spec"], SERVICE_MONITOR)
            continue
        for version in ("1.30", "1.37"):
            validate.validate(one, version, strict=True)
        assert one["metadata"]["namespace"] == "llm"
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_objects_refer_to_each_other(values: str) -> None:
    made = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in rendered(values)}
    workers = {name for kind, name in made if kind == "StatefulSet"}
    gateway = made["Deployment", "demo-gateway"]["template"]
    dns = [one for one in gateway["spec"]["containers"][0]["args"] if one.startswith("--worker-dns=")]
    assert {one.partition("=")[2] for one in dns} == {f"{name}:8001" for name in workers}
    for kind, name in made:
        if kind not in ("StatefulSet", "Deployment"):
            continue
        template = made[kind, name]["template"]
        labels, spec = template["metadata"]["labels"], template["spec"]
        assert made[kind, name]["selector"]["matchLabels"].items() <= labels.items()
        assert made["Service", name]["selector"].items() <= labels.items()
        container = spec["containers"][0]
        mounted = {one["name"] for one in container["volumeMounts"]}
        assert mounted == {one["name"] for one in spec["volumes"]}
        ports = {one["name"] for one in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] in ports
        if ("NetworkPolicy", "demo-worker") in made:
            policy = made["NetworkPolicy", "demo-worker"]
            selected = policy["podSelector"]["matchLabels"].items() <= labels.items()
            allowed = policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"].items()
            assert (selected, allowed <= labels.items()) == (kind == "StatefulSet", kind == "Deployment")
    monitors = [
        spec["selector"]["matchLabels"] for (kind, _), spec in made.items() if kind == "ServiceMonitor"
    ]
    services = [one["metadata"]["labels"] for one in rendered(values) if one["kind"] == "Service"]
    for selector in monitors:
        assert any(selector.items() <= labels.items() for labels in services)


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_every_argument_is_an_option(values: str) -> None:
    gateway = {f"--{option.flag}" for option in _native.gateway_options()}
    known = {"worker": {option for one in worker.params for option in one.opts}, "gateway": gateway}
    for one in rendered(values):
        if one["kind"] in ("StatefulSet", "Deployment"):
            command, *arguments = one["spec"]["template"]["spec"]["containers"][0]["args"]
            given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
            assert given <= known[command], given - known[command]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("models: [{name: a, path: /models/a}]", "`modelVolume.claimName` is not set"),
        ("models: [{name: a, tensorParallelSize: 2, gpus: 1}]", "has 2 ranks and `gpus: 1`"),
        ("models: [{name: a, tpSize: 2}]", "tpSize"),
        ("models: []", "models"),
        ("gateway: {replicas: 0}", "replicas"),
    ],
)
def test_mistakes_are_refused(values: str, message: str) -> None:
    done = helm("template", "demo", "--kube-version", "1.30.0", values=values)
    assert done.returncode != 0
    assert message in done.stderr


def test_the_version_is_the_packages() -> None:
    chart = yaml.safe_load((CHART / "inflight" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == _native.__version__
