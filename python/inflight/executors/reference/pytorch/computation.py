"""What an iteration computes on the device: from its inputs to logits and the best tokens.

Owns what lives on the device between iterations: the cache, block tables, the latest tokens. Knows nothing of
who launches it, by hand or from a CUDA graph (`steps` and `graphs`), of sequences or of sampling.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from inflight.executors.reference.core.scheduler import Limits

from .adapters import Adapted
from .encoder import slots_of_rows
from .model import Rows, TorchModel
from .operations import Context, Tensor
from .packing import PackedShape, Spare


class Computation:
    """Of one rank's part of a model, whose cache has one block more than is counted.

    All runs on `stream`, in PyTorch's inference mode.
    """

    def __init__(self, model: TorchModel, num_blocks: int, limits: Limits, num_host_blocks: int = 0) -> None:
        self.model = model
        self.device = model.device
        self.cuda = self.device.type == "cuda"
        self._operations = model.operations
        self._size = model.shape.tokens_per_block
        self.spare = Spare(limits.max_batch_size, num_blocks, self._size)
        model.allocate_cache(num_blocks + 1, num_host_blocks)
        width = -(-model.shape.max_seq_len // self._size)
        self.block_tables = self.zeros(limits.max_batch_size + 1, width)
        #: Of a model that sees, what is added to the position of each slot's generation rows.
        self.offsets: Tensor = None if model.tower is None else self.zeros(limits.max_batch_size + 1)
        #: The tokens of the latest choosing rows, where the next iteration finds them.
        self.chosen = self.zeros(limits.rows)
        #: Generation rows as `operations.prepare` takes them, flat.
        self.inputs = self.zeros(5 * limits.rows)
        # One for all graphs: an iteration's logits are read before the next one's are written.
        self.logits = torch.empty(
            (limits.rows, model.config.vocab_size), dtype=model.dtype, device=self.device
        )
        # Before all else that runs on the device, such as copies of blocks from another worker.
        self.stream = torch.cuda.Stream(self.device, priority=-1) if self.cuda else None

    def zeros(self, *shape: int) -> Tensor:
        """Of int32, on the device."""
        return torch.zeros(shape, dtype=torch.int32, device=self.device)

    def upload(self, array: Any) -> Tensor:
        """An array on the device; the copy waits for nothing and nothing waits for it."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.cuda else tensor

    def wait_for_memory(self) -> None:
        """Waits until what was made on PyTorch's stream is filled: `stream` would not wait for it."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def generation(self, count: int, adapted: Adapted | None = None, *, begin_alike: bool = False) -> Tensor:
        """Logits of ``count`` generation rows, from ``inputs``; their best tokens to ``chosen``. Where many
        ``begin_alike``, what they have in common is looked for."""
        inputs = self.inputs[: 5 * count].view(5, count)
        token_ids, cache_slots = self._operations.prepare(inputs, self.chosen, self.block_tables, self._size)
        turned = self._turned(inputs)
        encoder = self.model.encoder
        rows = Rows(
            token_ids,
            inputs[2],
            cache_slots,
            inputs[3],
            self.block_tables,
            adapted=adapted,
            turned=turned,
            listening=None if encoder is None else encoder.listening(inputs[3]),
            begin_alike=begin_alike,
        )
        return self._choose(self.model.forward(rows))

    def prompts(
        self,
        buffer: Tensor,
        shape: PackedShape,
        chunks: tuple[tuple[int, ...], ...] = (),
        probe_tables: Tensor | None = None,
        adapted: Adapted | None = None,
        embedded: tuple[Tensor, Tensor] | None = None,
        turns: Tensor | None = None,
        heard: Tensor | None = None,
        *,
        begin_alike: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Hidden states and the logits of choosing rows, from a packed iteration; the best tokens of these
        rows to ``chosen``."""
        generation, ids, positions, slots, tiles, choosing = buffer.split(shape.sizes)
        inputs = generation.view(5, shape.generation)
        turned = self._turned(inputs)
        if turned is not None:
            # Of prompts without images, their positions.
            turned = torch.cat((turned, positions)) if turns is None else _joined(turned, turns)
        if shape.generation:
            token_ids, cache_slots = self._operations.prepare(
                inputs, self.chosen, self.block_tables, self._size
            )
            ids = torch.cat((token_ids, ids))
            positions = torch.cat((inputs[2], positions))
            slots = torch.cat((cache_slots, slots))
        tile_rows, tile_slots, firsts, counts = tiles.view(4, shape.tiles)
        context = Context(tile_rows, tile_slots, firsts, counts, chunks)
        tables = self.block_tables
        if probe_tables is not None:
            tables = torch.cat((tables, probe_tables))
        listening = None
        if self.model.encoder is not None:
            own = slots_of_rows(inputs[3], context, len(ids), self.spare.slot)
            listening = self.model.encoder.listening(own, heard)
        rows = Rows(
            ids,
            positions,
            slots,
            inputs[3],
            tables,
            context,
            adapted,
            embedded,
            turned,
            listening,
            begin_alike,
        )
        hidden = self.model.forward(rows)
        return hidden, self._choose(hidden[choosing[: len(self.chosen)].long()])

    def _turned(self, inputs: Tensor) -> Tensor | None:
        """What turns generation rows; None: their positions."""
        return None if self.offsets is None else inputs[2] + self.offsets[inputs[3].long()]

    def _choose(self, hidden: Tensor) -> Tensor:
        """Logits of choosing rows, and their best tokens to ``chosen``."""
        rows = len(hidden)
        logits = self.model.logits(hidden, self.logits[:rows])
        self.chosen[:rows] = logits.argmax(-1)
        return logits


def _joined(generation: Tensor, prompts: Tensor) -> Tensor:
    """What turns generation rows ``[R]``, and prompts' tokens ``[3, T]``: together, ``[3, R + T]``."""
    return torch.cat((generation.expand(3, -1), prompts), dim=1)
