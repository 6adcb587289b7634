"""The Helm chart: rendered by a real helm for every set of values that its page shows, and checked offline.

`INFLIGHT_TEST_HELM` names the program where it is not on PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
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
SCHEMAS = Path(__file__).parent / "schemas"
#: What upstream calls the files of the custom resources that the chart writes; see `ORIGIN.md` of `SCHEMAS`.
CUSTOM = {
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    "ServiceMonitor": "monitoring.coreos.com_servicemonitors.yaml",
}
UPSTREAM = os.environ.get("INFLIGHT_TEST_CRDS")
#: Labels that Kubernetes selects by are long enough at this; a LeaderWorkerSet's pods have two numbers more.
LONGEST_NAME = 52


def own_schema(kind: str) -> Any:
    return yaml.safe_load((SCHEMAS / f"{kind.lower()}.yaml").read_text())


@cache
def upstream_schema(kind: str) -> Any:
    """The upstream's schema of a `spec`, closed against fields that it does not name."""
    # A megabyte takes a minute without the parser in C.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load((Path(str(UPSTREAM)) / CUSTOM[kind]).read_text(), loader)
    return closed(document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])


def closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and not isinstance(schema["properties"].get("type"), str):
        made.setdefault("additionalProperties", False)
    return made


def pods(one: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The pod templates of a workload, by their role."""
    spec = one["spec"]
    if one["kind"] in ("StatefulSet", "Deployment"):
        return {"single": spec["template"]}
    if one["kind"] == "LeaderWorkerSet":
        group = spec["leaderWorkerTemplate"]
        return {"leader": group["leaderTemplate"], "follower": group["workerTemplate"]}
    return {}


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
        assert one["metadata"]["namespace"] == "llm"
        if one["kind"] in CUSTOM:
            jsonschema.validate(one["spec"], own_schema(one["kind"]))
            if UPSTREAM:
                jsonschema.validate(one["spec"], upstream_schema(one["kind"]))
        for version in ("1.30", "1.37"):
            if one["kind"] not in CUSTOM:
                validate.validate(one, version, strict=True)
            for role, template in pods(one).items():
                metadata = {"name": role, **template["metadata"]}
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
                validate.validate(pod, version, strict=True)
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(set(names)) == len(names)


@pytest.mark.skipif(not UPSTREAM, reason="INFLIGHT_TEST_CRDS names no directory with upstream's CRDs")
@pytest.mark.parametrize("kind", CUSTOM)
def test_own_schemas_allow_nothing_that_upstream_refuses(kind: str) -> None:
    def compare(own: Any, theirs: Any, path: str) -> None:
        for key in ("type", "enum", "pattern", "minimum"):
            if key in own:
                # An enumeration may leave values out, and a bound may be added.
                allowed = theirs.get(key, own[key])
                assert own[key] == allowed or set(own[key]) <= set(allowed), f"{path}.{key}"
        assert set(theirs.get("required", ())) <= set(own.get("required", ())) or "properties" not in own, (
            path
        )
        for name, schema in own.get("properties", {}).items():
            compare(schema, theirs["properties"][name], f"{path}.{name}")
        if "items" in own:
            compare(own["items"], theirs["items"], f"{path}[]")

    compare(own_schema(kind), upstream_schema(kind), kind)


def selects(policy: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a NetworkPolicy's selector takes these labels."""
    expressions = policy.get("matchExpressions", [])
    assert all(one["operator"] == "In" for one in expressions)
    return policy["matchLabels"].items() <= labels.items() and all(
        labels[one["key"]] in one["values"] for one in expressions
    )


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_objects_refer_to_each_other(values: str) -> None:
    objects = rendered(values)
    made = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in objects}
    services = {one["metadata"]["name"]: one for one in objects if one["kind"] == "Service"}
    gateway = made["Deployment", "demo-gateway"]["template"]
    arguments = gateway["spec"]["containers"][0]["args"]
    followed = {one.partition("=")[2] for one in arguments if one.startswith("--worker-dns=")}
    assert followed == {f"{name}:8001" for name in services if name != "demo-gateway"}
    for one in objects:
        for role, template in pods(one).items():
            labels, spec = template["metadata"]["labels"], template["spec"]
            if "selector" in one["spec"]:
                assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
            # Clients find workers and gateways, and never a rank that serves nothing.
            found = [it for it in services.values() if it["spec"]["selector"].items() <= labels.items()]
            assert len(found) == (role != "follower")
            container = spec["containers"][0]
            mounted = {one["name"] for one in container["volumeMounts"]}
            assert mounted == {one["name"] for one in spec["volumes"]}
            ports = {one["name"] for one in container.get("ports", ())}
            probes = [container[name] for name in container if name.endswith("Probe")]
            assert all(probe["httpGet"]["port"] in ports for probe in probes)
            assert len(probes) == (0 if role == "follower" else 3)
            longest = LONGEST_NAME if role == "single" else LONGEST_NAME - 2
            assert len(one["metadata"]["name"]) <= longest
    for one in objects:
        if one["kind"] == "ServiceMonitor":
            selector = one["spec"]["selector"]["matchLabels"].items()
            chosen = [it for it in services.values() if selector <= it["metadata"]["labels"].items()]
            ports = {port["name"] for it in chosen for port in it["spec"]["ports"]}
            assert {end["port"] for end in one["spec"]["endpoints"]} <= ports


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_only_gateways_and_ranks_of_a_group_reach_workers(values: str) -> None:
    objects = rendered(values)
    policies = [one["spec"] for one in objects if one["kind"] == "NetworkPolicy"]
    labels = {
        "gateway" if one["kind"] == "Deployment" else role: template["metadata"]["labels"]
        for one in objects
        for role, template in pods(one).items()
    }
    # By whom each kind of pod may be asked, and on which port; `None` is everybody or every port.
    reached = {
        role: {
            (peer, port.get("port"))
            for policy in policies
            if selects(policy["podSelector"], its)
            for rule in policy["ingress"]
            for port in rule.get("ports", [{}])
            for peer in (
                [
                    other
                    for source in rule["from"]
                    for other in labels
                    if selects(source["podSelector"], labels[other])
                ]
                if "from" in rule
                else [None]
            )
        }
        for role, its in labels.items()
    }
    asked = {("gateway", 8001), (None, 8002)}
    group = {(role, None) for role in labels if role != "gateway"} if "follower" in labels else set()
    wanted = {"single": asked, "leader": asked | group, "follower": group, "gateway": set()}
    assert reached == {role: wanted[role] if policies else set() for role in labels}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_every_argument_is_an_option(values: str) -> None:
    gateway = {f"--{option.flag}" for option in _native.gateway_options()}
    known = {"worker": {option for one in worker.params for option in one.opts}, "gateway": gateway}
    for one in rendered(values):
        for template in pods(one).values():
            command, *arguments = template["spec"]["containers"][0]["args"]
            given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
            assert given <= known[command], given - known[command]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("models: [{name: a, path: /models/a}]", "`modelVolume.claimName` is not set"),
        ("models: [{name: a, tensorParallelSize: 2, gpus: 1}]", "has 2 ranks on each machine and `gpus: 1`"),
        (
            "models: [{name: a, tensorParallelSize: 3, nodes: 2}]",
            "has 3 ranks, which `nodes: 2` cannot share",
        ),
        (
            "models: [{name: a, executor: tensorrt_llm, tensorParallelSize: 2, nodes: 2}]",
            "mpirun reaches the other machines by ssh: set `sshSecret`",
        ),
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
