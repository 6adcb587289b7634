"""A compose file: every worker and gateway is a service on one machine. Owns the containers' limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from inflight.errors import UserMistake
from inflight.launch.placing import Placed, gateway_ports, place
from inflight.launch.plan import (
    Reach,
    gateway_arguments,
    gateway_grace_s,
    hands_over,
    mpirun,
    worker_arguments,
    worker_environment,
    worker_grace_s,
)
from inflight.launch.topology import Topology

HEADER = "# Written by `inflight launch --render compose`; change the topology and render it again.\n"
#: Every container has its own address, so that all can have the same ports.
GATEWAY_PORT, GRPC_PORT, METRICS_PORT, CACHE_PORT = 8000, 8001, 8002, 8010
#: As vLLM's, for listeners to the events of a worker's cache.
KV_EVENTS_PORT, KV_EVENTS_REPLAY_PORT = 5557, 5558
#: Names under which Prometheus finds all gateways and all workers, whatever their services are called.
GATEWAY_ALIAS, WORKER_ALIAS = "inflight-gateway", "inflight-worker"
PROBE = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)"


def render(topology: Topology) -> dict[str, str]:
    """`compose.yaml`. Raises `UserMistake` for a replica on several machines."""
    yaml: Any = import_module("yaml")
    services: dict[str, Any] = {}
    outside = place(topology)
    placed = [_inside(one) for one in outside]
    for one, there in zip(placed, outside, strict=True):
        if one.model.nodes > 1:
            raise UserMistake(
                f"`{one.model.served_name}` spans `{one.model.nodes}` machines, and compose has one",
                "render it for Slurm, or start `inflight launch` with `mpi.hostfile`",
            )
        services[one.name] = _worker(one, topology)
        if published := _published(one, there):
            services[one.name]["ports"] = published
    workers = [f"{one.name}:{one.grpc_port}" for one in placed]
    for number, port in enumerate(gateway_ports(topology.gateways)):
        name = "gateway" if topology.gateways.replicas == 1 else f"gateway-{number}"
        services[name] = _gateway(topology, port, workers, list(services)[: len(placed)])
    document: dict[str, Any] = {"name": "inflight", "services": services}
    secrets = {"api-keys": topology.gateways.api_key_file}
    if any(hands_over(one.model) for one in placed):
        secrets["cache-key"] = topology.deploy.cache_key_file
    files = {name: {"file": file} for name, file in secrets.items() if file is not None}
    if files:
        document["secrets"] = files
    return {"compose.yaml": HEADER + yaml.safe_dump(document, sort_keys=False, width=100)}


def _inside(one: Placed) -> Placed:
    """With the ports that it has in its container."""
    return replace(
        one,
        grpc_port=GRPC_PORT,
        metrics_port=METRICS_PORT,
        kv_events_port=None if one.kv_events_port is None else KV_EVENTS_PORT,
        kv_events_replay_port=None if one.kv_events_replay_port is None else KV_EVENTS_REPLAY_PORT,
    )


def _published(inside: Placed, outside: Placed) -> list[str]:
    """Where listeners on this machine, as with `inflight launch`, hear what the worker's cache holds."""
    pairs = (
        (outside.kv_events_port, inside.kv_events_port),
        (outside.kv_events_replay_port, inside.kv_events_replay_port),
    )
    return [f"127.0.0.1:{port}:{own}" for port, own in pairs if port is not None]


def _worker(one: Placed, topology: Topology) -> dict[str, Any]:
    model = one.model
    environment = worker_environment(one)
    # The devices of the container are the worker's only ones, and count from 0 again.
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        environment.pop(name, None)
    launcher = mpirun(model, topology, environment, as_root=False)
    reach = None
    if hands_over(model):
        if topology.deploy.cache_key_file is None:
            raise UserMistake(
                f"workers of `{model.served_name}` fetch KV cache blocks from other containers, and "
                "`deploy.cache_key_file` is not set",
                "write a random text into a file, such as that of `openssl rand -hex 32`, and name it there",
            )
        # A service's name is its container's address, also within.
        reach = Reach(f"{one.name}:{CACHE_PORT}", "/run/secrets/cache-key")
    arguments = [*launcher, "inflight", *worker_arguments(one, topology, host="0.0.0.0", reach=reach)]
    service = _service(topology.deploy.image, arguments, worker_grace_s(topology), topology)
    # The root file system is read-only, and compiled kernels are kept below `HOME`.
    service["environment"] = _variables({"HOME": "/tmp"} | environment)
    service["networks"] = {"default": {"aliases": [WORKER_ALIAS]}}
    if reach is not None:
        service["secrets"] = ["cache-key"]
    if model.path is not None:
        service["volumes"] = [f"{_escaped(model.path)}:{_escaped(model.path)}:ro"]
    if model.gpus_per_node:
        device: dict[str, Any] = {"driver": "nvidia", "capabilities": ["gpu"]}
        device |= {"device_ids": list(one.gpus)} if one.gpus else {"count": "all"}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
        service["ulimits"] = {"memlock": -1}
        service["shm_size"] = "8gb"
    service["healthcheck"] = _check(f"http://127.0.0.1:{one.metrics_port}/health/ready")
    return service


def _gateway(topology: Topology, port: int, workers: list[str], names: list[str]) -> dict[str, Any]:
    gateways = topology.gateways
    keys = None if gateways.api_key_file is None else "/run/secrets/api-keys"
    arguments = gateway_arguments(topology, workers, host="0.0.0.0", port=GATEWAY_PORT, api_key_file=keys)
    image = topology.deploy.gateway_image or topology.deploy.image
    service = _service(image, ["inflight", *arguments], gateway_grace_s(topology), topology)
    if gateways.environment:
        service["environment"] = _variables(dict(gateways.environment))
    service["networks"] = {"default": {"aliases": [GATEWAY_ALIAS]}}
    service["ports"] = [f"{gateways.host}:{port}:{GATEWAY_PORT}"]
    if keys is not None:
        service["secrets"] = ["api-keys"]
    service["ulimits"] = {"nofile": 65536}
    # They end in the reverse order.
    service["depends_on"] = names
    if topology.deploy.gateway_image is None:
        service["healthcheck"] = _check(f"http://127.0.0.1:{GATEWAY_PORT}/health/live")
    return service


def _service(image: str, arguments: list[str], grace_s: float, topology: Topology) -> dict[str, Any]:
    most = topology.restart.most
    return {
        "image": image,
        "entrypoint": [],
        "command": [_escaped(argument) for argument in arguments],
        "init": True,
        "restart": f"on-failure:{most}" if most else "no",
        "stop_grace_period": f"{grace_s:g}s",
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }


def _check(url: str) -> dict[str, Any]:
    # A model that loads for long is starting, not sick.
    return {
        "test": ["CMD", "python3", "-c", PROBE, url],
        "interval": "5s",
        "timeout": "3s",
        "retries": 3,
        "start_period": "1h",
    }


def _variables(values: Mapping[str, str]) -> dict[str, str]:
    return {name: _escaped(value) for name, value in values.items()}


def _escaped(text: str) -> str:
    """compose puts variables in for `$`."""
    return text.replace("$", "$$")
