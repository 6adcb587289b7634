"""Which connection to a KServe server an address and a protocol mean. Owns default ports, and what is said
where tritonclient is missing.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from inflight.client.kserve import Connection
from inflight.errors import UserMistake

#: Ports of Triton and of Inflight's servers.
DEFAULT_PORTS = {"grpc": 8001, "http": 8000}


def address(url: str, protocol: str) -> tuple[str, str, int]:
    """Scheme (`http` or `https`; for gRPC, without or with TLS), host and port of what people write."""
    parts = urlsplit(url if "//" in url else f"{protocol}://{url}")
    try:
        port = parts.port or DEFAULT_PORTS[protocol]
    except ValueError:
        port = -1
    schemes = {"http": "http", "grpc": "http", "https": "https", "grpcs": "https"}
    if parts.scheme not in schemes or not parts.hostname or port == -1 or parts.path.strip("/"):
        raise UserMistake(
            f"`{url}` is not the address of a server", f"write it like `localhost:{DEFAULT_PORTS[protocol]}`"
        )
    return schemes[parts.scheme], parts.hostname, port


def connect(protocol: str, url: str | None, api_key: str | None, timeout_s: float) -> Connection:
    """A connection to `url`, by default this machine's. `timeout_s` bounds the wait for each response.

    Raises `UserMistake` where the address is malformed, or gRPC's client is not installed.
    """
    target = address(url or f"localhost:{DEFAULT_PORTS[protocol]}", protocol)
    if protocol == "http":
        from inflight.client.kserve_http import HttpConnection

        return HttpConnection(target, api_key, timeout_s)
    try:
        import tritonclient.grpc  # noqa: F401
    except ImportError as error:
        raise UserMistake(
            "KServe over gRPC needs the package `tritonclient`",
            "run `pip install 'inflight-llm[client]'`, or use `--protocol http`",
        ) from error
    from inflight.client.kserve_grpc import GrpcConnection

    return GrpcConnection(target, api_key, timeout_s)
