"""The Helm chart: rendered by a real helm for every set of values that its page shows, and checked offline.

`INFLIGHT_TEST_HELM` names the program where it is not on PATH.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import openai
import pytest

from inflight import _native
from inflight.cli.worker import worker
from support.metrics import total
from support.servers import NO_KEY, Start, start_gateway, wait_ready

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
    "HTTPRoute": "gateway.networking.k8s.io_httproutes.yaml",
    "InferencePool": "inference.networking.k8s.io_inferencepools.yaml",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    "PrometheusRule": "monitoring.coreos.com_prometheusrules.yaml",
    "ScaledObject": "keda.sh_scaledobjects.yaml",
    "ServiceMonitor": "monitoring.coreos.com_servicemonitors.yaml",
}
UPSTREAM = os.environ.get("INFLIGHT_TEST_CRDS")
#: Labels that Kubernetes selects by are long enough at this; a LeaderWorkerSet's pods have two numbers more.
LONGEST_NAME = 52
TRANSFERS = "nv_trt_llm_disaggregated_serving_metrics"


def own_schema(kind: str) -> Any:
    return yaml.safe_load((SCHEMAS / f"{kind.lower()}.yaml").read_text())


@cache
def upstream_schema(kind: str) -> Any:
    """The upstream's schema of a `spec`, closed against fields that it does not name."""
    # A megabyte takes a minute without the parser in C.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load((Path(str(UPSTREAM)) / CUSTOM[kind]).read_text(), loader)
    served = {one["name"]: one for one in document["spec"]["versions"]}
    version = "v1alpha1" if kind == "ScaledObject" else "v1"
    return closed(served[version]["schema"]["openAPIV3Schema"]["properties"]["spec"])


def closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(made.get("pattern"), str):
        # Go takes flags anywhere.
        made["pattern"] = made["pattern"].replace("^(?i)", "(?i)^")
    if "properties" in schema and not isinstance(schema["properties"].get("type"), str):
        made.setdefault("additionalProperties", False)
    return made


def pods(one: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The pod templates of a workload, by their role."""
    spec = one.get("spec", {})
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
    """Whether the selector of a policy or a budget takes these labels."""
    expressions = policy.get("matchExpressions", [])
    assert all(one["operator"] == "In" for one in expressions)
    return policy["matchLabels"].items() <= labels.items() and all(
        labels[one["key"]] in one["values"] for one in expressions
    )


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_objects_refer_to_each_other(values: str) -> None:
    objects = rendered(values)
    made = {(one["kind"], one["metadata"]["name"]): one.get("spec", {}) for one in objects}
    services = {one["metadata"]["name"]: one for one in objects if one["kind"] == "Service"}
    gateway = made["Deployment", "demo-gateway"]["template"]
    arguments = gateway["spec"]["containers"][0]["args"]
    followed = {
        one.partition("=")[2] for one in arguments if one.startswith(("--worker-dns=", "--worker-service="))
    }
    assert followed == {f"{name}:8001" for name in services if name != "demo-gateway"}
    for one in objects:
        for role, template in pods(one).items():
            labels, spec = template["metadata"]["labels"], template["spec"]
            if "serviceAccountName" in spec:
                assert ("ServiceAccount", spec["serviceAccountName"]) in made
            if "selector" in one["spec"]:
                assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
            # Clients find workers and gateways, and never a rank that serves nothing.
            found = [it for it in services.values() if it["spec"]["selector"].items() <= labels.items()]
            assert len(found) == (role != "follower")
            container = spec["containers"][0]
            mounts = [
                it
                for one in (*spec["containers"], *spec.get("initContainers", ()))
                for it in one.get("volumeMounts", ())
            ]
            claims = one["spec"].get("volumeClaimTemplates", ())
            volumes = [*(it["name"] for it in spec["volumes"]), *(it["metadata"]["name"] for it in claims)]
            assert {it["name"] for it in mounts} == set(volumes)
            assert len(set(volumes)) == len(volumes)
            ports = {one["name"] for one in container.get("ports", ())}
            probes = [container[name] for name in container if name.endswith("Probe")]
            assert all(probe["httpGet"]["port"] in ports for probe in probes)
            assert len(probes) == (0 if role == "follower" else 3)
            longest = LONGEST_NAME if role == "single" else LONGEST_NAME - 2
            assert len(one["metadata"]["name"]) <= longest
    for one in objects:
        if one["kind"] in ("ScaledObject", "HorizontalPodAutoscaler"):
            target = one["spec"]["scaleTargetRef"]
            assert "replicas" not in made[target["kind"], target["name"]]
        if one["kind"] == "PodDisruptionBudget":
            guarded = [
                template
                for it in objects
                for template in pods(it).values()
                if selects(one["spec"]["selector"], template["metadata"]["labels"])
            ]
            name = one["metadata"]["name"]
            assert {
                it["metadata"]["labels"]["app.kubernetes.io/name"].removesuffix("-rank") for it in guarded
            } == {"inflight-gateway" if name == "demo-gateway" else name}
        if one["kind"] == "Ingress":
            backends = [it["backend"] for rule in one["spec"]["rules"] for it in rule["http"]["paths"]]
            assert {it["service"]["name"] for it in backends} <= services.keys()
        if one["kind"] == "HTTPRoute":
            for backend in (it for rule in one["spec"]["rules"] for it in rule["backendRefs"]):
                if backend.get("kind") == "InferencePool":
                    assert ("InferencePool", backend["name"]) in made
                    continue
                assert backend["port"] in {it["port"] for it in services[backend["name"]]["spec"]["ports"]}
        if one["kind"] == "InferencePool":
            picker = one["spec"]["endpointPickerRef"]
            assert picker["port"]["number"] in {
                it["port"] for it in services[picker["name"]]["spec"]["ports"]
            }
            chosen = [
                template["spec"]
                for it in objects
                for template in pods(it).values()
                if selects(one["spec"]["selector"], template["metadata"]["labels"])
            ]
            target = one["spec"]["targetPorts"][0]["number"]
            for spec in chosen:
                ports = {port["containerPort"] for it in spec["containers"] for port in it["ports"]}
                assert target in ports
            assert chosen
            assert f"--endpoint-port={target}" in arguments
        if one["kind"] == "ServiceMonitor":
            selector = one["spec"]["selector"]["matchLabels"].items()
            chosen = [it for it in services.values() if selector <= it["metadata"]["labels"].items()]
            ports = {port["name"] for it in chosen for port in it["spec"]["ports"]}
            assert {end["port"] for end in one["spec"]["endpoints"]} <= ports


def fetching_from(
    name: str, role: str, labels: dict[tuple[str, str], Any], objects: list[dict[str, Any]]
) -> set[Any]:
    """Who fetches KV cache blocks from a worker, and on which port."""
    model, _, phases = name.rpartition("-")
    other = {"context": f"{model}-generation", "generation": f"{model}-context"}.get(phases)
    if (other, role) not in labels:
        return set()
    is_ours = "--executor=reference" in container_of(objects, "StatefulSet", name)["args"]
    if is_ours and phases == "generation":
        return set()
    return {((other, role), 8010 if is_ours else None)}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_only_gateways_and_workers_of_the_same_model_reach_workers(values: str) -> None:
    objects = rendered(values)
    policies = [one["spec"] for one in objects if one["kind"] == "NetworkPolicy"]
    labels = {
        ("gateway", "") if one["kind"] == "Deployment" else (one["metadata"]["name"], role): template[
            "metadata"
        ]["labels"]
        for one in objects
        for role, template in pods(one).items()
    }
    # By whom each kind of pod may be asked, and on which port; `None` is everybody or every port.
    reached = {
        pod: {
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
                    if "podSelector" in source and selects(source["podSelector"], labels[other])
                ]
                if "from" in rule
                else [None]
            )
        }
        for pod, its in labels.items()
    }
    asked: set[Any] = {(("gateway", ""), 8001), (None, 8002)}
    if any(one["kind"] == "InferencePool" for one in objects):
        asked.add((None, 8000))
    wanted: dict[tuple[str, str], set[Any]] = {}
    for name, role in labels:
        group = {((name, other), None) for other in ("leader", "follower")}
        by_role: dict[str, set[Any]] = {
            "single": asked,
            "leader": asked | group,
            "follower": group,
            "": set(),
        }
        wanted[name, role] = by_role[role] | fetching_from(name, role, labels, objects)
    assert reached == (wanted if policies else {pod: set() for pod in labels})


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_every_argument_is_an_option(values: str) -> None:
    gateway = {f"--{option.flag}" for option in _native.gateway_options()}
    worker_params = [*worker.params, *worker.worker_options]
    known = {"worker": {option for one in worker_params for option in one.opts}, "gateway": gateway}
    for one in rendered(values):
        for template in pods(one).values():
            for container in template["spec"]["containers"]:
                command, *arguments = container["args"]
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
        (
            "models: [{name: Qwen/Qwen3-0.6B}, {name: qwen/qwen3_0.6b}]",
            "`Qwen/Qwen3-0.6B` and `qwen/qwen3_0.6b` would both be named `demo-worker-qwen-qwen3-0-6b`",
        ),
        (
            f"models: [{{name: {'a' * 60}b}}, {{name: {'a' * 60}c}}]",
            "give one of them a `resourceName`",
        ),
        ("models: [{name: a, path: a}]", "neither absolute nor a name on the Hub"),
        ("models: [{name: a, path: ../a/b}]", "neither absolute nor a name on the Hub"),
        (
            "modelVolume: {claimName: m}\nmodels: [{name: a, path: /other/a}]",
            "not below `modelVolume.mountPath` (`/models`)",
        ),
        ("modelVolume: {claimName: m}\nmodels: [{name: a, path: /models2/a}]", "not below"),
        ("models: [{name: a, adapters: {path: x}}]", "`adapters.claimName` of `a` is not set"),
        ("models: [{name: a, phases: context}]", "set `cacheKeySecret`"),
        ("models: [{name: a, phases: prefill}]", "phases"),
        (
            "cacheKeySecret: k\nendpointPicker: {enabled: true}\n"
            "models: [{name: a, phases: context}, {name: a, phases: generation}]",
            "a proxy sends each request to one pod",
        ),
        ("endpointPicker: {enabled: true, failureMode: Open}", "failureMode"),
        ("endpointPicker: {enabled: true, fallbacks: 4}", "fallbacks"),
        (
            "cacheKeySecret: k\nmodels: [{name: a, phases: context}]",
            "`a` has `phases: context` and 0 entries with `phases: generation`",
        ),
        (
            "cacheKeySecret: k\nmodels: [{name: a, phases: context}, {name: a, phases: context, "
            "resourceName: b}, {name: a, phases: generation}]",
            "`a` has `phases: generation` and 2 entries with `phases: context`",
        ),
        (
            "cacheKeySecret: k\nmodels: [{name: a, phases: context, path: a/b}, "
            "{name: a, phases: generation, path: a/c}]",
            "both entries of `a` need the same `path`, and it is `a/b` and `a/c`",
        ),
        (
            "models: [{name: a, phases: context, executor: simulated}]",
            "`a` is simulated, which `phases: context` cannot split",
        ),
        (
            "models: [{name: a, phases: context, tensorParallelSize: 2}]",
            "`a` has `phases: context` and 2 ranks",
        ),
        ("models: [{name: a, autoscaling: {enabled: true}}]", "set its `autoscaling.prometheus`"),
        (
            "models: [{name: a, autoscaling: {enabled: true, provider: hpa, minReplicas: 5}}]",
            "`autoscaling.maxReplicas` of `a` is below its `minReplicas`",
        ),
        ("models: [{name: a, autoscaling: {minReplicas: 0}}]", "minReplicas"),
        (
            "modelCache: {size: 1Gi}\nmodels: [{name: a, path: a/b, tensorParallelSize: 2, nodes: 2}]",
            "set `modelCache.claimName`",
        ),
        ("models: [{name: a, env: {A: {value: b}}}]", "env"),
        ("gateway: {ingress: {enabled: true}}", "gateway.ingress.hosts is empty"),
        ("gateway: {httpRoute: {enabled: true}}", "gateway.httpRoute.parentRefs is empty"),
        ("models: []", "models"),
        ("gateway: {replicas: 0}", "replicas"),
    ],
)
def test_mistakes_are_refused(values: str, message: str) -> None:
    done = helm("template", "demo", "--kube-version", "1.30.0", values=values)
    assert done.returncode != 0
    assert message in done.stderr


def values_of(document: Any, path: str = "") -> set[str]:
    """The paths of a document's values; a list counts as its items."""
    if isinstance(document, list):
        items = [values_of(item, path) for item in document if isinstance(item, dict)]
        return set().union({path}, *items)
    if not isinstance(document, dict) or path.rpartition(".")[2] in OF_KUBERNETES:
        return {path}
    return set().union(*(values_of(value, f"{path}.{key}".lstrip(".")) for key, value in document.items()))


#: Maps and lists whose content is Kubernetes' or the user's.
OF_KUBERNETES = {
    *("affinity", "annotations", "env", "envFrom", "extraVolumes", "extraVolumeMounts", "initContainers"),
    *(
        "labels",
        "listeners",
        "nodeSelector",
        "options",
        "podAnnotations",
        "podLabels",
        "resources",
        "tolerations",
        "tls",
    ),
    *("topologySpreadConstraints", "parentRefs", "podSecurityContext", "securityContext", "imagePullSecrets"),
    "timeouts",
}


def test_every_value_is_on_the_page_and_in_the_schema() -> None:
    jsonschema: Any = pytest.importorskip("jsonschema")
    defaults = yaml.safe_load((CHART / "inflight" / "values.yaml").read_text())
    schema = json.loads((CHART / "inflight" / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(defaults, schema)

    def named(schema: Any, path: str = "") -> set[str]:
        if schema.get("type") == "array" and "properties" in schema.get("items", {}):
            return named(schema["items"], path)
        if "properties" not in schema or path.rpartition(".")[2] in OF_KUBERNETES:
            return {path}
        return set().union(
            *(named(one, f"{path}.{key}".lstrip(".")) for key, one in schema["properties"].items())
        )

    # `global` is Helm's own.
    listed = values_of(defaults) - {"models"}
    assert listed == named(schema) - {"global"}
    shown = set().union(*(values_of(yaml.safe_load(values)) for values in SHOWN.values()))
    usual = {"image.tag", "image.pullPolicy", "modelVolume.mountPath", "modelCache.mountPath"}
    rest = {
        "gateway.replicas",
        "serviceMonitor.interval",
        "models.loadSeconds",
        "models.sharedMemory",
        "models.resources",
    }
    assert listed - shown == usual | rest


def container_of(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name))
    (pod,) = pods(found).values()
    found_container: dict[str, Any] = pod["spec"]["containers"][0]
    return found_container


def test_a_model_of_the_hub_has_a_token_and_a_cache() -> None:
    objects = rendered(next(values for title, values in SHOWN.items() if "Hugging Face Hub" in title))
    container = container_of(objects, "StatefulSet", "demo-worker-llama")
    environment = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    assert environment == {
        "HF_ENDPOINT": "https://mirror.example.com",
        "HF_HOME": "/cache/huggingface",
        "HF_TOKEN": {"secretKeyRef": {"name": "hugging-face", "key": "token"}},
        "HOME": "/tmp",
        "LICENSE": {"secretKeyRef": {"name": "license", "key": "text"}},
    }
    assert "meta-llama/Llama-3.1-8B-Instruct@main" in container["args"]
    assert {"name": "cache", "mountPath": "/cache"} in container["volumeMounts"]


def test_the_users_environment_wins_and_a_given_path_needs_no_token() -> None:
    values = "{hubTokenSecret: {name: s}, models: [{name: a, env: {HOME: /data, BIG: 1048576}}]}"
    container = container_of(rendered(values), "StatefulSet", "demo-worker-a")
    assert container["env"] == [{"name": "BIG", "value": "1048576"}, {"name": "HOME", "value": "/data"}]


def test_listeners_find_each_pod_by_the_service_and_know_it_by_its_topic() -> None:
    objects = rendered(next(values for title, values in SHOWN.items() if "inflight-kv-events" in title))
    assert (
        "--kv-events-topic=kv@$(POD_IP):8001@qwen"
        in container_of(objects, "StatefulSet", "demo-worker-qwen")["args"]
    )
    container = container_of(objects, "StatefulSet", "demo-worker-llama")
    topic = "--kv-events-topic=kv@$(POD_IP):9000@meta-llama/Llama-3.1-8B-Instruct"
    assert {"--kv-events-port=5557", "--kv-events-replay-port=5558", topic} <= set(container["args"])
    assert "--kv-events-form=arrays" in container["args"]
    own = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert own in container["env"]
    made = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in objects}
    ports = {port["name"]: port["port"] for port in made["Service", "demo-worker-qwen"]["ports"]}
    assert (ports["kv-events"], ports["kv-events-past"]) == (5557, 5558)
    # Prompts and answers are in the events: only listeners that are named hear them.
    [rule] = made["NetworkPolicy", "demo-worker-qwen-kv-events"]["ingress"]
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": "router"}}
    assert rule == {"from": [{"namespaceSelector": namespace}], "ports": [{"port": 5557}, {"port": 5558}]}
    [rule] = next(
        one["spec"]["ingress"]
        for one in rendered("models: [{name: a, kvEvents: {enabled: true}}]")
        if one["metadata"]["name"] == "demo-worker-a-kv-events"
    )
    assert rule["from"] == [{"podSelector": {"matchLabels": {"inflight-kv-events": "listener"}}}]
    quiet = "models: [{name: a, kvEvents: {enabled: true}}]\nnetworkPolicy: {listeners: []}"
    assert not [one for one in rendered(quiet) if one["metadata"]["name"].endswith("-kv-events")]


def test_large_numbers_and_lists_are_written_as_options_take_them() -> None:
    values = "{gateway: {options: {max-body-bytes: 104857600, allowed-origin: [https://a, https://b]}}}"
    arguments = container_of(rendered(values), "Deployment", "demo-gateway")["args"]
    assert arguments[-3:] == [
        "--allowed-origin=https://a",
        "--allowed-origin=https://b",
        "--max-body-bytes=104857600",
    ]


def test_adapters_are_served_and_may_be_loaded() -> None:
    objects = rendered(next(values for title, values in SHOWN.items() if "LoRA" in title))
    arguments = container_of(objects, "StatefulSet", "demo-worker-qwen")["args"]
    assert {"--executor-option=lora_adapter_dir=/adapters/qwen", "--adapter-dir=/adapters/qwen"} <= set(
        arguments
    )


def test_long_names_of_a_models_phases_differ() -> None:
    entries = ", ".join(f"{{name: {'a' * 60}, phases: {one}}}" for one in ("context", "generation"))
    made = rendered(f"cacheKeySecret: k\nmodels: [{entries}]")
    names = {one["metadata"]["name"] for one in made if one["kind"] == "StatefulSet"}
    assert {name.rpartition("-")[2] for name in names} == {"context", "generation"}
    assert {len(name) for name in names} == {LONGEST_NAME}


def test_workers_of_two_phases_hand_prompts_over(start: Start, tmp_path: Path) -> None:
    """Their arguments, on two addresses of this machine in place of pods."""
    values = "cacheKeySecret: k\nmodels: [{name: m, phases: context}, {name: m, phases: generation}]"
    objects = rendered(values)
    (tmp_path / "kv.key").write_text("one and the same secret\n")
    workers = []
    for number, phases in enumerate(("context", "generation"), 2):
        container = container_of(objects, "StatefulSet", f"demo-worker-m-{phases}")
        environment = {one["name"]: one for one in container["env"]}
        assert environment["POD_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        # Without an address of its own, other pods get a loopback address.
        option = "--executor-option=cache_transceiver_address=$(POD_IP):8010"
        assert option in container["args"]
        arguments = [
            re.sub(r"^(--\w+-port)=\d+$", r"\1=0", argument)
            .replace("$(POD_IP):8010", f"127.0.0.{number}:0")
            .replace("/etc/inflight-cache", str(tmp_path))
            .replace("--host=0.0.0.0", f"--host=127.0.0.{number}")
            for argument in container["args"]
        ]
        workers.append(start(*arguments, "--executor-option=backend=numpy"))
    gateway = start_gateway(start, workers, "--disaggregate=always")
    address = wait_ready(gateway)
    gateway.wait_until("both are up", lambda: total(address, "inflight_gateway_worker_up") == 2)
    with openai.OpenAI(base_url=f"http://{address}/v1", api_key=NO_KEY, max_retries=0) as client:
        asked: dict[str, Any] = {"model": "m", "prompt": "word " * 200, "max_tokens": 5, "stream": True}
        assert "".join(chunk.choices[0].text for chunk in client.completions.create(**asked))
    assert total(address, "inflight_gateway_hand_over_seconds_count") == 1
    served = workers[1].address("metrics")
    assert total(served, TRANSFERS, '="request_count"') == 1
    assert total(served, "inflight_worker_kv_transfer_fallbacks_total") == 0


def test_openshift_accepts_every_pod() -> None:
    """What `restricted-v2` asks for: no fixed account or group, and no privilege."""
    values = next(values for title, values in SHOWN.items() if "OpenShift" in title)
    templates = [template for one in rendered(values) for template in pods(one).values()]
    assert len(templates) == 2
    for template in templates:
        spec = template["spec"]
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
            }
        assert not any("hostPath" in volume for volume in spec["volumes"])


@pytest.mark.parametrize(
    ("file", "source"), [("alerts.yaml", "alerts.yaml"), ("dashboard.json", "dashboards/inflight.json")]
)
def test_the_chart_has_the_alerts_and_the_dashboard_of_monitoring(file: str, source: str) -> None:
    # Helm reads no file outside the chart.
    ours, theirs = CHART / "inflight" / "files" / file, CHART.parent / "monitoring" / source
    assert ours.read_text() == theirs.read_text(), f"run `cp {theirs} {ours}`"


def test_the_version_is_the_packages() -> None:
    chart = yaml.safe_load((CHART / "inflight" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == _native.__version__
