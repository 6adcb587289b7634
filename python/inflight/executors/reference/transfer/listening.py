"""A port whose connections are answered each in a separate thread, so many at once.

Owns accepting and ending. Knows nothing of what is said.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from . import wire
from .connections import Connections

_LOG = logging.getLogger("inflight.reference")

#: Connections that wait to be accepted.
_BACKLOG = 64


class Port:
    """One listening socket."""

    def __init__(
        self, listener: socket.socket, answer: Callable[[socket.socket], None], *, connections: int
    ) -> None:
        """``answer`` may raise `wire.Failed`; more than so many ``connections`` at once are closed."""
        self._listener, self._answer = listener, answer
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="kv-send")
        self._places = threading.BoundedSemaphore(connections)
        self._connections = Connections()
        self._closing = False
        listener.listen(_BACKLOG)
        self._accepting = threading.Thread(target=self._accept, name="kv-accept", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Accepts no connection any more, and ends those that are open."""
        self._closing = True
        # A thread that accepts is not woken by closing alone.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._connections.close()
        self._threads.shutdown(wait=False)

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closing:
                    return
                # Out of descriptors, or a peer that left at once.
                threading.Event().wait(0.05)
                continue
            if not self._places.acquire(blocking=False):
                # Others are served: this one computes for itself.
                connection.close()
                continue
            try:
                self._threads.submit(self._serve, connection)
            except RuntimeError:
                self._places.release()
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with self._connections.kept(connection):
                self._answer(connection)
        except wire.Failed as failed:
            _LOG.warning("kv blocks not sent reason=%s", failed.reason)
        except Exception:
            _LOG.exception("kv blocks not sent")
        finally:
            self._places.release()
