"""A vision tower's tensors, gathered into what its forward pass computes with, for every array type.

Owns how their names become layers. Knows nothing of files, and of arrays only what `layers.Loading` offers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

from .layers import ArrayT, Loading, Weights
from .vision import VisionConfig


@dataclass(frozen=True, slots=True)
class VisionLayer(Generic[ArrayT]):
    """One layer of the tower; matrices are ``[out, in]``."""

    attention_norm: ArrayT
    qkv: ArrayT
    qkv_bias: ArrayT
    output: ArrayT
    output_bias: ArrayT
    mlp_norm: ArrayT
    #: Gate before up.
    gate_up: ArrayT
    gate_up_bias: ArrayT
    down: ArrayT
    down_bias: ArrayT


@dataclass(frozen=True, slots=True)
class VisionEnds(Generic[ArrayT]):
    """What comes before the layers, and the merger after them."""

    #: ``[hidden, patch]``
    patches: ArrayT
    norm: ArrayT
    #: ``[merged, merged]`` and ``[out, merged]``.
    inner: ArrayT
    inner_bias: ArrayT
    outer: ArrayT
    outer_bias: ArrayT


def load_tower(
    config: VisionConfig, weights: Weights[ArrayT], loading: Loading[ArrayT]
) -> tuple[VisionEnds[ArrayT], tuple[VisionLayer[ArrayT], ...]]:
    """Reads the tower's tensors."""
    tensor = weights.tensor
    # Of any array type, which the protocols do not know to be one.
    patches: Any = tensor("visual.patch_embed.proj.weight")
    ends = VisionEnds(
        patches=patches.reshape(config.hidden_size, config.patch_width),
        norm=tensor("visual.merger.ln_q.weight"),
        inner=tensor("visual.merger.mlp.0.weight"),
        inner_bias=tensor("visual.merger.mlp.0.bias"),
        outer=tensor("visual.merger.mlp.2.weight"),
        outer_bias=tensor("visual.merger.mlp.2.bias"),
    )
    layers = tuple(_layer(f"visual.blocks.{index}", weights, loading) for index in range(config.num_layers))
    return ends, layers


def _layer(prefix: str, weights: Weights[ArrayT], loading: Loading[ArrayT]) -> VisionLayer[ArrayT]:
    def own(name: str) -> ArrayT:
        return weights.tensor(f"{prefix}.{name}")

    def joined(names: Sequence[str]) -> ArrayT:
        return loading.joined([own(name) for name in names])

    return VisionLayer(
        attention_norm=own("norm1.weight"),
        qkv=own("attn.qkv.weight"),
        qkv_bias=own("attn.qkv.bias"),
        output=own("attn.proj.weight"),
        output_bias=own("attn.proj.bias"),
        mlp_norm=own("norm2.weight"),
        gate_up=joined(("mlp.gate_proj.weight", "mlp.up_proj.weight")),
        gate_up_bias=joined(("mlp.gate_proj.bias", "mlp.up_proj.bias")),
        down=own("mlp.down_proj.weight"),
        down_bias=own("mlp.down_proj.bias"),
    )
