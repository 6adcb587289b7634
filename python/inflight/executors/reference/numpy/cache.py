"""The arrays behind the cache's blocks. Which block belongs to whom is in `core.blocks`."""

from __future__ import annotations

import math
import mmap
import os

import numpy as np

from inflight.executors.reference.model.array_types import Float32


class PagedCache:
    """Keys and values by layer: ``[slots, kv_heads, head_dim]``, slot = block x tokens_per_block + offset.

    ``num_blocks`` counts host blocks as well: on a CPU, they are the same memory.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        tokens_per_block: int,
        kv_heads: int,
        head_dim: int,
        *,
        shared: bool = False,
    ) -> None:
        """A ``shared`` one is a file without a name, where the system has such, which others can map. Errors:
        MemoryError."""
        self.tokens_per_block = tokens_per_block
        shape = (2 * num_layers, num_blocks * tokens_per_block, kv_heads, head_dim)
        #: Of the file.
        self.descriptor: int | None = None
        # Zeroed pages cost no memory until a block is first written.
        if shared and hasattr(os, "memfd_create"):
            try:
                self.descriptor = os.memfd_create("inflight-kv")
                os.ftruncate(self.descriptor, 4 * math.prod(shape))
                memory = mmap.mmap(self.descriptor, 0)
            except OSError as error:
                raise MemoryError(f"no file of shape {shape}") from error
            arrays = np.frombuffer(memory, dtype=np.float32).reshape(shape)
        else:
            arrays = np.zeros(shape, dtype=np.float32)
        self.keys: list[Float32] = list(arrays[:num_layers])
        self.values: list[Float32] = list(arrays[num_layers:])

    def __del__(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copies the first ``tokens`` tokens of one block to another."""
        read = slice(source * self.tokens_per_block, source * self.tokens_per_block + tokens)
        write = slice(target * self.tokens_per_block, target * self.tokens_per_block + tokens)
        for layer in (*self.keys, *self.values):
            layer[write] = layer[read]
