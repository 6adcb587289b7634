"""A worker that misbehaves: it hands everything to an honest one and spoils what comes back.

Owns the gRPC server in between. What is spoiled, and how, is the test's; messages are bytes here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from typing_extensions import Self

INFERENCE = "/inference.GRPCInferenceService/"
STREAM = f"{INFERENCE}ModelStreamInfer"
FETCH = "/inflight.v1.ModelAssets/Fetch"
WATCH = "/inflight.v1.CacheState/Watch"
DESCRIBE = "/inflight.v1.ModelAssets/Describe"
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A port that its predecessor still has is an error.
    ("grpc.so_reuseport", 0),
)
#: Calls at once; a gateway has one stream and a few short calls.
THREADS = 16

#: A method's name and a response: what is sent in its place.
Spoil = Callable[[str, bytes], list[bytes]]


class Abort(Exception):
    """Raised by a `Spoil` that ends the call."""


def honest(_: str, response: bytes) -> list[bytes]:
    """Changes nothing."""
    return [response]


class SpoilingWorker:
    """Listens in front of `worker`; enter it to run. `spoil` may be changed at any time."""

    def __init__(self, worker: str) -> None:
        self.spoil: Spoil = honest
        self.address = ""
        self._worker = worker
        self._server: Any = None
        self._channel: Any = None

    def __enter__(self) -> Self:
        self._channel = grpc.insecure_channel(self._worker, OPTIONS)
        self._start(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()
        self._channel.close()

    def restart(self) -> None:
        """Ends every connection, so that the gateway asks anew who this is."""
        self._server.stop(0).wait()
        self._start(int(self.address.rpartition(":")[2]))

    def _start(self, port: int) -> None:
        deadline = time.monotonic() + 10
        while True:
            self._server = grpc.server(ThreadPoolExecutor(THREADS), options=OPTIONS)
            self._server.add_generic_rpc_handlers((_Handler(self),))
            try:
                port = self._server.add_insecure_port(f"127.0.0.1:{port}")
                break
            except RuntimeError:
                # The one before is still closing.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self._server.start()
        self.address = f"127.0.0.1:{port}"

    @property
    def channel(self) -> Any:
        """To the worker."""
        return self._channel

    def watch(self, method: str, request: bytes, context: Any) -> Iterator[bytes]:
        """The worker's reports of its cache: here, one that has none."""
        del method, request
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "not in between")
        raise AssertionError("`abort` raises")

    def unary(self, method: str, request: bytes, context: Any) -> bytes:
        """One response for one request."""
        try:
            return self.spoil(method, self._channel.unary_unary(method)(request, timeout=30))[0]
        except Abort as error:
            context.abort(grpc.StatusCode.INTERNAL, str(error))
        except grpc.RpcError as error:
            failed: Any = error
            context.abort(failed.code(), failed.details())
        raise AssertionError("`abort` raises")

    def stream(self, method: str, requests: Any, context: Any) -> Iterator[bytes]:
        """Several responses, for one request or several."""
        if method == FETCH:
            responses = self._channel.unary_stream(method)(requests)
        else:
            responses = self._channel.stream_stream(method)(requests)
        context.add_callback(responses.cancel)
        # A gateway waits for the stream's head before it sends requests.
        context.send_initial_metadata(())
        try:
            for response in responses:
                yield from self.spoil(method, response)
        except Abort as error:
            responses.cancel()
            context.abort(grpc.StatusCode.INTERNAL, str(error))
        except grpc.RpcError as error:
            failed: Any = error
            with suppress(Exception):
                context.abort(failed.code(), failed.details())


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Every method, by its shape; messages stay bytes."""

    def __init__(self, worker: SpoilingWorker) -> None:
        self._worker = worker

    def service(self, details: Any) -> Any:
        method = details.method
        if method == STREAM:
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: self._worker.stream(method, requests, context)
            )
        if method == WATCH:
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self._worker.watch(method, request, context)
            )
        if method == FETCH:
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self._worker.stream(method, request, context)
            )
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._worker.unary(method, request, context)
        )
