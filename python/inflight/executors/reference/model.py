"""The Llama family's forward pass over one ragged batch.

Owns the order of operations of Llama, Mistral, Qwen2 and Qwen3; every operation itself is in `arrays`.
One pass serves all sequences of an iteration. Knows nothing of requests, scheduling or sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from . import arrays
from .arrays import Float32, Int
from .batch import Batch
from .cache import PagedCache
from .config import ModelConfig, RopeConfig, load_config
from .tensors import required_tensors
from .weights import CheckpointWeights, find_weights

ArrayT = TypeVar("ArrayT")
ArrayT_co = TypeVar("ArrayT_co", covariant=True)


class Weights(Protocol[ArrayT_co]):
    """Where a model's tensors come from, as arrays of its own implementation."""

    def tensor(self, name: str) -> ArrayT_co:
        """The tensor of a name in `tensors.required_tensors`, in the shape that is stated there."""


@dataclass(frozen=True, slots=True)
class Layer(Generic[ArrayT]):
    """One decoder layer; matrices are ``[out, in]``, projections of the same input are stacked."""

    input_norm: ArrayT
    qkv: ArrayT
    qkv_bias: ArrayT | None
    query_norm: ArrayT | None
    key_norm: ArrayT | None
    output: ArrayT
    output_bias: ArrayT | None
    post_norm: ArrayT
    gate_up: ArrayT
    gate_up_bias: ArrayT | None
    down: ArrayT
    down_bias: ArrayT | None
    window: int | None


class LlamaModel:
    """A loaded model: weights and rotary tables, immutable after construction."""

    def __init__(self, config: ModelConfig, weights: Weights[Float32], max_seq_len: int) -> None:
        self.config = config
        self._embedding = weights.tensor("model.embed_tokens.weight")
        self._norm = weights.tensor("model.norm.weight")
        self._head = self._embedding if config.tie_word_embeddings else weights.tensor("lm_head.weight")
        self._layers = tuple(
            load_layer(config, weights, index, np.concatenate) for index in range(config.num_layers)
        )
        frequencies = inverse_frequencies(config.rope, config.head_dim)
        self._cosines, self._sines = arrays.rope_tables(frequencies, max_seq_len)

    @property
    def memory_bytes(self) -> int:
        """What the weights take."""
        arrays_ = [self._embedding, self._norm, self._cosines, self._sines]
        if self._head is not self._embedding:
            arrays_.append(self._head)
        for layer in self._layers:
            values = (getattr(layer, name) for name in layer.__slots__)
            arrays_.extend(value for value in values if isinstance(value, np.ndarray))
        return sum(array.nbytes for array in arrays_)

    def forward(self, batch: Batch, cache: PagedCache, output_rows: Int) -> Float32:
        """Runs all rows, writes keys and values to ``cache``; final hidden states of ``output_rows``."""
        config = self.config
        epsilon = config.rms_norm_eps
        query_heads = config.num_heads
        rotating_heads = query_heads + config.num_kv_heads
        cosines, sines = self._cosines[batch.positions], self._sines[batch.positions]
        rows = len(batch.token_ids)
        x = arrays.embed(self._embedding, batch.token_ids)
        for index, layer in enumerate(self._layers):
            normed = arrays.rms_norm(x, layer.input_norm, epsilon)
            qkv = arrays.linear(normed, layer.qkv, layer.qkv_bias)
            heads = qkv.reshape(rows, -1, config.head_dim)
            rotating, values = heads[:, :rotating_heads], heads[:, rotating_heads:]
            if layer.query_norm is not None and layer.key_norm is not None:
                rotating[:, :query_heads] = arrays.rms_norm(
                    rotating[:, :query_heads], layer.query_norm, epsilon
                )
                rotating[:, query_heads:] = arrays.rms_norm(
                    rotating[:, query_heads:], layer.key_norm, epsilon
                )
            rotated = arrays.rope(rotating, cosines, sines)
            arrays.scatter(cache.keys[index], batch.slots, rotated[:, query_heads:])
            arrays.scatter(cache.values[index], batch.slots, values)
            mixed = self._attend(batch, rotated[:, :query_heads], cache, index, layer.window)
            x += arrays.linear(mixed.reshape(rows, -1), layer.output, layer.output_bias)
            normed = arrays.rms_norm(x, layer.post_norm, epsilon)
            gated = arrays.silu_gate(arrays.linear(normed, layer.gate_up, layer.gate_up_bias))
            x += arrays.linear(gated, layer.down, layer.down_bias)
        return arrays.rms_norm(x[output_rows], self._norm, epsilon)

    def logits(self, hidden: Float32) -> Float32:
        """Logits ``[rows, vocab_size]`` of final hidden states."""
        return arrays.linear(hidden, self._head)

    def _attend(
        self, batch: Batch, queries: Float32, cache: PagedCache, layer: int, window: int | None
    ) -> Float32:
        keys, values, size = cache.keys[layer], cache.values[layer], cache.tokens_per_block
        scale = self.config.head_dim**-0.5
        mixed = np.empty_like(queries)
        for group in batch.generation:
            mixed[group.rows] = arrays.generation_attention(
                queries[group.rows],
                arrays.gather(keys, size, group.block_table)[:, : group.padded],
                arrays.gather(values, size, group.block_table)[:, : group.padded],
                group.mask(window),
                scale,
            )
        for span in batch.context:
            mixed[span.start : span.stop] = arrays.context_attention(
                queries[span.start : span.stop],
                arrays.gather(keys, size, span.block_table)[0, : span.keys],
                arrays.gather(values, size, span.block_table)[0, : span.keys],
                span.first_position,
                window,
                scale,
                span.places,
                span.sink_tokens,
            )
        return mixed


def load_model(
    model_dir: Path, max_seq_len: int | None = None, config: ModelConfig | None = None
) -> LlamaModel:
    """Loads a Hugging Face checkpoint directory, as it is or with another ``config``. Raises
    `CheckpointError`, `UnsupportedModelError`."""
    config = config or load_config(model_dir)
    weights = CheckpointWeights(find_weights(model_dir), required_tensors(config))
    return LlamaModel(config, weights, max_seq_len or config.max_position_embeddings)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Float32:
    """Angles per position of each pair, scaled as the checkpoint says; in float32, as transformers."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies: Float32 = np.float32(1.0) / np.power(np.float32(rope.theta), exponents)
    if rope.rope_type == "linear":
        frequencies /= np.float32(rope.factor)
    if rope.rope_type != "llama3":
        return frequencies
    # Llama 3.1: long wavelengths are stretched, short ones kept, and those between blended.
    wavelengths: Float32 = np.float32(2 * np.pi) / frequencies
    original = rope.original_max_position_embeddings
    smooth = (original / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
    scaled: Float32 = np.where(
        wavelengths > original / rope.low_freq_factor, frequencies / rope.factor, blended
    )
    scaled = np.where(wavelengths < original / rope.high_freq_factor, frequencies, scaled)
    return scaled.astype(np.float32)


def load_layer(
    config: ModelConfig, weights: Weights[ArrayT], index: int, concatenate: Callable[[list[ArrayT]], Any]
) -> Layer[ArrayT]:
    """One layer of a checkpoint with the Llama family's names; ``concatenate`` joins along the first axis."""
    prefix = f"model.layers.{index}."

    def stacked(names: tuple[str, ...]) -> ArrayT:
        joined: ArrayT = concatenate([weights.tensor(f"{prefix}{name}.weight") for name in names])
        return joined

    def stacked_bias(present: bool, names: tuple[str, ...]) -> ArrayT | None:
        if not present:
            return None
        joined: ArrayT = concatenate([weights.tensor(f"{prefix}{name}.bias") for name in names])
        return joined

    def norm(name: str) -> ArrayT:
        return weights.tensor(f"{prefix}{name}.weight")

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    output = ("self_attn.o_proj",)
    gate_up = ("mlp.gate_proj", "mlp.up_proj")
    down = ("mlp.down_proj",)
    return Layer(
        input_norm=norm("input_layernorm"),
        qkv=stacked(qkv),
        qkv_bias=stacked_bias(config.qkv_bias, qkv),
        query_norm=norm("self_attn.q_norm") if config.qk_norm else None,
        key_norm=norm("self_attn.k_norm") if config.qk_norm else None,
        output=stacked(output),
        output_bias=stacked_bias(config.output_bias, output),
        post_norm=norm("post_attention_layernorm"),
        gate_up=stacked(gate_up),
        gate_up_bias=stacked_bias(config.mlp_bias, gate_up),
        down=stacked(down),
        down_bias=stacked_bias(config.mlp_bias, down),
        window=config.windows[index],
    )
