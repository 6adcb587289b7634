"""A double of Kubernetes' API server: the EndpointSlices of one Service, listed and watched over plain HTTP.

What it sends has the form of the reference of `discovery.k8s.io/v1`. The Rust double in `crates/testkit`
has more faults; this one is for real processes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ApiServer:
    """One Service with a slice for each worker, since workers of one machine differ in their ports."""

    def __init__(self) -> None:
        #: What every request gets in place of an answer: a status, or `silent`.
        self.fault: int | str | None = None
        self._changed = threading.Condition()
        self._version = 1000
        self._slices: dict[str, dict[str, Any]] = {}
        self._events: list[tuple[int, str, dict[str, Any]]] = []

    def put(self, *addresses: str, terminating: bool = False) -> None:
        """Adds or changes the workers at these addresses."""
        for address in addresses:
            host, _, port = address.rpartition(":")
            name = f"{host}-{port}"
            ready = not terminating
            conditions = {"ready": ready, "serving": True, "terminating": terminating}
            self._change(
                "MODIFIED" if name in self._slices else "ADDED",
                name,
                {
                    "addressType": "IPv4",
                    "endpoints": [
                        {"addresses": [host], "conditions": conditions, "targetRef": {"uid": name}}
                    ],
                    "ports": [{"name": "grpc", "port": int(port), "protocol": "TCP"}],
                },
            )

    def delete(self) -> None:
        """Deletes every slice."""
        for name, one in list(self._slices.items()):
            self._change("DELETED", name, one)

    def _change(self, kind: str, name: str, body: dict[str, Any]) -> None:
        with self._changed:
            self._version += 1
            metadata = {"name": name, "namespace": "ml", "resourceVersion": str(self._version)}
            made = {"kind": "EndpointSlice", **body, "metadata": metadata}
            self._slices[name] = made
            if kind == "DELETED":
                del self._slices[name]
            self._events.append((self._version, kind, made))
            self._changed.notify_all()

    def listed(self) -> dict[str, Any]:
        """The answer to a list."""
        with self._changed:
            metadata = {"resourceVersion": str(self._version)}
            return {"kind": "EndpointSliceList", "metadata": metadata, "items": list(self._slices.values())}

    def events(self, version: int) -> Iterator[bytes]:
        """The lines of a watch, for ever; an empty one now and then."""
        while True:
            with self._changed:
                if self._version <= version:
                    self._changed.wait(timeout=0.2)
                news = [(kind, one) for at, kind, one in self._events if at > version]
                version = max(version, self._version)
            yield b"".join(json.dumps({"type": kind, "object": one}).encode() + b"\n" for kind, one in news)


@contextmanager
def serving(api: ApiServer, port: int = 0) -> Iterator[str]:
    """The URL of a server for it; every connection ends with it."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            assert self.path.startswith("/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices?"), self.path
            self.close_connection = True
            fault = api.fault
            if fault == "silent":
                while api.fault == fault and not ended.wait(0.1):
                    pass
            elif isinstance(fault, int):
                self.send_error(fault)
            elif "watch=true" in self.path:
                self._watch(int(self.path.rpartition("resourceVersion=")[2]))
            else:
                body = json.dumps(api.listed()).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def _watch(self, version: int) -> None:
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for news in api.events(version):
                if ended.is_set() or api.fault is not None:
                    return
                try:
                    if news:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(news), news))
                except OSError:
                    return

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
