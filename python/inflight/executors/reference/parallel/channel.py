"""Rank 0's connections to the other ranks: sends what to compute, and notices at once if a rank ends.

Owns the sockets, who may join, and the threads that watch for a closed connection. Between iterations the
ranks wait in a read, which costs no processor time, as a wait in MPI or NCCL would. What the messages mean
is `team`'s. Messages are pickled: who joins must know the secret that the launcher's own channel carried.
"""

from __future__ import annotations

import contextlib
import hmac
import pickle
import secrets
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: How long rank 0 waits for the others, which load at the same time, to join.
JOIN_TIMEOUT_S = 60.0
_SECRET_BYTES = 32
_RANK_BYTES = 4


@dataclass(frozen=True, slots=True)
class Address:
    """The port where rank 0 listens while the others join, and what they must say."""

    port: int
    secret: bytes

    def to_json(self) -> list[Any]:
        """As ranks exchange it."""
        return [self.port, self.secret.hex()]

    @classmethod
    def from_json(cls, values: Any) -> Address:
        """Errors: ValueError, TypeError for what `to_json` did not write."""
        port, secret = values
        return cls(int(port), bytes.fromhex(secret))


class Door:
    """Where the other ranks join rank 0; open only until all have."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0))
        self.address = Address(self._listener.getsockname()[1], secrets.token_bytes(_SECRET_BYTES))

    def admit(self, size: int, timeout_s: float = JOIN_TIMEOUT_S) -> LeaderChannel:
        """Waits until the ranks 1 up to ``size`` have joined. Errors: TimeoutError."""
        joined: dict[int, socket.socket] = {}
        with self._listener:
            self._listener.settimeout(timeout_s)
            while len(joined) < size - 1:
                connection, _ = self._listener.accept()
                connection.settimeout(timeout_s)
                with contextlib.suppress(OSError):
                    said = _read_exactly(connection, _SECRET_BYTES + _RANK_BYTES)
                    if hmac.compare_digest(said[:_SECRET_BYTES], self.address.secret):
                        connection.settimeout(None)
                        _send_at_once(connection)
                        joined[int.from_bytes(said[_SECRET_BYTES:], "little")] = connection
                        continue
                connection.close()
        return LeaderChannel(joined)


class LeaderChannel:
    """Rank 0's end."""

    def __init__(self, connections: dict[int, socket.socket]) -> None:
        self._connections = connections
        self._files = {rank: one.makefile("rb") for rank, one in connections.items()}
        self._closing = threading.Event()

    def send(self, message: Any) -> None:
        """To all ranks, in order. Errors: OSError where one is gone."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for connection in self._connections.values():
            connection.sendall(data)

    def watch(self, on_gone: Callable[[int, str | None], None]) -> None:
        """Calls ``on_gone``, once and from a thread, with a rank that ended and its last words, if any."""
        threading.Thread(target=self._watch, args=(on_gone,), name="rank-watch", daemon=True).start()

    def close(self, last: Any, timeout_s: float) -> bool:
        """Sends a ``last`` message and waits until the others have closed; False: some have not."""
        self._closing.set()
        in_time = True
        with contextlib.suppress(OSError):
            self.send(last)
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.settimeout(timeout_s)
                try:
                    while connection.recv(4096):
                        pass
                except TimeoutError:
                    in_time = False
        for rank, connection in self._connections.items():
            self._files[rank].close()
            connection.close()
        return in_time

    def drop(self) -> None:
        """Closes all connections, which ends the other ranks."""
        self._closing.set()
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _watch(self, on_gone: Callable[[int, str | None], None]) -> None:
        poll = select.poll()
        ranks = {one.fileno(): rank for rank, one in self._connections.items()}
        for number in ranks:
            poll.register(number, select.POLLIN | select.POLLRDHUP)
        ready = poll.poll()
        if self._closing.is_set():
            return
        rank = ranks[ready[0][0]]
        words = None
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
            words = str(pickle.load(self._files[rank]))
        on_gone(rank, words)


class FollowerChannel:
    """The end of a rank above 0."""

    def __init__(self, host: str, address: Address, rank: int) -> None:
        self._socket = socket.create_connection((host, address.port), JOIN_TIMEOUT_S)
        self._socket.settimeout(None)
        _send_at_once(self._socket)
        self._socket.sendall(address.secret + rank.to_bytes(_RANK_BYTES, "little"))
        self._file = self._socket.makefile("rb")
        self._closing = threading.Event()

    def receive(self) -> Any:
        """The next message. Errors: EOFError, ConnectionError once rank 0 is gone."""
        return pickle.load(self._file)

    def watch(self, on_gone: Callable[[], None]) -> None:
        """Calls ``on_gone``, once and from a thread, when rank 0 is gone, whatever this rank is doing."""
        threading.Thread(target=self._watch, args=(on_gone,), name="rank-watch", daemon=True).start()

    def fail(self, words: str) -> None:
        """Reports to rank 0 why this rank ends."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.sendall(pickle.dumps(words))

    def close(self) -> None:
        """Ends the watch and the connection."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._socket.close()

    def _watch(self, on_gone: Callable[[], None]) -> None:
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLRDHUP)
        poll.poll()
        if not self._closing.is_set():
            on_gone()


def _send_at_once(connection: socket.socket) -> None:
    """Several small messages an iteration must not wait for each other's acknowledgement."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("closed while joining")
        data += part
    return data
