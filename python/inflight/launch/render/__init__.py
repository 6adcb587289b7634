"""A topology as the files of another plane. Pure: a topology in, file names and texts out.

Owns which planes there are and what no plane can do. Each plane has a module; none knows another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inflight.errors import UserMistake
from inflight.launch.placing import gateway_ports, place
from inflight.launch.render import compose, kubernetes, slurm, systemd
from inflight.launch.topology import Topology

PLANES: Mapping[str, Callable[[Topology], dict[str, str]]] = {
    "slurm": slurm.render,
    "kubernetes": kubernetes.render,
    "compose": compose.render,
    "systemd": systemd.render,
}


def render(topology: Topology, plane: str) -> dict[str, str]:
    """Texts by file name. Raises `UserMistake` for what the plane cannot run."""
    if 0 in gateway_ports(topology.gateways):
        raise _open_port("gateways.port")
    for placed in place(topology):
        for key, port in placed.ports.items():
            if port == 0:
                raise _open_port(f"models[{topology.models.index(placed.model)}].{key}")
    return PLANES[plane](topology)


def _open_port(key: str) -> UserMistake:
    return UserMistake(
        f"`{key}` is `0`, and nobody could know the port that a process picks",
        "choose a port, or leave it out",
    )
