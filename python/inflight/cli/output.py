"""Lines to standard output and error by a thread, so that who says something never waits for a reader.

Owns how many lines may wait and what becomes of the rest. Writes to the descriptors themselves: Python's own
streams hold a lock while a write waits, and an interpreter that ends would wait for it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading

import click

#: Some seconds of a busy log.
MOST_WAITING = 10_000
#: What the last lines get to be written.
LAST_LINES_S = 0.5


class Output:
    """Both streams of this process."""

    def __init__(self) -> None:
        # An event is set once everything before it is written.
        self._waiting: queue.Queue[tuple[int, bytes] | threading.Event] = queue.Queue(MOST_WAITING)
        self._dropped = 0
        self._streams = {False: _Stream(sys.stdout, 1), True: _Stream(sys.stderr, 2)}
        threading.Thread(target=self._write, name="output", daemon=True).start()

    def put(self, text: str, *, err: bool = False) -> None:
        """Writes a line soon. Never waits: beyond `MOST_WAITING` lines it is dropped and counted."""
        stream = self._streams[err]
        if self._dropped:
            text = f"({self._dropped} lines dropped: nobody read them)\n{text}"
        try:
            self._waiting.put_nowait((stream.descriptor, stream.encode(text)))
            self._dropped = 0
        except queue.Full:
            self._dropped += 1

    def flush(self, limit_s: float = LAST_LINES_S) -> None:
        """Waits until what was put is written, at most that long."""
        written = threading.Event()
        with contextlib.suppress(queue.Full):
            self._waiting.put(written, timeout=limit_s)
            written.wait(limit_s)

    def _write(self) -> None:
        while True:
            item = self._waiting.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            descriptor, line = item
            # Neither a full disk nor a closed terminal is a reason to stop.
            with contextlib.suppress(OSError):
                while line:
                    line = line[os.write(descriptor, line) :]


class _Stream:
    """How a stream shows text."""

    def __init__(self, stream: object, descriptor: int) -> None:
        self.descriptor = descriptor
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._is_terminal = os.isatty(descriptor)

    def encode(self, text: str) -> bytes:
        """A line as bytes: letters that the stream lacks are escaped, colors are for terminals."""
        shown = text if self._is_terminal else click.unstyle(text)
        return f"{shown}\n".encode(self._encoding, "backslashreplace")
