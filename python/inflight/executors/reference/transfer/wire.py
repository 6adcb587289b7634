"""The messages between two workers: fixed sizes, little-endian, and blocks in pieces.

    server: greeting                  magic, version, nonce
    client: request                   magic, id, nonce, first block, blocks, of a piece, of all, MAC
    server: answer                    status, bytes of a block, MAC
    server: pieces                    blocks, bytes; the blocks. No blocks: the others are lost

Owns the layout, the MACs (each side proves that it has the key, with the other's nonce) and reading from a
socket within bounds. A peer's numbers are compared with what was expected before anything is read.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from inflight.executors.reference.core.context_phase import ID_BYTES, MAC_BYTES

NONCE_BYTES = 16

_MAGIC, _VERSION = b"IFKV", 1
_GREETING = struct.Struct(f"<4sI{NONCE_BYTES}s")
_REQUEST = struct.Struct(f"<4s{ID_BYTES}s{NONCE_BYTES}sIIII")
_ANSWER = struct.Struct("<IQ")
_PIECE = struct.Struct("<IQ")

GREETING_BYTES = _GREETING.size
REQUEST_BYTES = _REQUEST.size + MAC_BYTES
ANSWER_BYTES = _ANSWER.size + MAC_BYTES
PIECE_BYTES = _PIECE.size

_NO_MAC = bytes(MAC_BYTES)


class Status(IntEnum):
    """How a server answers."""

    FOUND = 0
    #: The id is unknown: never held, fetched already, or held long enough.
    GONE = 1
    UNAUTHENTICATED = 2


class Failed(Exception):
    """A transfer ends here; ``reason`` is one word for a counter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Asked:
    """Which blocks of a held prompt a client asks for."""

    id: bytes
    first: int
    blocks: int
    #: Of a piece, at most.
    piece: int
    #: Of all connections that this prompt is fetched by.
    whole: int


def greeting() -> tuple[bytes, bytes]:
    """A server's first message, and the nonce in it."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return _GREETING.pack(_MAGIC, _VERSION, nonce), nonce


def read_greeting(data: bytes) -> bytes:
    """The nonce. Errors: `Failed`."""
    magic, version, nonce = _GREETING.unpack(data)
    if (magic, version) != (_MAGIC, _VERSION):
        raise Failed("protocol")
    return bytes(nonce)


def request(asked: Asked, key: bytes, server_nonce: bytes) -> tuple[bytes, bytes]:
    """A client's message, and the nonce in it."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    fields = _REQUEST.pack(_MAGIC, asked.id, nonce, asked.first, asked.blocks, asked.piece, asked.whole)
    return fields + _mac(key, b"fetch", server_nonce, fields), nonce


def read_request(data: bytes, key: bytes, server_nonce: bytes) -> tuple[Asked, bytes, bool]:
    """What a client asks, its nonce, and whether it has the key. Errors: `Failed`."""
    fields, mac = data[: _REQUEST.size], data[_REQUEST.size :]
    magic, id, nonce, first, blocks, piece, whole = _REQUEST.unpack(fields)
    if magic != _MAGIC:
        raise Failed("protocol")
    is_known = hmac.compare_digest(mac, _mac(key, b"fetch", server_nonce, fields))
    return Asked(bytes(id), first, blocks, piece, whole), bytes(nonce), is_known


def answer(status: Status, block_bytes: int, key: bytes, client_nonce: bytes) -> bytes:
    """A server's second message."""
    fields = _ANSWER.pack(status, block_bytes)
    return fields + _mac(key, b"serve", client_nonce, fields)


def read_answer(data: bytes, block_bytes: int, key: bytes, client_nonce: bytes) -> None:
    """Errors: `Failed` unless blocks of this size follow, of a server that has the key."""
    fields, mac = data[: _ANSWER.size], data[_ANSWER.size :]
    status, size = _ANSWER.unpack(fields)
    if not hmac.compare_digest(mac, _mac(key, b"serve", client_nonce, fields)):
        raise Failed("unauthenticated")
    if status == Status.UNAUTHENTICATED:
        raise Failed("unauthenticated")
    if status == Status.GONE:
        raise Failed("gone")
    if status != Status.FOUND or size != block_bytes:
        raise Failed("protocol")


def asked(line: Line, key: bytes, block_bytes: int) -> tuple[Asked, Callable[[Status], None]]:
    """A server's half until it answers: greets and reads the request; returns it and what sends the answer.
    Errors: `Failed`, after the answer that the client does not have the key."""
    message, nonce = greeting()
    line.send(message)
    request, client_nonce, is_known = read_request(line.receive(REQUEST_BYTES), key, nonce)

    def tell(status: Status) -> None:
        line.send(answer(status, block_bytes, key, client_nonce))

    if not is_known:
        tell(Status.UNAUTHENTICATED)
        raise Failed("unauthenticated")
    return request, tell


def ask(line: Line, asked: Asked, key: bytes, block_bytes: int) -> None:
    """A client's half until the answer. Errors: `Failed` unless the blocks that are asked for follow."""
    nonce = read_greeting(line.receive(GREETING_BYTES))
    message, own_nonce = request(asked, key, nonce)
    line.send(message)
    read_answer(line.receive(ANSWER_BYTES), block_bytes, key, own_nonce)


def piece(blocks: int, size: int) -> bytes:
    """What comes before the bytes of some blocks."""
    return _PIECE.pack(blocks, size)


def read_piece(data: bytes, most: int, block_bytes: int) -> int:
    """How many blocks follow, of at most ``most``. Errors: `Failed`."""
    blocks, size = _PIECE.unpack(data)
    if blocks == 0:
        raise Failed("gone")
    if blocks > most or size != blocks * block_bytes:
        raise Failed("protocol")
    return int(blocks)


def _mac(key: bytes, purpose: bytes, nonce: bytes, fields: bytes) -> bytes:
    if not key:
        return _NO_MAC
    return hmac.new(key, b"inflight kv " + purpose + b"\0" + nonce + fields, hashlib.sha256).digest()


class Line:
    """A connection whose every wait is bounded, and all of them together.

    Waiting is the kernel's, one call for a whole piece: each call of Python's takes the interpreter's lock,
    which the engine's thread needs.
    """

    def __init__(
        self,
        connection: socket.socket,
        wait_s: float,
        whole_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection, self._clock = connection, clock
        self._deadline_s = clock() + whole_s
        connection.setblocking(True)
        waits = struct.pack("ll", int(wait_s), max(1, int(wait_s % 1 * 1e6)))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, waits)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive(self, size: int) -> bytes:
        """So many bytes. Errors: `Failed`."""
        data = bytearray(size)
        self.receive_into(memoryview(data))
        return bytes(data)

    def receive_into(self, memory: memoryview) -> None:
        """Fills the memory. Errors: `Failed`."""
        done = 0
        while done < len(memory):
            self._be_patient()
            try:
                count = self._connection.recv_into(memory[done:], 0, socket.MSG_WAITALL)
            except OSError as error:
                raise _failed(error) from error
            if not count:
                raise Failed("cut")
            done += count

    def send(self, data: bytes | memoryview) -> None:
        """All of it. Errors: `Failed`."""
        left = memoryview(data)
        while left:
            self._be_patient()
            try:
                left = left[self._connection.send(left) :]
            except OSError as error:
                raise _failed(error) from error

    def _be_patient(self) -> None:
        if self._clock() >= self._deadline_s:
            raise Failed("timeout")


def _failed(error: OSError) -> Failed:
    return Failed("timeout" if isinstance(error, (TimeoutError, BlockingIOError)) else "cut")
