"""A TCP proxy that cuts each connection after a number of bytes that a seed decides.

Owns the copying and the cuts; knows nothing of what is copied. A cut closes or resets both sides at once.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, cast

#: No cut in this direction.
NEVER = 1 << 62
RESET = struct.pack("ii", 1, 0)


class _Side(asyncio.Protocol):
    """What comes from one side, to the other."""

    def __init__(self, proxy: CuttingProxy, limit: int, resets: bool) -> None:
        self._proxy = proxy
        self._left = limit
        self._resets = resets
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._proxy.note(self)
        if self.other is not None and self.other.transport is None:
            # Until the server is connected.
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        target = self.other.transport
        if target is None or target.is_closing():
            return
        if self._proxy.is_cutting and len(data) > self._left:
            target.write(data[: self._left])
            self._proxy.done += 1
            for side in (self, self.other):
                side.end(self._resets)
            return
        self._left -= len(data)
        target.write(data)

    def eof_received(self) -> bool:
        if self.other is not None and self.other.transport is not None:
            with suppress(OSError):
                self.other.transport.write_eof()
        # The other direction goes on.
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio's
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def end(self, resets: bool) -> None:
        """Closes this side now, or resets it."""
        if self.transport is None:
            return
        if resets:
            one = self.transport.get_extra_info("socket")
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()


class CuttingProxy:
    """Connects every client to `server`; enter it to run, leave it to end."""

    def __init__(self, server: str, seed: int, most_sent: int, most_received: int) -> None:
        """Each connection is cut once, with even chances after up to `most_sent` bytes to the server or after
        up to `most_received` bytes from it."""
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._random = random.Random(seed)
        self._most = (most_sent, most_received)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._listener: asyncio.Server | None = None
        self._sides: list[_Side] = []
        self._tasks: set[asyncio.Task[None]] = set()
        #: Whether connections are cut; without, all passes.
        self.is_cutting = True
        #: Connections that were cut.
        self.done = 0
        self.address = ""

    def __enter__(self) -> CuttingProxy:
        self._thread.start()
        self.address = self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def note(self, side: _Side) -> None:
        """A connection that the end of the proxy closes."""
        self._sides = [side for side in self._sides if side.transport and not side.transport.is_closing()]
        self._sides.append(side)

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> str:
        self._listener = await self._loop.create_server(self._side_of_client, "127.0.0.1", 0, backlog=512)
        host, port = self._listener.sockets[0].getsockname()
        return f"{host}:{port}"

    def _side_of_client(self) -> _Side:
        to_server, from_server = NEVER, NEVER
        if self._random.random() < 0.5:
            to_server = self._random.randint(0, self._most[0])
        else:
            from_server = self._random.randint(0, self._most[1])
        resets = self._random.random() < 0.5
        client, server = _Side(self, to_server, resets), _Side(self, from_server, resets)
        client.other, server.other = server, client
        self._tasks.add(task := self._loop.create_task(self._connect(client, server)))
        task.add_done_callback(self._tasks.discard)
        return client

    async def _connect(self, client: _Side, server: _Side) -> None:
        try:
            await self._loop.create_connection(lambda: server, *self._server)
        except OSError:
            client.end(resets=True)
            return
        if client.transport is not None and not client.transport.is_closing():
            client.transport.resume_reading()

    async def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for side in self._sides:
            side.end(resets=False)
        await asyncio.sleep(0)
