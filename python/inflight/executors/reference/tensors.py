"""Every tensor that the executor loads, by name and shape: one table for the loader and for `inflight build`.

Pure; knows neither files nor arrays.
"""

from __future__ import annotations

from collections.abc import Iterator

from .config import ModelConfig


def required_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each tensor; matrices are `[out, in]`."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{norm}.weight", (hidden,)
        if config.qk_norm:
            for norm in ("q_norm", "k_norm"):
                yield f"{prefix}.self_attn.{norm}.weight", (config.head_dim,)
        for part, has_bias, outputs, inputs in (
            ("self_attn.q_proj", config.qkv_bias, queries, hidden),
            ("self_attn.k_proj", config.qkv_bias, keys, hidden),
            ("self_attn.v_proj", config.qkv_bias, keys, hidden),
            ("self_attn.o_proj", config.output_bias, hidden, queries),
            ("mlp.gate_proj", config.mlp_bias, inner, hidden),
            ("mlp.up_proj", config.mlp_bias, inner, hidden),
            ("mlp.down_proj", config.mlp_bias, hidden, inner),
        ):
            yield f"{prefix}.{part}.weight", (outputs, inputs)
            if has_bias:
                yield f"{prefix}.{part}.bias", (outputs,)
