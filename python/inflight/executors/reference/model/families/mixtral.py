"""Mixtral: Mistral with a mixture of experts for an MLP."""

from __future__ import annotations

from .family import Family, Names
from .windows import one_window

MIXTRAL = Family(
    ("MixtralForCausalLM",),
    Names(
        router="block_sparse_moe.gate",
        expert="block_sparse_moe.experts.{}",
        gate_up=("w1", "w3"),
        down="w2",
    ),
    windows=one_window,
    epsilon=1e-5,
)
