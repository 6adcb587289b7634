"""An encoder's forward pass: a clip's spectrogram to what the decoder's layers attend to.

Owns the order of operations and attention without a mask; the other operations are in `arrays`. One clip at a
time, so that what comes out does not depend on others. Knows nothing of samples or prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inflight.executors.reference.core.probabilities import softmax
from inflight.executors.reference.model.array_types import Float32
from inflight.executors.reference.model.hearing import NORM_EPSILON, HearingConfig
from inflight.executors.reference.model.hearing_layers import (
    Attention,
    load_cross,
    load_encoder_layer,
    load_ends,
)
from inflight.executors.reference.model.layers import Weights, held

from . import arrays


@dataclass(frozen=True, eq=False)
class Heard:
    """A clip as the decoder attends to it: by layer, keys ``[heads, head_dim, positions]`` and values
    ``[heads, positions, head_dim]``."""

    keys: tuple[Float32, ...]
    values: tuple[Float32, ...]

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in (*self.keys, *self.values))


class NumpyEncoder:
    """A loaded encoder, and the decoder's attention to what it gives; immutable after construction."""

    def __init__(self, config: HearingConfig, weights: Weights[Float32]) -> None:
        self.config = config
        self._ends = load_ends(config, weights)
        self._layers = tuple(load_encoder_layer(index, weights) for index in range(config.num_layers))
        self._cross = tuple(load_cross(index, weights) for index in range(config.decoder_layers))

    @property
    def memory_bytes(self) -> int:
        """What the weights take."""
        layers = (half for layer in self._layers for half in layer)
        return sum(int(array.nbytes) for array in held(self._ends, *layers, *self._cross).values())

    def hear(self, spectrogram: Float32) -> Heard:
        """What the decoder attends to of a spectrogram ``[mels, frames]``."""
        encoded, heads = self.encode(spectrogram), self.config.decoder_heads
        keys, values = [], []
        for layer in self._cross:
            own = _heads(arrays.linear(encoded, layer.key), heads)
            keys.append(np.ascontiguousarray(own.swapaxes(1, 2)))
            given = arrays.linear(encoded, layer.value, layer.value_bias)
            values.append(_heads(given, heads))
        return Heard(tuple(keys), tuple(values))

    def encode(self, spectrogram: Float32) -> Float32:
        """The encoder's output ``[positions, hidden]``."""
        ends = self._ends
        x = arrays.gelu(arrays.linear(_neighbors(spectrogram.T, 1), ends.first, ends.first_bias))
        x = arrays.gelu(arrays.linear(_neighbors(x, 2), ends.second, ends.second_bias))
        x += ends.positions
        for attention, mlp in self._layers:
            x += self._attend(x, attention)
            normed = arrays.layer_norm(x, mlp.norm, mlp.norm_bias, NORM_EPSILON)
            active = arrays.gelu(arrays.linear(normed, mlp.up, mlp.up_bias))
            x += arrays.linear(active, mlp.down, mlp.down_bias)
        return arrays.layer_norm(x, ends.norm, ends.norm_bias, NORM_EPSILON)

    def listen(self, x: Float32, layer: int, heard: Heard) -> Float32:
        """What a layer of the decoder adds to its rows ``[rows, hidden]`` of one clip."""
        own = self._cross[layer]
        normed = arrays.layer_norm(x, own.norm, own.norm_bias, NORM_EPSILON)
        queries = _heads(arrays.linear(normed, own.query, own.query_bias), self.config.decoder_heads)
        return _mixed(queries, heard.keys[layer], heard.values[layer], own)

    def _attend(self, x: Float32, layer: Attention[Float32]) -> Float32:
        normed = arrays.layer_norm(x, layer.norm, layer.norm_bias, NORM_EPSILON)
        heads = self.config.num_heads
        queries = _heads(arrays.linear(normed, layer.query, layer.query_bias), heads)
        keys = _heads(arrays.linear(normed, layer.key), heads)
        values = _heads(arrays.linear(normed, layer.value, layer.value_bias), heads)
        return _mixed(queries, keys.swapaxes(1, 2), values, layer)


def _heads(x: Float32, heads: int) -> Float32:
    """``[rows, hidden]`` as ``[heads, rows, head_dim]``; a copy, which BLAS can
    multiply."""
    return np.ascontiguousarray(x.reshape(len(x), heads, -1).swapaxes(0, 1))


def _mixed(queries: Float32, keys: Float32, values: Float32, layer: Attention[Float32]) -> Float32:
    """Every query sees every key."""
    heads, rows, size = queries.shape
    scaled = queries * np.float32(size**-0.5)
    mixed = np.empty((rows, heads, size), dtype=np.float32)
    step = max(1, arrays.MAX_SCORES // (heads * keys.shape[2]))
    for start in range(0, rows, step):
        weights = softmax(scaled[:, start : start + step] @ keys)
        mixed[start : start + step] = (weights @ values).swapaxes(0, 1)
    return arrays.linear(mixed.reshape(rows, -1), layer.output, layer.output_bias)


def _neighbors(x: Float32, stride: int) -> Float32:
    """Each ``stride``-th row with the one before and the one after it, zeros beyond the ends: the rows that a
    convolution of three looks at ``[rows / stride, 3 x channels]``."""
    padded = np.zeros((len(x) + 2, x.shape[1]), dtype=np.float32)
    padded[1:-1] = x
    return np.concatenate([padded[place : place + len(x) : stride] for place in range(3)], axis=1)
