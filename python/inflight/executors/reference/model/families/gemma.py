"""Gemma: scaled embeddings, norms whose stored weights are differences from 1, and GELU in the gate."""

from __future__ import annotations

from .family import Family

GEMMA = Family(
    ("GemmaForCausalLM",),
    qkv_bias=None,
    output_bias=None,
    norm_offset=1.0,
    activation="gelu_pytorch_tanh",
    activations={"gelu_pytorch_tanh": "gelu_tanh"},
    scaled_embedding=True,
    required={"use_bidirectional_attention": (None, False)},
)
