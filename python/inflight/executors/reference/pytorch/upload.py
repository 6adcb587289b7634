"""Bytes of files on a GPU: read by several threads into pinned memory, and copied while others read.

Owns threads, buffers and streams. Knows nothing of tensors' meaning.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import torch

from inflight.executors.reference.errors import CheckpointError
from inflight.model.files import open_regular
from inflight.model.shards import FETCH_AGAIN

Tensor = Any  # torch.Tensor; torch is not there where types are checked

#: Bytes that one thread reads at once, and threads at most: a copy to the GPU is faster than what one reads.
_PIECE = 8 << 20
_MOST_THREADS = 16


class Uploads:
    """Copies parts of files to one GPU. Its threads and buffers are given back by `close`."""

    def __init__(self, device: Any) -> None:
        self._device = device
        count = min(_MOST_THREADS, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="weights")
        self._free: SimpleQueue[tuple[Tensor, Any]] = SimpleQueue()
        for _ in range(count):
            buffer = torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True)
            self._free.put((buffer, torch.cuda.Stream(device)))
        self._files: dict[Path, BinaryIO] = {}

    def read(self, path: Path, begin: int, count: int) -> Tensor:
        """The bytes as a ``uint8 [count]`` on the device. Raises `CheckpointError` if they cannot be read."""
        try:
            if path not in self._files:
                self._files[path] = open_regular(path)
            descriptor = self._files[path].fileno()
            target = torch.empty(count, dtype=torch.uint8, device=self._device)
            # The memory may be what an operation that is queued still reads.
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(self._device))
            pieces = [
                self._threads.submit(
                    self._copy, descriptor, begin + start, target[start : start + _PIECE], ready
                )
                for start in range(0, count, _PIECE)
            ]
            for piece in pieces:
                piece.result()
        except EOFError as error:
            raise CheckpointError(f"`{path}` ends early", FETCH_AGAIN) from error
        except OSError as error:
            raise CheckpointError(
                f"`{path}` cannot be read: {error.strerror}", "check its permissions"
            ) from error
        return target

    def _copy(self, descriptor: int, begin: int, target: Tensor, ready: Any) -> None:
        buffer, stream = self._free.get()
        try:
            count = len(target)
            view = memoryview(buffer.numpy())[:count]
            done = 0
            while done < count:
                read = os.preadv(descriptor, [view[done:]], begin + done)
                if not read:
                    raise EOFError
                done += read
            with torch.inference_mode(), torch.cuda.stream(stream):
                stream.wait_event(ready)
                target.copy_(buffer[:count], non_blocking=True)
            stream.synchronize()
        finally:
            self._free.put((buffer, stream))

    def close(self) -> None:
        """Ends the threads and closes the files."""
        self._threads.shutdown()
        for file in self._files.values():
            file.close()
        self._files.clear()
