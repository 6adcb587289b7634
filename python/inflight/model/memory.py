"""Bytes that a model needs: weights and KV cache per GPU, blocks and sequences that fit. Pure arithmetic.

Activations, CUDA graphs and the runtime's own memory are not counted: the fraction of free memory that the KV
cache may take leaves room for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.model.config import ModelFacts

#: TensorRT-LLM's default share of the memory left after the weights (`free_gpu_memory_fraction`).
FREE_MEMORY_FRACTION = 0.9

BYTES = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "nvfp4": 0.5625,
    "mxfp4": 0.53125,
}

#: `--quantization`, or what a checkpoint comes in -> the format of the layers' matrices; embeddings keep the
#: model's precision.
MATRIX_FORMAT = {
    "fp8": "fp8",
    "int8_sq": "int8",
    "int8_wo": "int8",
    "int4_wo": "int4",
    "int4_awq": "int4",
    "w4a8_awq": "int4",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
}


@dataclass(frozen=True)
class Needs:
    """What each GPU must hold, in bytes; of the fullest GPU where they differ."""

    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    tokens_per_block: int

    @property
    def kv_bytes_per_block(self) -> int:
        return self.kv_bytes_per_token * self.tokens_per_block

    def blocks(self, memory_bytes: int, fraction: float = FREE_MEMORY_FRACTION) -> int:
        """KV cache blocks that fit in a GPU of `memory_bytes` next to the weights."""
        free = int((memory_bytes - self.weight_bytes) * fraction)
        return max(0, free // self.kv_bytes_per_block) if self.kv_bytes_per_block else 0

    def batch(self, blocks: int, length: int) -> int:
        """Sequences of `length` tokens that `blocks` hold at once."""
        return blocks // max(1, -(-length // self.tokens_per_block))


def decoder_parameters(facts: ModelFacts, layers: int) -> int:
    """Parameters of the decoder, or of so many of its layers that are largest."""
    matrices = (3 if facts.gated_mlp else 2) * facts.hidden_size
    dense = max(0, layers - facts.num_layers + facts.dense_layers) if facts.num_experts else layers
    mixture = (facts.num_experts + facts.shared_experts) * (facts.expert_size or facts.intermediate_size)
    mlps = dense * facts.intermediate_size + (layers - dense) * mixture
    routers = (layers - dense) * facts.hidden_size * facts.num_experts
    return layers * _attention_parameters(facts) + mlps * matrices + routers


def _attention_parameters(facts: ModelFacts) -> int:
    """Of one decoder layer."""
    latent, hidden = facts.latent, facts.hidden_size
    if latent is not None:
        queries = facts.num_heads * latent.query_dim
        queries = latent.query_rank * (hidden + queries) if latent.query_rank else hidden * queries
        values = facts.num_heads * latent.value_dim
        up = latent.rank * (facts.num_heads * latent.key_dim + values)
        return queries + hidden * latent.cached_dim + up + values * hidden
    heads = facts.head_dim * facts.num_heads
    kv = facts.head_dim * facts.num_kv_heads
    attention = facts.hidden_size * (2 * heads + 2 * kv)
    if facts.is_encoder_decoder:
        attention += facts.hidden_size * 4 * heads
    return attention


def encoder_layer_parameters(facts: ModelFacts) -> int:
    """Parameters of an encoder layer: attention to itself only."""
    attention = facts.hidden_size * 4 * facts.head_dim * facts.num_heads
    return attention + (3 if facts.gated_mlp else 2) * facts.hidden_size * facts.intermediate_size


def count_parameters(facts: ModelFacts) -> int:
    """Matrices and embeddings; norms and biases, well under a percent, are left out."""
    layers = decoder_parameters(facts, facts.num_layers)
    layers += facts.encoder_layers * encoder_layer_parameters(facts)
    embeddings = facts.vocab_size * facts.hidden_size * (1 if facts.tie_word_embeddings else 2)
    positions = (facts.max_position_embeddings or 0) * facts.hidden_size if facts.learned_positions else 0
    return layers + embeddings + positions


def needs(
    facts: ModelFacts,
    *,
    tp_size: int = 1,
    pp_size: int = 1,
    dtype: str | None = None,
    quantization: str = "none",
    kv_cache_dtype: str = "auto",
    tokens_per_block: int = 32,
) -> Needs:
    """What a GPU holds of the model, shared by tensor and pipeline parallelism.

    The fullest GPU has the larger share of layers and the larger end of the pipeline: the embedding, or the
    output projection. The embedding is whole on every tensor parallel rank, the projection is shared; tied,
    a single GPU holds them once.
    """
    width = BYTES.get(dtype or facts.dtype, 2.0)
    matrix = BYTES[MATRIX_FORMAT[quantization]] if quantization in MATRIX_FORMAT else width
    layers = -(-facts.num_layers // pp_size)
    encoders = -(-facts.encoder_layers // pp_size)
    sharded = decoder_parameters(facts, layers) + encoders * encoder_layer_parameters(facts)
    table = facts.vocab_size * facts.hidden_size
    first = table + (facts.max_position_embeddings or 0) * facts.hidden_size * facts.learned_positions
    last = -(-table // tp_size)
    if facts.tie_word_embeddings and tp_size == pp_size == 1:
        last = 0
    ends = first + last if pp_size == 1 else max(first, last)
    weight_bytes = int(sharded / tp_size * matrix + ends * width)
    kv_width = BYTES.get(kv_cache_dtype, width if width < 4 or facts.dtype == "float32" else 2.0)
    kv_heads = max(1, facts.num_kv_heads // tp_size)
    numbers = 2 * kv_heads * facts.head_dim if facts.latent is None else facts.latent.cached_dim
    per_token = int(layers * numbers * kv_width)
    return Needs(count_parameters(facts), weight_bytes, per_token, tokens_per_block)


def human_bytes(size: float) -> str:
    """In the largest unit that keeps a whole digit."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
