"""The sockets by which two workers of one host find each other, and what is said there before and after
blocks are copied in place.

    both:   that the other process runs as the same user, which is what memory is shared with
    server, client: as in `wire`; a request for no blocks asks for the cache itself

    a cache     server: its instance, bytes of the export, a descriptor; the export. Open as long as it lives
    blocks      server: its instance, their numbers
                client: HELD after each copy, or DONE after the last
                server: HELD, or GONE where what was copied last may be another prompt's

Owns the names, the layout and the bounds. A name ends with the port's address: where that one can be reached
and the name is known, both are in one network namespace. Files are not used, so that none is left behind.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence

from inflight.executors.reference.core.block_store import Export
from inflight.executors.reference.core.context_phase import ID_BYTES

from . import wire

HELD, DONE, GONE = b"h", b"d", b"g"

#: What asks for the cache itself.
WHOLE_CACHE = wire.Asked(bytes(ID_BYTES), 0, 0, 0, 0)

#: What is new with each process: a cache that was opened before belongs to no later one at its address.
INSTANCE_BYTES = 16

_HEAD = struct.Struct(f"<{INSTANCE_BYTES}sI")
_MOST_EXPORT_BYTES = 1024
#: `struct ucred`: process, user, group.
_CREDENTIALS = struct.Struct("3i")


def is_supported() -> bool:
    """Whether this system has such sockets, and says who is at their other end."""
    return hasattr(socket, "SO_PEERCRED")


def listen(address: tuple[str, int]) -> socket.socket:
    """Where workers of this host find the one at an address. Errors: OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_name(address))
    except BaseException:
        listener.close()
        raise
    return listener


def connect(address: tuple[str, int], wait_s: float) -> socket.socket | None:
    """A connection to the worker at an address; None where it is not one of this host and of this user."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(wait_s)
        connection.connect(_name(address))
        if is_own(connection):
            return connection
    except OSError:
        pass
    connection.close()
    return None


def is_own(connection: socket.socket) -> bool:
    """Whether the other end is a process of this process's user."""
    given = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(given)
    return bool(user == os.geteuid())


def wait_for_end(connection: socket.socket) -> None:
    """Until the other end has gone, however long that is. Errors: OSError."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(struct.calcsize("ll")))
    while connection.recv(1):
        pass


def send_export(connection: socket.socket, instance: bytes, export: Export) -> None:
    """Errors: `wire.Failed`."""
    descriptors = [] if export.descriptor is None else [export.descriptor]
    try:
        socket.send_fds(connection, [_HEAD.pack(instance, len(export.data))], descriptors)
        connection.sendall(export.data)
    except OSError as error:
        raise wire.Failed("cut") from error


def receive_export(connection: socket.socket, line: wire.Line) -> tuple[bytes, Export]:
    """The instance and its export, whose descriptor is the caller's to close. Errors: `wire.Failed`."""
    try:
        data, descriptors, *_ = socket.recv_fds(connection, _HEAD.size, 1)
    except OSError as error:
        raise wire.Failed("cut") from error
    descriptor = descriptors[0] if descriptors else None
    try:
        if len(data) != _HEAD.size:
            raise wire.Failed("cut")
        instance, length = _HEAD.unpack(data)
        if length > _MOST_EXPORT_BYTES:
            raise wire.Failed("protocol")
        return instance, Export(line.receive(length), descriptor)
    except BaseException:
        if descriptor is not None:
            os.close(descriptor)
        raise


def numbers(instance: bytes, blocks: Sequence[int]) -> bytes:
    """Of the blocks that a client asked for."""
    return instance + struct.pack(f"<{len(blocks)}I", *blocks)


def receive_numbers(line: wire.Line, instance: bytes, count: int) -> Sequence[int]:
    """Errors: `wire.Failed`, also where another instance answers."""
    if line.receive(INSTANCE_BYTES) != instance:
        raise wire.Failed("gone")
    return struct.unpack(f"<{count}I", line.receive(4 * count))


def _name(address: tuple[str, int]) -> str:
    host, port = address
    return f"\0inflight-kv {host} {port}"
