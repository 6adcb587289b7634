"""KServe over HTTP and Triton's `generate_stream`, with the standard library. Owns JSON both ways.

A request that streams is a `generate_stream`, any other an `infer` with JSON tensors.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import numpy as np

from inflight.client.kserve import DTYPES, Array, Health, Input, Request, Response, Stop
from inflight.client.openai import events, lines_of
from inflight.errors import InflightError, UserMistake

#: A longer event is not one answer's.
LONGEST_EVENT = 256 * 1024 * 1024
HEALTH_S = 5.0


class HttpConnection:
    """See `inflight.client.kserve.Connection`."""

    def __init__(self, target: tuple[str, str, int], api_key: str | None, timeout_s: float) -> None:
        self._scheme, self._host, self._port = target
        self._timeout_s = timeout_s
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    @property
    def _url(self) -> str:
        return f"{self._host}:{self._port}"

    def health(self) -> Health:
        """See `Connection`."""
        live = ready = False
        try:
            live = self._call("GET", "/v2/health/live", timeout_s=HEALTH_S)[0] == 200
            ready = self._call("GET", "/v2/health/ready", timeout_s=HEALTH_S)[0] == 200
            about = self._json("GET", "/v2")
        except InflightError as error:
            # Health needs no key, and all else does where there is one.
            return Health(live, ready, problem=error.what)
        try:
            index = self._json("POST", "/v2/repository/index")
        except InflightError:
            # Not every server has the extension.
            index = []
        models = tuple(
            (str(one["name"]), str(one.get("version", "")), str(one.get("state", "UNKNOWN"))) for one in index
        )
        return Health(
            live,
            ready,
            str(about.get("name", "")),
            str(about.get("version", "")),
            tuple(map(str, about.get("extensions", ()))),
            models,
        )

    def is_model_ready(self, model: str) -> bool:
        """See `Connection`."""
        return self._call("GET", f"{_path(model)}/ready", timeout_s=HEALTH_S)[0] == 200

    def inputs(self, model: str) -> dict[str, Input]:
        """See `Connection`."""
        described = self._json("GET", _path(model))
        return {
            one["name"]: Input(one["name"], one["datatype"], tuple(int(size) for size in one["shape"]))
            for one in described["inputs"]
        }

    def ask(self, request: Request, stop: Stop | None = None) -> Iterator[Response]:
        """See `Connection`. Ending a request early is leaving it."""
        if request.streaming or stop is not None:
            yield from self._stream(request, stop)
            return
        body = {
            "id": request.request_id,
            "parameters": dict(request.parameters),
            "inputs": [
                {
                    "name": name,
                    "datatype": request.datatypes[name],
                    "shape": list(array.shape),
                    "data": _values(array),
                }
                for name, array in request.tensors.items()
            ],
        }
        answer = self._json("POST", f"{_path(request.model)}/infer", body)
        tensors = {}
        for one in answer.get("outputs", ()):
            if one["datatype"] in DTYPES and "data" in one:
                tensors[one["name"]] = _array(one["data"], one["datatype"]).reshape(one["shape"])
        yield Response(tensors, True)

    def _stream(self, request: Request, stop: Stop | None) -> Iterator[Response]:
        body: dict[str, Any] = {"parameters": dict(request.parameters)}
        if request.request_id:
            body["id"] = request.request_id
        for name, array in request.tensors.items():
            if (sum(size > 1 for size in array.shape[1:]) > 1 and name not in FLAT) or array.shape[0] > 1:
                raise UserMistake(
                    f"`generate_stream` cannot carry `{name}` of the shape `{list(array.shape)}`",
                    "use `--protocol grpc`",
                )
            flat = _values(array)
            body[name] = flat[0] if len(flat) == 1 else flat
        connection = self._open(self._timeout_s)
        stopped = threading.Event()
        timer: threading.Timer | None = None
        try:
            connection.connect()
            if stop is not None:
                timer = threading.Timer(stop.after_s, _leave, (connection.sock, stopped))
                timer.daemon = True
                timer.start()
            path = f"{_path(request.model)}/generate_stream"
            response = _send(connection, "POST", path, body, self._headers)
            if response.status != http.client.OK:
                raise _refused(response.status, response.read())
            for data in events(lines_of(response, LONGEST_EVENT)):
                answer = json.loads(data)
                if "error" in answer:
                    raise InflightError(f"the server ended the stream with an error: {answer['error']}")
                yield Response(
                    {name: _array(value, None) for name, value in answer.items() if name not in ENVELOPE},
                    False,
                )
        except (OSError, http.client.HTTPException) as error:
            if not stopped.is_set():
                raise self._lost(error) from error
        finally:
            if timer is not None:
                timer.cancel()
            connection.close()

    def close(self) -> None:
        """See `Connection`."""

    def _open(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._scheme == "https" else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=timeout_s)

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> tuple[int, bytes]:
        connection = self._open(timeout_s or self._timeout_s)
        try:
            response = _send(connection, method, path, body, self._headers)
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        status, text = self._call(method, path, body)
        if status != http.client.OK:
            raise _refused(status, text)
        return json.loads(text)

    def _lost(self, error: Exception) -> InflightError:
        return InflightError(
            f"no server answers at `http://{self._url}`: {error}",
            "start one with `inflight serve`, or name another with `--url`",
        )


#: What `generate_stream` says of a response besides its outputs.
ENVELOPE = frozenset(
    {
        "id",
        "model_name",
        "model_version",
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "triton_final_response",
    }
)
#: Word lists: two rows of one open dimension, which a flat list fills.
FLAT = frozenset({"stop_words_list", "bad_words_list"})


def _path(model: str) -> str:
    return f"/v2/models/{quote(model, safe='')}"


def _leave(sock: socket.socket, stopped: threading.Event) -> None:
    stopped.set()
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    headers: Mapping[str, str],
) -> http.client.HTTPResponse:
    payload = None if body is None else json.dumps(body)
    connection.request(method, path, payload, dict(headers))
    return connection.getresponse()


def _refused(status: int, text: bytes) -> InflightError:
    try:
        answer = json.loads(text)
        said = answer["error"] if isinstance(answer, dict) else answer
        said = said.get("message", said) if isinstance(said, dict) else said
    except (ValueError, KeyError):
        said = text.decode("utf-8", "replace").strip() or "no reason given"
    return InflightError(f"the server answered {status}: {said}")


def _values(array: Array) -> list[Any]:
    """The elements in row-major order, as JSON has them."""
    if array.dtype == np.object_:
        return [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in array.flat]
    return [
        None if isinstance(item, float) and not math.isfinite(item) else item
        for item in array.ravel().tolist()
    ]


def _array(value: Any, datatype: str | None) -> Array:
    """An output of JSON; `None` is for what is not a number there."""
    values = value if isinstance(value, list) else [value]
    if datatype == "BYTES" or (datatype is None and any(isinstance(one, str) for one in values)):
        return np.array([str(one).encode() for one in values], np.object_)
    dtype = DTYPES[datatype] if datatype else None
    return np.array([math.nan if one is None else one for one in values], dtype)
