"""Plain Kubernetes manifests: a StatefulSet for each model, a Deployment of gateways, and who may talk to
whom.

Owns the objects, their names and probes. Everything is in one namespace, and gateways find the workers of a
model, however many there are, by its headless Service: by the name, or by a watch of its EndpointSlices.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any

from inflight.errors import UserMistake
from inflight.launch.placing import Placed, worker_names
from inflight.launch.plan import (
    CLOSING_S,
    Reach,
    gateway_arguments,
    gateway_grace_s,
    hands_over,
    mpirun,
    worker_arguments,
    worker_grace_s,
)
from inflight.launch.topology import WORKER, Model, Topology

HEADER = "# Written by `inflight launch --render kubernetes`; change the topology and render it again.\n"
#: Every pod has its own address, so that all can have the same ports.
HTTP_PORT, GRPC_PORT, METRICS_PORT, CACHE_PORT = 8000, 8001, 8002, 8010
#: As vLLM's, for listeners to the events of a worker's cache.
KV_EVENTS_PORT, KV_EVENTS_REPLAY_PORT = 5557, 5558
#: The label of pods that may listen: the events contain prompts and answers.
LISTENER = {"inflight-kv-events": "listener"}
#: Where a pod serves KV cache blocks, which only it knows, and the key for them.
_REACH = Reach(f"$(POD_IP):{CACHE_PORT}", "/etc/inflight-cache/kv.key")
#: Seconds in which proxies and gateways notice that a pod is leaving.
LEAVING_S = 5
#: The image's account.
USER_ID = 1000
#: The largest models take that long to load.
LOADING_S = 3600
PROBE_EVERY_S = 5


def render(topology: Topology) -> dict[str, str]:
    """One file for each kind of process. Raises `UserMistake` for what these manifests cannot express."""
    files = {}
    addresses = []
    for index, (model, name) in enumerate(zip(topology.models, worker_names(topology), strict=True)):
        _check(model, topology, index)
        full = f"inflight-{name}"
        files[f"{name}.yaml"] = _dump(_worker(model, full, topology))
        addresses.append(f"{full}:{GRPC_PORT}")
    if topology.gateways.replicas:
        files["gateway.yaml"] = _dump(_gateway(topology, addresses))
    files["network.yaml"] = _dump([_network(topology)])
    return files


def _check(model: Model, topology: Topology, index: int) -> None:
    deploy = topology.deploy
    if model.nodes > 1:
        raise UserMistake(
            f"`models[{index}].nodes` is `{model.nodes}`, and these manifests give each replica one machine",
            "use the Helm chart with its `nodes` (deploy/helm), or render it for Slurm",
        )
    if hands_over(model) and deploy.cache_key_secret is None:
        raise UserMistake(
            f"workers of `models[{index}]` fetch KV cache blocks from other pods, and"
            " `deploy.cache_key_secret` is not set",
            "set it to the name of a Secret with the key `kv.key`, the text of `openssl rand -hex 32`",
        )
    if model.path is not None:
        if deploy.model_volume is None:
            raise UserMistake(
                f"`models[{index}].path` needs a volume, and `deploy.model_volume` is not set",
                "set it to the name of a PersistentVolumeClaim that holds the models",
            )
        if not PurePosixPath(model.path).is_relative_to(deploy.model_mount):
            raise UserMistake(
                f"`models[{index}].path` is `{model.path}`, which is not below `deploy.model_mount`"
                f" `{deploy.model_mount}`",
                "put the model on the volume, and write the path that pods see",
            )


def _worker(model: Model, name: str, topology: Topology) -> list[dict[str, Any]]:
    deploy = topology.deploy
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/component": "worker"} | _COMMON
    events = _events_ports(model)
    one = Placed(model, name, 0, GRPC_PORT, METRICS_PORT, (), *events.values())
    launcher = mpirun(model, topology, (), as_root=False)
    container: dict[str, Any] = {
        "name": "worker",
        "image": deploy.image,
        "command": _literal([*launcher, "inflight"]),
        "args": _with_pod(
            worker_arguments(
                one,
                topology,
                host="0.0.0.0",
                reach=_REACH if hands_over(model) else None,
                known_as=WORKER,
            )
        ),
        "ports": [
            {"name": "grpc", "containerPort": GRPC_PORT},
            {"name": "metrics", "containerPort": METRICS_PORT},
            *({"name": name, "containerPort": port} for name, port in events.items() if port is not None),
        ],
        # The root file system is read-only, and compiled kernels are kept below `HOME`.
        "env": _variables({"HOME": "/tmp"} | dict(model.environment)),
        # Ready once a token went through the engine; a stuck engine ends the worker by itself.
        "startupProbe": _http("/health/ready", "metrics", failures=LOADING_S // PROBE_EVERY_S),
        "readinessProbe": _http("/health/ready", "metrics", failures=2),
        "livenessProbe": _http("/health/live", "metrics", failures=6),
        "lifecycle": {"preStop": _leave(launcher, worker_grace_s(topology))},
        "securityContext": _CONTAINER_SECURITY,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    if model.gpus_per_node:
        container["resources"] = {"limits": {deploy.gpu_resource: model.gpus_per_node}}
    volumes: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
    ]
    if model.path is not None:
        container["volumeMounts"].append(
            {"name": "models", "mountPath": deploy.model_mount, "readOnly": True}
        )
        claim = {"claimName": deploy.model_volume, "readOnly": True}
        volumes.append({"name": "models", "persistentVolumeClaim": claim})
    if hands_over(model) or WORKER in (model.kv_events_topic or ""):
        place: dict[str, Any] = {"fieldRef": {"fieldPath": "status.podIP"}}
        container["env"].append({"name": "POD_IP", "valueFrom": place})
    if hands_over(model):
        container["ports"].append({"name": "cache", "containerPort": CACHE_PORT})
        key = str(PurePosixPath(_REACH.key_file).parent)
        container["volumeMounts"].append({"name": "cache-key", "mountPath": key, "readOnly": True})
        volumes.append({"name": "cache-key", "secret": {"secretName": deploy.cache_key_secret}})
    pod = _pod(container, volumes, worker_grace_s(topology) + LEAVING_S)
    service = {
        "clusterIP": "None",
        # Gateways ask the workers themselves whether they are ready.
        "publishNotReadyAddresses": True,
        "selector": labels,
        "ports": [
            {"name": "grpc", "port": GRPC_PORT},
            {"name": "metrics", "port": METRICS_PORT},
            *({"name": name, "port": port} for name, port in events.items() if port is not None),
        ],
    }
    workers = {
        "serviceName": name,
        "replicas": model.replicas,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return [
        _object(topology, "v1", "Service", name, labels, service),
        _object(topology, "apps/v1", "StatefulSet", name, labels, workers),
    ]


def _events_ports(model: Model) -> dict[str, int | None]:
    """Where it publishes the events of its cache, by the ports' names; every pod has its own address."""
    return {
        "kv-events": None if model.kv_events_port is None else KV_EVENTS_PORT,
        "kv-events-past": None if model.kv_events_replay_port is None else KV_EVENTS_REPLAY_PORT,
    }


def _gateway(topology: Topology, workers: list[str]) -> list[dict[str, Any]]:
    deploy, gateways = topology.deploy, topology.gateways
    labels = {
        "app.kubernetes.io/name": "inflight-gateway",
        "app.kubernetes.io/component": "gateway",
    } | _COMMON
    keys = None if deploy.api_key_secret is None else "/etc/inflight/api-keys"
    watches = deploy.discovery == "endpointslices"
    arguments = gateway_arguments(
        topology,
        workers,
        host="0.0.0.0",
        port=HTTP_PORT,
        api_key_file=keys,
        found_by="--worker-service" if watches else "--worker-dns",
    )
    container: dict[str, Any] = {
        "name": "gateway",
        "image": deploy.gateway_image or deploy.image,
        "command": ["inflight"],
        "args": _literal(arguments),
        "ports": [{"name": "http", "containerPort": HTTP_PORT}],
        "env": _variables(dict(gateways.environment)),
        "startupProbe": _http("/health/live", "http", failures=12),
        "readinessProbe": _http("/health/ready", "http", failures=2),
        "livenessProbe": _http("/health/live", "http", failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": LEAVING_S}}},
        "securityContext": _CONTAINER_SECURITY,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    if deploy.api_key_secret is not None:
        # Not by subPath: the file is to change with the Secret.
        container["volumeMounts"].append({"name": "api-keys", "mountPath": "/etc/inflight", "readOnly": True})
        volumes.append({"name": "api-keys", "secret": {"secretName": deploy.api_key_secret}})
    pod = _pod(container, volumes, gateway_grace_s(topology) + LEAVING_S)
    name = "inflight-gateway"
    if watches:
        pod |= {"automountServiceAccountToken": True, "serviceAccountName": name}
    deployment = {
        "replicas": gateways.replicas,
        "selector": {"matchLabels": labels},
        "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    service = {"selector": labels, "ports": [{"name": "http", "port": HTTP_PORT, "targetPort": "http"}]}
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    return [
        _object(topology, "v1", "Service", name, labels, service),
        _object(topology, "apps/v1", "Deployment", name, labels, deployment),
        _object(topology, "policy/v1", "PodDisruptionBudget", name, labels, budget),
        *(_account(topology, name, labels) if watches else ()),
    ]


def _account(topology: Topology, name: str, labels: dict[str, str]) -> list[dict[str, Any]]:
    """What lets gateways read the EndpointSlices of their namespace, and nothing else."""
    group = "rbac.authorization.k8s.io"
    reads = {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    }
    space = {} if topology.deploy.namespace is None else {"namespace": topology.deploy.namespace}
    made = [
        _object(topology, "v1", "ServiceAccount", name, labels, {}),
        _object(topology, f"{group}/v1", "Role", name, labels, {}) | {"rules": [reads]},
        _object(topology, f"{group}/v1", "RoleBinding", name, labels, {})
        | {
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, **space}],
        },
    ]
    # None of them has a `spec`.
    return [{key: value for key, value in one.items() if key != "spec"} for one in made]


def _network(topology: Topology) -> dict[str, Any]:
    """Workers ask for no key: only gateways may reach them, anybody their metrics, pods with the label
    `LISTENER` the events of their caches, and other workers the KV cache blocks of prompts where there are
    `phases`."""
    component = {"app.kubernetes.io/component": "worker"} | _COMMON
    gateway = {"app.kubernetes.io/component": "gateway"} | _COMMON
    reached: list[dict[str, Any]] = [
        {"from": [{"podSelector": {"matchLabels": gateway}}], "ports": [{"port": GRPC_PORT}]},
        {"ports": [{"port": METRICS_PORT}]},
    ]
    events = {port for model in topology.models for port in _events_ports(model).values() if port is not None}
    if events:
        heard = [{"port": port} for port in sorted(events)]
        reached.append({"from": [{"podSelector": {"matchLabels": LISTENER}}], "ports": heard})
    others = [{"podSelector": {"matchLabels": component}}]
    apart = [model for model in topology.models if model.phases != "both"]
    if any(not hands_over(model) for model in apart):
        # TensorRT-LLM's transceivers pick their ports.
        reached.append({"from": others})
    elif apart:
        reached.append({"from": others, "ports": [{"port": CACHE_PORT}]})
    spec = {"podSelector": {"matchLabels": component}, "policyTypes": ["Ingress"], "ingress": reached}
    return _object(topology, "networking.k8s.io/v1", "NetworkPolicy", "inflight-worker", component, spec)


_COMMON = {"app.kubernetes.io/part-of": "inflight"}
_CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def _object(
    topology: Topology, version: str, kind: str, name: str, labels: dict[str, str], spec: dict[str, Any]
) -> dict[str, Any]:
    space = {} if topology.deploy.namespace is None else {"namespace": topology.deploy.namespace}
    metadata = {"name": name, **space, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _pod(container: dict[str, Any], volumes: list[dict[str, Any]], grace_s: float) -> dict[str, Any]:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": round(grace_s + CLOSING_S),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{key: value for key, value in container.items() if value != []}],
        "volumes": volumes,
    }


def _variables(environment: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in environment.items()]


def _literal(words: Iterable[str]) -> list[str]:
    """Kubernetes would put variables into `$(NAME)`; a `$$` is a `$`."""
    return [word.replace("$", "$$") for word in words]


def _with_pod(arguments: Iterable[str]) -> list[str]:
    """The same, but for the address that only the pod knows."""
    own = f"--executor-option=cache_transceiver_address={_REACH.address}"
    written = []
    for one in arguments:
        [literal] = _literal([one])
        if one.startswith("--kv-events-topic="):
            literal = literal.replace(WORKER, f"$(POD_IP):{GRPC_PORT}")
        written.append(own if one == own else literal)
    return written


def _leave(launcher: tuple[str, ...], grace_s: float) -> dict[str, Any]:
    """Rank 0 drains and then ends the others; mpirun itself would give them a second."""
    if not launcher:
        return {"sleep": {"seconds": LEAVING_S}}
    script = (
        f"sleep {LEAVING_S}; read -r first rest < /proc/1/task/1/children; kill -TERM $first;"
        f" sleep {grace_s:g}"
    )
    return {"exec": {"command": ["sh", "-c", script]}}


def _http(path: str, port: str, *, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": PROBE_EVERY_S,
        "failureThreshold": failures,
    }


def _dump(objects: list[dict[str, Any]]) -> str:
    yaml: Any = import_module("yaml")

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Writes what appears twice twice: an alias is not for readers."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 -- the parent's
            return True

    texts = [yaml.dump(one, Dumper=Dumper, sort_keys=False, width=100) for one in objects]
    return HEADER + "---\n".join(texts)
