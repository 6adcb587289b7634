"""The arrays behind the cache's blocks. Which block belongs to whom is in `core.blocks`."""

from __future__ import annotations

import math
import mmap
import os

import numpy as np

from inflight.executors.reference.model.array_types import Float32
from inflight.executors.reference.model.config import ModelConfig


class PagedCache:
    """Keys and values by layer: ``[slots, kv_heads, head_dim]``, slot = block x tokens_per_block + offset.
    Of latent attention, values are the first numbers of the keys.

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
        value_dim: int | None = None,
    ) -> None:
        """A ``shared`` one is a file without a name, where the system has such, which others can map. Values
        are the first ``value_dim`` numbers of keys, if that is given. Errors: MemoryError."""
        self.tokens_per_block = tokens_per_block
        parts = 2 if value_dim is None else 1
        shape = (parts * num_layers, num_blocks * tokens_per_block, kv_heads, head_dim)
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
        #: What is stored: keys, then values that are not part of them.
        self.stored: list[Float32] = list(arrays)
        self.keys: list[Float32] = self.stored[:num_layers]
        self.values: list[Float32] = self.stored[num_layers:]
        if value_dim is not None:
            self.values = [keys[..., :value_dim] for keys in self.keys]

    @classmethod
    def of(
        cls, config: ModelConfig, num_blocks: int, tokens_per_block: int, *, shared: bool = False
    ) -> PagedCache:
        """For a model. Errors as the constructor's."""
        return cls(
            config.num_layers,
            num_blocks,
            tokens_per_block,
            config.num_kv_heads,
            config.head_dim,
            shared=shared,
            value_dim=None if config.latent is None else config.latent.rank,
        )

    def __del__(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copies the first ``tokens`` tokens of one block to another."""
        read = slice(source * self.tokens_per_block, source * self.tokens_per_block + tokens)
        write = slice(target * self.tokens_per_block, target * self.tokens_per_block + tokens)
        for layer in self.stored:
            layer[write] = layer[read]
