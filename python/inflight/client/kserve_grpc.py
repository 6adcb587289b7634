"""KServe over gRPC, through tritonclient. Owns one stream for each request, and who reads it."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from inflight.client.kserve import Health, Input, Request, Response, Stop
from inflight.errors import InflightError

#: A response with the logits of a long prompt is large.
LONGEST_MESSAGE = 2**31 - 1
#: How long a look at the server's health may take.
HEALTH_S = 5.0


class GrpcConnection:
    """See `inflight.client.kserve.Connection`."""

    def __init__(self, target: tuple[str, str, int], api_key: str | None, timeout_s: float) -> None:
        scheme, host, port = target
        self._url = f"{host}:{port}"
        self._timeout_s = timeout_s
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else None
        self._client = triton.InferenceServerClient(
            self._url,
            ssl=scheme == "https",
            channel_args=[
                ("grpc.max_send_message_length", LONGEST_MESSAGE),
                ("grpc.max_receive_message_length", LONGEST_MESSAGE),
                ("grpc.primary_user_agent", "inflight-client"),
            ],
        )

    def health(self) -> Health:
        """See `Connection`."""
        live = ready = False
        try:
            live = self._client.is_server_live(headers=self._headers, client_timeout=HEALTH_S)
            ready = self._client.is_server_ready(headers=self._headers, client_timeout=HEALTH_S)
            about = self._client.get_server_metadata(headers=self._headers, client_timeout=HEALTH_S)
        except InferenceServerException as error:
            # Health needs no key, and all else does where there is one.
            return Health(live, ready, problem=self._failed(error).what)
        try:
            index = self._client.get_model_repository_index(
                headers=self._headers, client_timeout=HEALTH_S
            ).models
        except InferenceServerException:
            # Not every server has the extension.
            index = ()
        models = tuple((one.name, one.version, one.state or "UNKNOWN") for one in index)
        return Health(live, ready, about.name, about.version, tuple(about.extensions), models)

    def is_model_ready(self, model: str) -> bool:
        """See `Connection`."""
        try:
            return bool(self._client.is_model_ready(model, headers=self._headers, client_timeout=HEALTH_S))
        except InferenceServerException as error:
            raise self._failed(error) from error

    def inputs(self, model: str) -> dict[str, Input]:
        """See `Connection`."""
        try:
            described = self._client.get_model_metadata(
                model, headers=self._headers, client_timeout=self._timeout_s
            )
        except InferenceServerException as error:
            raise self._failed(error) from error
        return {one.name: Input(one.name, one.datatype, tuple(one.shape)) for one in described.inputs}

    def ask(self, request: Request, stop: Stop | None = None) -> Iterator[Response]:
        """See `Connection`."""
        arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(lambda result, error: arrived.put((result, error)), headers=self._headers)
        # The last response of the request; with `stop`, also the answer to that.
        finals, ended = 1, False
        try:
            self._send(request)
            stop_at = None if stop is None else time.monotonic() + stop.after_s
            while finals:
                patience = self._timeout_s
                if stop_at is not None:
                    patience = max(stop_at - time.monotonic(), 0.0)
                try:
                    result, error = arrived.get(timeout=patience)
                except queue.Empty:
                    if stop is None or stop_at is None:
                        raise InflightError(
                            f"`{self._url}` sent nothing for `{self._timeout_s:g}` s",
                            "is it busy? `--timeout-s` sets how long to wait",
                        ) from None
                    stop_at = None
                    if stop.cancel:
                        return
                    self._send_stop(request, stop)
                    finals += 1
                    continue
                if error is not None:
                    raise self._failed(error)
                final = bool(result.get_response().parameters["triton_final_response"].bool_param)
                finals -= final
                tensors = _arrays(result)
                if tensors or not final:
                    yield Response(tensors, final)
                if final and stop_at is not None:
                    # It ended before it was to be stopped.
                    break
            ended = True
        finally:
            self._client.stop_stream(cancel_requests=not ended)

    def _send(self, request: Request) -> None:
        inputs = []
        for name, array in request.tensors.items():
            one = triton.InferInput(name, list(array.shape), request.datatypes[name])
            one.set_data_from_numpy(array)
            inputs.append(one)
        try:
            self._client.async_stream_infer(
                request.model,
                inputs,
                request_id=request.request_id,
                enable_empty_final_response=True,
                parameters=dict(request.parameters) or None,
            )
        except InferenceServerException as error:
            raise self._failed(error) from error

    def _send_stop(self, request: Request, stop: Stop) -> None:
        one = np.ones((1, 1), np.int32)
        self._send(
            Request(
                stop.core_model,
                {
                    "input_ids": one,
                    "input_lengths": one,
                    "request_output_len": one,
                    "stop": np.ones((1, 1), np.bool_),
                },
                {
                    "input_ids": "INT32",
                    "input_lengths": "INT32",
                    "request_output_len": "INT32",
                    "stop": "BOOL",
                },
                request.request_id,
            )
        )

    def close(self) -> None:
        """See `Connection`."""
        self._client.close()

    def _failed(self, error: InferenceServerException) -> InflightError:
        if error.status() in ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED"):
            return InflightError(
                f"no server answers at `{self._url}`: {error.message()}",
                "start one with `inflight serve`, or name another with `--url`",
            )
        return InflightError(f"the server refused the request: {error.message()}")


def _arrays(result: Any) -> dict[str, Any]:
    """The outputs that NumPy has a type for."""
    found = {}
    for output in result.get_response().outputs:
        array = result.as_numpy(output.name)
        if array is not None:
            found[output.name] = array
    return found
