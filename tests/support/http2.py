"""HTTP/2 as frames: what a hostile client writes, and as much reading as telling how it was received.

Owns the frame's head and header blocks of literals; keeps no state of streams or windows, so that a test may
write frames in any order.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from support.raw_http import endpoint

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, END_HEADERS = 0x1, 0x4
ACK = 0x1
#: SETTINGS_INITIAL_WINDOW_SIZE.
INITIAL_WINDOW_SIZE = 4


@dataclass(frozen=True)
class Frame:
    """One frame as it was read."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame as it is written; the payload's length is the frame's."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(**values: int) -> bytes:
    """A SETTINGS frame; `window` is the initial window of the streams."""
    payload = b"".join(struct.pack(">HI", INITIAL_WINDOW_SIZE, value) for value in values.values())
    return frame(SETTINGS, 0, 0, payload)


def _integer(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    found = [most]
    value -= most
    while value >= 128:
        found.append(value % 128 | 128)
        value //= 128
    return bytes([*found, value])


def block(*fields: tuple[str, str]) -> bytes:
    """A header block: literals without indexing, so that it needs no state."""
    found = bytearray()
    for pair in fields:
        found += b"\0"
        for text in pair:
            encoded = text.encode("latin-1")
            found += _integer(len(encoded), 7) + encoded
    return bytes(found)


def get_fields(path: str) -> list[tuple[str, str]]:
    """The pseudo-headers of a GET."""
    return [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", path)]


def post_fields(path: str, content_type: str = "application/json") -> list[tuple[str, str]]:
    """The headers of a POST."""
    return [(":method", "POST"), *get_fields(path)[1:], ("content-type", content_type)]


def request(stream: int, fields: list[tuple[str, str]], body: bytes | None = None) -> bytes:
    """A whole request; bodies of up to 16 KiB."""
    if body is None:
        return frame(HEADERS, END_HEADERS | END_STREAM, stream, block(*fields))
    return frame(HEADERS, END_HEADERS, stream, block(*fields)) + frame(DATA, END_STREAM, stream, body)


class Connection:
    """A connection that has greeted the server and reads when it is told to."""

    def __init__(self, address: str, window: int | None = None, timeout_s: float = 10.0) -> None:
        self.socket = socket.create_connection(endpoint(address), timeout_s)
        self.is_closed = False
        self._unread = bytearray()
        self._head = b""
        #: Bytes that `send_within_windows` has sent.
        self.sent = 0
        self.send(PREFACE + (settings() if window is None else settings(window=window)))

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Whether the other side still took it."""
        try:
            self.socket.sendall(data)
        except OSError:
            self.is_closed = True
        return not self.is_closed

    def frames(self, for_s: float) -> Iterator[Frame]:
        """Frames as they come; ends when none has come for `for_s`, or with the connection."""
        self.socket.settimeout(for_s)
        with suppress(TimeoutError):
            while True:
                if not self._head and not (head := self._read(9)):
                    return
                self._head = self._head or head
                payload = self._read(int.from_bytes(self._head[:3], "big"))
                kind, flags, stream = struct.unpack(">BBI", self._head[3:])
                self._head = b""
                yield Frame(kind, flags, stream & 0x7FFFFFFF, payload)

    def _read(self, count: int) -> bytes:
        """Exactly so many bytes, or none at the end; what a timeout interrupts is read the next time."""
        while len(self._unread) < count:
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                raise
            except OSError:
                data = b""
            if not data:
                self.is_closed = True
                return b""
            self._unread += data
        found = bytes(self._unread[:count])
        del self._unread[:count]
        return found

    def send_within_windows(
        self, stream: int, count: int, is_over: Callable[[], bool], before: int = 0
    ) -> None:
        """Sends up to `count` zero bytes of a body as the server's windows allow, until it is over.

        `sent` counts them. `before` bytes of the body have been sent already: they took of the windows, and a
        server resets streams that exceed theirs.
        """
        connection = of_stream = 65_535 - before
        initial = 65_535
        while self.sent < count and not is_over() and not self.is_closed:
            part = min(connection, of_stream, count - self.sent, 16_384)
            if part > 0:
                self.send(frame(DATA, 0, stream, bytes(part)))
                self.sent, connection, of_stream = self.sent + part, connection - part, of_stream - part
            for found in self.frames(0.0001 if part > 0 else 0.2):
                if found.kind == WINDOW_UPDATE and found.stream == 0:
                    connection += int.from_bytes(found.payload, "big")
                elif found.kind == WINDOW_UPDATE:
                    of_stream += int.from_bytes(found.payload, "big")
                elif found.kind == SETTINGS and not found.flags & ACK:
                    for place in range(0, len(found.payload), 6):
                        name, value = struct.unpack_from(">HI", found.payload, place)
                        if name == INITIAL_WINDOW_SIZE:
                            of_stream, initial = of_stream + value - initial, value
                    self.send(frame(SETTINGS, ACK, 0))
                elif found.kind in (RST_STREAM, GOAWAY):
                    return

    def until(self, kind: int, stream: int, for_s: float = 10.0) -> Frame | None:
        """The next frame of this kind on this stream, if it comes; answers SETTINGS and PING meanwhile."""
        for found in self.frames(for_s):
            if found.kind in (SETTINGS, PING) and not found.flags & ACK:
                payload = found.payload if found.kind == PING else b""
                self.send(frame(found.kind, ACK, 0, payload))
            if (found.kind, found.stream) == (kind, stream):
                return found
        return None
