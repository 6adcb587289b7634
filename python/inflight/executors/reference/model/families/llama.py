"""Llama: what every other family is compared with."""

from __future__ import annotations

from .family import Family

LLAMA = Family(("LlamaForCausalLM",), qkv_bias=None, output_bias=None, mlp_bias=None)
