"""The open connections of one end, so that an end of the process waits for none of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress


def shut(connection: socket.socket) -> None:
    """Wakes the threads that wait for the connection."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Connections:
    """Those that are in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False

    @contextmanager
    def kept(self, connection: socket.socket) -> Iterator[None]:
        """Closes the connection in the end."""
        with closing(connection):
            with self._lock:
                self._open.add(connection)
                closed = self._closed
            if closed:
                shut(connection)
            try:
                yield
            finally:
                with self._lock:
                    self._open.discard(connection)

    def close(self) -> None:
        """Shuts those that are open, and those that come."""
        with self._lock:
            self._closed = True
            for connection in self._open:
                shut(connection)
