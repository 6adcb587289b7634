"""What of a topology works and is probably not meant, as sentences to warn with. Looks at this machine's GPUs
and at nothing else; refuses nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from pathlib import Path

from inflight import machine
from inflight.launch.topology import Topology

#: Options of a gateway without which it serves everybody.
ACCESS = frozenset({"api-key", "api-key-file", "tls-client-ca"})


def cautions(topology: Topology, environment: Mapping[str, str]) -> Iterator[str]:
    """One line each; `environment` is that of the gateways."""
    gateways = topology.gateways
    given = {name.replace("_", "-") for name, _ in gateways.options}
    asks = gateways.api_key_file is not None or given & ACCESS or environment.get("INFLIGHT_API_KEY")
    if gateways.replicas and not asks and not _is_loopback(gateways.host):
        yield (
            f"`{topology.key('gateways.host')}` is `{gateways.host}` and no key is asked for: everyone who"
            f" reaches this machine can use the models; set `{topology.key('gateways.api_key_file')}`"
        )
    for index, model in enumerate(topology.models):
        if model.gpus is not None and model.nodes == 1 and not has_gpu():
            yield (
                f"`{topology.key(f'models[{index}].gpus')}` lists GPUs, and this machine shows none;"
                " run `inflight doctor` to see why"
            )


def has_gpu() -> bool:
    """Whether the driver shows a GPU, or does not answer in time; a container may have it without
    `nvidia-smi`.
    """
    return any(Path("/dev").glob("nvidia[0-9]*")) or machine.find_gpus() != ()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
