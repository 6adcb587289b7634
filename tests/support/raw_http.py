"""HTTP/1.1 as bytes: requests that no library would write, and responses read strictly.

`http.client` takes the end of a connection for the end of a head or a body. Here it is `Incomplete`.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from support.http import TIMEOUT_S, Response


class Incomplete(Exception):
    """The bytes end before a response does."""


def endpoint(address: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def post_bytes(path: str, body: Any, *headers: str) -> bytes:
    """A whole POST of JSON, after which the server closes the connection."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
    lines += [f"content-length: {len(content)}", "connection: close"]
    return "\r\n".join([*lines, "", ""]).encode() + content


def exchange(address: str, sent: bytes, timeout_s: float = TIMEOUT_S) -> bytes:
    """Sends bytes on a new connection and reads until the server closes it."""
    with socket.create_connection(endpoint(address), timeout_s) as connection:
        connection.sendall(sent)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    """Everything up to the other side's close."""
    received = bytearray()
    while data := connection.recv(65536):
        received += data
    return bytes(received)


def split_response(received: bytes) -> tuple[Response, bytes]:
    """The first response and what follows it; a body without length goes on to the end."""
    head, found, rest = received.partition(b"\r\n\r\n")
    if not found:
        raise Incomplete(received[-80:])
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    status = int(first.split()[1])
    if status < 200 or status in (204, 304):
        return Response(status, headers, b""), rest
    if headers.get("transfer-encoding") == "chunked":
        body, rest = _chunks(rest)
        return Response(status, headers, body), rest
    if "content-length" in headers:
        length = int(headers["content-length"])
        if len(rest) < length:
            raise Incomplete(f"{len(rest)} of {length} bytes")
        return Response(status, headers, rest[:length]), rest[length:]
    return Response(status, headers, rest), b""


def split_responses(received: bytes) -> list[Response]:
    """All responses of a connection."""
    found = []
    while received:
        response, received = split_response(received)
        found.append(response)
    return found


def _chunks(data: bytes) -> tuple[bytes, bytes]:
    body = bytearray()
    while True:
        size, found, rest = data.partition(b"\r\n")
        if not found:
            raise Incomplete("no size of a chunk")
        length = int(size, 16)
        if len(rest) < length + 2:
            raise Incomplete(f"{len(rest)} of a chunk of {length} bytes")
        end = rest[length : length + 2]
        assert end == b"\r\n", end
        body += rest[:length]
        data = rest[length + 2 :]
        if length == 0:
            return bytes(body), data
