"""The arrays behind the cache's blocks. Which block belongs to whom is in `core.blocks`."""

from __future__ import annotations

import numpy as np

from inflight.executors.reference.model.array_types import Float32


class PagedCache:
    """Keys and values by layer: ``[slots, kv_heads, head_dim]``, slot = block x tokens_per_block + offset.

    ``num_blocks`` counts host blocks as well: on a CPU, they are the same memory.
    """

    def __init__(
        self, num_layers: int, num_blocks: int, tokens_per_block: int, kv_heads: int, head_dim: int
    ) -> None:
        self.tokens_per_block = tokens_per_block
        shape = (num_blocks * tokens_per_block, kv_heads, head_dim)
        # Zeroed pages cost no memory until a block is first written.
        self.keys: list[Float32] = [np.zeros(shape, dtype=np.float32) for _ in range(num_layers)]
        self.values: list[Float32] = [np.zeros(shape, dtype=np.float32) for _ in range(num_layers)]

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copies the first ``tokens`` tokens of one block to another."""
        read = slice(source * self.tokens_per_block, source * self.tokens_per_block + tokens)
        write = slice(target * self.tokens_per_block, target * self.tokens_per_block + tokens)
        for layer in (*self.keys, *self.values):
            layer[write] = layer[read]
