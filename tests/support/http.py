"""HTTP without a client library's opinions: raw bodies, exact bytes, server-sent events as they come."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: A hung server fails its test and not the run.
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Response:
    """Status, headers (names in lower case) and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The envelope's content; fails where the shape is not OpenAI's."""
        body = self.json()
        assert isinstance(body, dict)
        assert set(body) == {"error"}, body
        error = body["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str)
        assert error["message"]
        return dict(error)


class Stream:
    """A streamed response whose events are read one at a time; closing it leaves the rest unread."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def events(self) -> Iterator[str]:
        """The data of each event, `[DONE]` included; checks the framing of each."""
        while line := self._response.readline():
            assert line.startswith(b"data: "), line
            assert line.endswith(b"\n"), line
            assert self._response.readline() == b"\n"
            yield line[len(b"data: ") : -1].decode()

    def chunks(self) -> Iterator[dict[str, Any]]:
        """The events as JSON, to the end of the stream, which must be `[DONE]`."""
        for data in self.events():
            if data == "[DONE]":
                assert self._response.read() == b""
                return
            yield json.loads(data)
        raise AssertionError("the stream ended without [DONE]")

    def rest(self) -> bytes:
        """Everything that is still to come."""
        return self._response.read()

    def close(self) -> None:
        """Leaves, as a client does that has gone away."""
        self._response.close()
        self._connection.close()

    def reset(self) -> None:
        """Leaves without a word: the connection is reset."""
        sock = self._connection.sock
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


def _send(
    address: str, method: str, path: str, body: Any, headers: dict[str, str] | None
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    sent = {} if body is None else {"content-type": "application/json"}
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body=body, headers={**sent, **(headers or {})})
        return connection, connection.getresponse()
    except BaseException:
        # The caller never sees this connection: a socket left open fails whichever test runs next.
        connection.close()
        raise


def request(
    address: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> Response:
    """One request on a connection of its own; `body` is bytes or what JSON is made of."""
    connection, response = _send(address, method, path, body, headers)
    try:
        names = {name.lower(): value for name, value in response.getheaders()}
        return Response(response.status, names, response.read())
    finally:
        connection.close()


def post(address: str, path: str, body: Any, headers: dict[str, str] | None = None) -> Response:
    """`POST` of JSON or bytes."""
    return request(address, "POST", path, body, headers)


def get(address: str, path: str, headers: dict[str, str] | None = None) -> Response:
    """`GET`."""
    return request(address, "GET", path, None, headers)


def stream(address: str, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Stream:
    """`POST` with `stream: true`; the caller closes it."""
    return Stream(*_send(address, "POST", path, {**body, "stream": True}, headers))
