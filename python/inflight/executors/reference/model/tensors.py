"""Every tensor that the executor loads, by name and shape: one table for the loader and for `inflight build`.

Pure; knows neither files nor arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .config import ModelConfig
from .hearing import hearing_tensors
from .latent import latent_tensors
from .vision import vision_tensors

Shape = tuple[int, ...]


def required_tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Name and shape of each tensor; matrices are `[out, in]` unless the family stores them transposed."""
    names, hidden = config.names, config.hidden_size
    yield f"{names.embedding}.weight", (config.vocab_size, hidden)
    if config.positions == "learned":
        yield f"{names.positions}.weight", (config.max_position_embeddings, hidden)
    yield from _norm(config, names.final_norm)
    if not config.tie_word_embeddings:
        yield f"{names.head}.weight", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        yield from _layer(config, layer, names.layer.format(layer))
    if config.vision is not None:
        yield from vision_tensors(config.vision)
    if config.hearing is not None:
        yield from hearing_tensors(config.hearing)


def _layer(config: ModelConfig, layer: int, prefix: str) -> Iterator[tuple[str, Shape]]:
    names, hidden, inner = config.names, config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    for norm in (names.input_norm, names.post_norm, names.output_norm, names.down_norm):
        if norm:
            yield from _norm(config, f"{prefix}.{norm}")
    if config.qk_norm:
        for norm in (names.query_norm, names.key_norm):
            yield f"{prefix}.{norm}.weight", (config.head_dim,)
    if config.latent is not None:
        yield from latent_tensors(config.latent, prefix, hidden, config.num_heads)
        queries = config.num_heads * config.latent.value_dim
    else:
        yield from _linear(config, prefix, names.qkv, config.qkv_bias, (queries, keys, keys), hidden)
    yield from _linear(config, prefix, (names.output,), config.output_bias, (hidden,), queries)
    if names.sink_scores:
        yield f"{prefix}.{names.sink_scores}", (config.num_heads,)
    if config.has_experts(layer):
        yield from _linear(config, prefix, (names.router,), config.router_bias, (config.num_experts,), hidden)
        if config.mixture is not None and config.mixture.routing.has_bias:
            yield f"{prefix}.{names.choice_bias}", (config.num_experts,)
        if names.stacked_experts:
            width = 2 * inner if config.gated_mlp else inner
            yield from _stacked_experts(config, f"{prefix}.{names.expert}", width)
            return
    for place, size in mlps(config, layer, prefix):
        yield from _mlp(config, place, size)


def mlps(config: ModelConfig, layer: int, prefix: str) -> Iterator[tuple[str, int]]:
    """Where the MLPs of a layer are, each of which has tensors, and their sizes."""
    names, mixture = config.names, config.mixture
    if not config.has_experts(layer):
        place = f"{prefix}.{names.dense}" if names.dense else prefix
        yield place, config.intermediate_size if mixture is None else mixture.dense_size
        return
    for expert in range(config.num_experts):
        yield f"{prefix}.{names.expert.format(expert)}", config.intermediate_size
    if mixture is not None and mixture.shared_size:
        yield f"{prefix}.{names.shared_expert}", mixture.shared_size


def _mlp(config: ModelConfig, place: str, inner: int) -> Iterator[tuple[str, Shape]]:
    names, hidden = config.names, config.hidden_size
    widths = (inner, inner) if config.gated_mlp else (inner,)
    yield from _linear(config, place, names.gate_up, config.mlp_bias, widths, hidden)
    yield from _linear(config, place, (names.down,), config.mlp_bias, (hidden,), inner)


def _stacked_experts(config: ModelConfig, place: str, width: int) -> Iterator[tuple[str, Shape]]:
    """The matrices of all experts ``[experts, in, out]`` and their biases."""
    [gate_up], down = config.names.gate_up, config.names.down
    hidden, inner = config.hidden_size, config.intermediate_size
    for part, inputs, outputs in ((gate_up, hidden, width), (down, inner, hidden)):
        yield f"{place}.{part}", (config.num_experts, inputs, outputs)
        if config.mlp_bias:
            yield f"{place}.{part}_bias", (config.num_experts, outputs)


def _norm(config: ModelConfig, name: str) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (config.hidden_size,)
    if config.norm == "layer":
        yield f"{name}.bias", (config.hidden_size,)


def _linear(
    config: ModelConfig,
    prefix: str,
    parts: Sequence[str],
    has_bias: bool,
    outputs: Sequence[int],
    inputs: int,
) -> Iterator[tuple[str, Shape]]:
    """Modules of the same input; one name holds all outputs."""
    widths = outputs if len(parts) == len(outputs) else (sum(outputs),)
    for part, width in zip(parts, widths, strict=True):
        shape = (inputs, width) if config.names.transposed else (width, inputs)
        yield f"{prefix}.{part}.weight", shape
        if has_bias and part not in config.names.unbiased:
            yield f"{prefix}.{part}.bias", (width,)
