"""Assigns each worker of a topology its name, ports and GPUs. Pure, and knows nothing of processes
and arguments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from inflight.errors import UserMistake
from inflight.launch.topology import LARGEST_PORT, Gateways, Model, Topology, groups_of

#: Where the numbers of ports begin that the topology leaves open; Triton's own.
FIRST_PORT = 8001
#: Options of a worker with its ports, by the topology's keys; those of one worker are next to each other.
WORKER_PORTS = {
    key: f"--{key.replace('_', '-')}"
    for key in ("grpc_port", "metrics_port", "kv_events_port", "kv_events_replay_port")
}
#: From one replica's port to the next one's.
PORT_STEP = 2


@dataclass(frozen=True)
class Placed:
    """One replica of a model with what it gets."""

    model: Model
    #: Of the process; a DNS label, so that every plane can use it.
    name: str
    replica: int
    grpc_port: int
    metrics_port: int
    gpus: tuple[str, ...]
    #: `None`: it publishes no events of its cache.
    kv_events_port: int | None = None
    kv_events_replay_port: int | None = None

    @property
    def ports(self) -> dict[str, int]:
        """Those that it has, by the topology's keys."""
        found = {key: getattr(self, key) for key in WORKER_PORTS}
        return {key: port for key, port in found.items() if port is not None}


def place(topology: Topology) -> tuple[Placed, ...]:
    """Names, ports and GPUs of every worker. Raises `UserMistake` where two ports are the same."""
    ports = _Ports(topology)
    gateways = topology.gateways
    for number, port in enumerate(gateway_ports(gateways)):
        ports.take(port, "gateways.port", number)
    for index, model in enumerate(topology.models):
        for replica in range(model.replicas):
            for key in WORKER_PORTS:
                wanted = _port_of(model, key, replica)
                if wanted is not None:
                    ports.take(wanted, f"models[{index}].{key}", replica)
    placed = []
    for model, name in zip(topology.models, worker_names(topology), strict=True):
        groups = groups_of(model) or ((),) * model.replicas
        for replica in range(model.replicas):
            given = {key: _port_of(model, key, replica) for key in WORKER_PORTS}
            grpc, metrics = given["grpc_port"], given["metrics_port"]
            placed.append(
                Placed(
                    model=model,
                    name=name if model.replicas == 1 else f"{name}-{replica}",
                    replica=replica,
                    grpc_port=ports.free() if grpc is None else grpc,
                    metrics_port=ports.free() if metrics is None else metrics,
                    gpus=groups[replica],
                    kv_events_port=given["kv_events_port"],
                    kv_events_replay_port=given["kv_events_replay_port"],
                )
            )
    return tuple(placed)


def _port_of(model: Model, key: str, replica: int) -> int | None:
    first: int | None = getattr(model, key)
    return first and first + PORT_STEP * replica


def worker_names(topology: Topology) -> list[str]:
    """`worker`, or `worker-MODEL` where there are several; distinct DNS labels."""
    if len(topology.models) == 1:
        return ["worker"]
    names: list[str] = []
    for model in topology.models:
        label = re.sub(r"[^a-z0-9]+", "-", model.served_name.lower()).strip("-")[:30].strip("-")
        if model.phases != "both":
            label = f"{label or 'model'}-{model.phases}"
        name = wanted = f"worker-{label or 'model'}"
        number = 2
        while name in names:
            name, number = f"{wanted}-{number}", number + 1
        names.append(name)
    return names


def gateway_ports(gateways: Gateways) -> list[int]:
    """Of each gateway, in order."""
    return [gateways.port and gateways.port + number for number in range(gateways.replicas)]


class _Ports:
    """Numbers that are taken, by whom; free ones from `FIRST_PORT` on."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._owners: dict[int, tuple[str, int]] = {}
        self._next = FIRST_PORT

    def take(self, port: int, key: str, replica: int) -> None:
        """Raises `UserMistake` where it has an owner already."""
        key = self._topology.key(key)
        if port > LARGEST_PORT:
            raise UserMistake(
                f"`{key}` leads to the port `{port}`",
                f"choose a lower first port; the last is {LARGEST_PORT}",
            )
        if port in self._owners:
            other, number = self._owners[port]
            raise UserMistake(
                f"`{other}`{_of(number)} and `{key}`{_of(replica)} are both `{port}`",
                f"choose another port for `{key}`",
            )
        if port:
            self._owners[port] = (key, replica)

    def free(self) -> int:
        """The next number that nobody has."""
        while self._next in self._owners:
            self._next += 1
        self._next += 1
        return self._next - 1


def _of(replica: int) -> str:
    return f" of replica {replica}" if replica else ""
