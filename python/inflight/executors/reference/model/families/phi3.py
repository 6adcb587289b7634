"""Phi-3 and Phi-4: Llama with fewer, wider matrices; of the mini models, parts of heads turn."""

from __future__ import annotations

from .family import Family, Names
from .windows import one_window

PHI3 = Family(
    ("Phi3ForCausalLM",),
    Names(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
    windows=one_window,
    epsilon=1e-5,
    partly_rotated=True,
)
