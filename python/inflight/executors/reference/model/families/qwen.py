"""Qwen2: Llama with biases of queries, keys and values; Qwen3: with norms of queries and keys."""

from __future__ import annotations

from .family import Family
from .windows import chosen_windows

QWEN2 = Family(("Qwen2ForCausalLM",), qkv_bias=True, windows=chosen_windows)
QWEN3 = Family(("Qwen3ForCausalLM",), qkv_bias=None, output_bias=None, qk_norm=True, windows=chosen_windows)
