"""An encoder on PyTorch: `numpy.encoder`'s order of operations on device tensors, and the clips that the
decoder attends to.

Owns where keys and values of clips are: in blocks, as those of the cache are, so that the kernels for one new
token a sequence attend to them, from CUDA graphs too. One clip is encoded at a time, so that what comes out
does not depend on others; on a GPU from a graph, which spares the host hundreds of launches. Knows nothing of
samples or prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as functional

from inflight.executors.reference.model.hearing import NORM_EPSILON, HearingConfig
from inflight.executors.reference.model.hearing_layers import (
    Attention,
    EncoderMlp,
    load_cross,
    load_encoder_layer,
    load_ends,
)
from inflight.executors.reference.model.layers import Weights, held

from .capturing import no_collection
from .operations import CONTEXT_TILE, AttentionShape, Context, Tensor


@dataclass(frozen=True, slots=True)
class Listening:
    """What the rows of an iteration hear."""

    #: The sequence slot of each row, and the last position of a clip: int32 ``[T]``.
    slots: Tensor
    positions: Tensor
    #: The blocks of what each slot hears: int32 ``[slots, blocks of a clip]``.
    tables: Tensor


class TorchEncoder:
    """A loaded encoder, the decoder's attention to what it gives, and room for that of several clips."""

    def __init__(
        self, config: HearingConfig, weights: Weights[Tensor], kernels: ModuleType, tokens_per_block: int
    ) -> None:
        self.config = config
        self._operations = kernels
        self._ends = load_ends(config, weights)
        self._layers = tuple(load_encoder_layer(index, weights) for index in range(config.num_layers))
        self._cross = tuple(load_cross(index, weights) for index in range(config.decoder_layers))
        self._blocks = -(-config.positions // tokens_per_block)
        self.shape = AttentionShape(
            config.decoder_heads,
            config.decoder_heads,
            config.hidden_size // config.decoder_heads,
            tokens_per_block,
            self._blocks * tokens_per_block,
        )
        shape = (config.mels, config.frames)
        self._spectrogram = torch.zeros(shape, dtype=torch.float32, device=self.device)
        self._graph: Any = None
        self.allocate(1, 1)

    @property
    def device(self) -> Tensor:
        return self._ends.positions.device

    @property
    def dtype(self) -> Tensor:
        return self._ends.positions.dtype

    @property
    def memory_bytes(self) -> int:
        """What the weights and the clips take."""
        layers = (half for layer in self._layers for half in layer)
        weights = held(self._ends, *layers, *self._cross).values()
        return sum(int(tensor.nbytes) for tensor in weights) + int(self._kept.nbytes + self._made.nbytes)

    def allocate(self, clips: int, slots: int) -> None:
        """Makes room for so many clips, which so many sequence slots hear."""
        shape, layers = self.shape, self.config.decoder_layers
        block = (shape.kv_heads, shape.tokens_per_block, shape.head_dim)
        self.clips = clips
        #: Keys of all layers, then values; of all clips, and of the one that is encoded.
        self._kept, self._made = (
            torch.zeros((2 * layers, blocks, *block), dtype=self.dtype, device=self.device)
            for blocks in (clips * self._blocks, self._blocks)
        )
        self._tables = torch.zeros((slots, self._blocks), dtype=torch.int32, device=self.device)

    def hear(self, place: int, spectrogram: Tensor) -> None:
        """Keeps what the decoder attends to of a spectrogram ``[mels, frames]``, in the ``place`` of another
        clip."""
        self._spectrogram.copy_(spectrogram)
        if self._graph is None:
            self._make()
        else:
            self._graph.replay()
        self._kept[:, place * self._blocks : (place + 1) * self._blocks] = self._made

    def capture(self) -> None:
        """Encodes from a graph from now on; on a GPU, after `allocate`."""
        self._make()  # compiles kernels and picks algorithms, which a capture must not
        torch.cuda.synchronize(self.device)
        self._graph = torch.cuda.CUDAGraph()
        with no_collection(), torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._make()

    def _make(self) -> None:
        encoded, layers = self.encode(self._spectrogram), self.config.decoder_layers
        for index, layer in enumerate(self._cross):
            keys = self._operations.linear(encoded, layer.key)
            values = self._operations.linear(encoded, layer.value, layer.value_bias)
            self._made[index] = self._in_blocks(keys)
            self._made[layers + index] = self._in_blocks(values)

    def assign(self, slots: Tensor, places: Tensor) -> None:
        """Has slots hear the clips in ``places`` from now on."""
        self._tables[slots.long()] = self._tables_of(places)

    def listening(self, slots: Tensor, places: Tensor | None = None) -> Listening:
        """What rows of these slots hear; those after the last slot hear what is in ``places``."""
        positions = torch.full_like(slots, self.config.positions - 1)
        tables = self._tables
        if places is not None:
            tables = torch.cat((tables, self._tables_of(places)))
        return Listening(slots, positions, tables)

    def encode(self, spectrogram: Tensor) -> Tensor:
        """The encoder's output ``[positions, hidden]``."""
        ends, linear = self._ends, self._operations.linear
        x = spectrogram.t().to(self.dtype)
        x = functional.gelu(linear(_neighbors(x, 1), ends.first, ends.first_bias))
        x = functional.gelu(linear(_neighbors(x, 2), ends.second, ends.second_bias))
        x = x + ends.positions
        for attention, mlp in self._layers:
            x = x + self._attend(x, attention)
            x = x + self._mlp(x, mlp)
        return _norm(x, ends.norm, ends.norm_bias)

    def listen(
        self, x: Tensor, delta: Tensor, layer: int, listening: Listening, more: Tensor | None = None
    ) -> Tensor:
        """What a layer of the decoder adds to its rows ``x [T, hidden]``, once ``delta``, and ``more``, are
        added to them: every row sees its whole clip."""
        ops, own, layers = self._operations, self._cross[layer], self.config.decoder_layers
        normed = ops.add_layer_norm(x, delta, own.norm, own.norm_bias, NORM_EPSILON, more)
        queries = ops.linear(normed, own.query, own.query_bias)
        mixed = ops.generation_attention(
            queries.view(len(queries), self.shape.heads, self.shape.head_dim),
            self._kept[layer],
            self._kept[layers + layer],
            listening.tables,
            listening.slots,
            listening.positions,
            None,
            self.shape,
            None,  # all rows are alike
        )
        return ops.linear(mixed.reshape(len(mixed), -1), own.output, own.output_bias)

    def _attend(self, x: Tensor, layer: Attention[Tensor]) -> Tensor:
        linear, heads = self._operations.linear, self.config.num_heads
        normed = _norm(x, layer.norm, layer.norm_bias)
        queries, keys, values = (
            part.view(1, len(x), heads, -1).transpose(1, 2)
            for part in (
                linear(normed, layer.query, layer.query_bias),
                linear(normed, layer.key),
                linear(normed, layer.value, layer.value_bias),
            )
        )
        mixed = functional.scaled_dot_product_attention(queries, keys, values)
        return linear(mixed.transpose(1, 2).reshape(len(x), -1), layer.output, layer.output_bias)

    def _mlp(self, x: Tensor, layer: EncoderMlp[Tensor]) -> Tensor:
        linear = self._operations.linear
        inner = linear(_norm(x, layer.norm, layer.norm_bias), layer.up, layer.up_bias)
        return linear(functional.gelu(inner), layer.down, layer.down_bias)

    def _in_blocks(self, x: Tensor) -> Tensor:
        """``[positions, hidden]`` as ``[blocks, heads, tokens_per_block, head_dim]``."""
        shape = self.shape
        padded = functional.pad(x, (0, 0, 0, shape.max_seq_len - len(x)))
        return padded.view(self._blocks, shape.tokens_per_block, shape.heads, shape.head_dim).transpose(1, 2)

    def _tables_of(self, places: Tensor) -> Tensor:
        offsets = torch.arange(self._blocks, dtype=torch.int32, device=places.device)
        return places[:, None] * self._blocks + offsets


def slots_of_rows(generation: Tensor, context: Context, rows: int, spare: int) -> Tensor:
    """The sequence slot of each row of an iteration ``[rows]``: of its generation rows, of the rows of its
    tiles, and ``spare`` of the others."""
    slots = torch.full((rows + 1,), spare, dtype=torch.int32, device=generation.device)
    slots[: len(generation)] = generation
    offsets = torch.arange(CONTEXT_TILE, device=generation.device)
    # What a tile has no rows for goes behind the last row.
    places = torch.where(offsets < context.counts[:, None], context.rows[:, None] + offsets, rows)
    slots[places.long().flatten()] = context.slots[:, None].expand(-1, CONTEXT_TILE).flatten()
    return slots[:rows]


def _norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, NORM_EPSILON)


def _neighbors(x: Tensor, stride: int) -> Tensor:
    """Each ``stride``-th row with the one before and the one after it, zeros beyond the ends: the rows that a
    convolution of three looks at ``[rows / stride, 3 x channels]``."""
    padded = functional.pad(x, (0, 0, 1, 1))
    return torch.cat([padded[place : place + len(x) : stride] for place in range(3)], dim=1)
