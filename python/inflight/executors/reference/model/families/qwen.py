"""Qwen2: Llama with biases of queries, keys and values; Qwen3: with norms of queries and keys, also as a
mixture of experts."""

from __future__ import annotations

from .family import Family, Names
from .windows import chosen_windows

QWEN2 = Family(("Qwen2ForCausalLM",), qkv_bias=True, windows=chosen_windows)
QWEN3 = Family(("Qwen3ForCausalLM",), qkv_bias=None, output_bias=None, qk_norm=True, windows=chosen_windows)
QWEN3_MOE = Family(
    ("Qwen3MoeForCausalLM",),
    Names(
        router="mlp.gate",
        expert="mlp.experts.{}",
        gate_up=("gate_proj", "up_proj"),
        down="down_proj",
    ),
    qkv_bias=None,
    output_bias=None,
    qk_norm=True,
    windows=chosen_windows,
    normalized_experts=None,
    # Layers without experts are not implemented.
    required={"decoder_sparse_step": (1,), "mlp_only_layers": ([], None)},
)
