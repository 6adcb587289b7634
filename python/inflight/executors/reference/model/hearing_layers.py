"""An encoder's tensors, and those of the attention to it, gathered into what a forward pass computes with.

Owns how their names become layers, for every array type. Knows nothing of files, and of arrays only what
`layers.Loading` offers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from .hearing import HearingConfig
from .layers import ArrayT, Weights

_ENCODER = "model.encoder"


@dataclass(frozen=True, slots=True)
class Attention(Generic[ArrayT]):
    """A norm and the attention after it; matrices are ``[out, in]``. Keys have no bias."""

    norm: ArrayT
    norm_bias: ArrayT
    query: ArrayT
    query_bias: ArrayT
    key: ArrayT
    value: ArrayT
    value_bias: ArrayT
    output: ArrayT
    output_bias: ArrayT


@dataclass(frozen=True, slots=True)
class EncoderMlp(Generic[ArrayT]):
    """The other half of an encoder's layer."""

    norm: ArrayT
    norm_bias: ArrayT
    up: ArrayT
    up_bias: ArrayT
    down: ArrayT
    down_bias: ArrayT


@dataclass(frozen=True, slots=True)
class EncoderEnds(Generic[ArrayT]):
    """What comes before the layers, and the norm after them."""

    #: ``[hidden, 3 x channels]``, of three frames one behind the other.
    first: ArrayT
    first_bias: ArrayT
    second: ArrayT
    second_bias: ArrayT
    #: ``[positions, hidden]``
    positions: ArrayT
    norm: ArrayT
    norm_bias: ArrayT


def load_ends(config: HearingConfig, weights: Weights[ArrayT]) -> EncoderEnds[ArrayT]:
    """The encoder without its layers."""

    def convolution(name: str) -> Any:
        # Of any array type, which the protocols do not know to be one.
        kernel: Any = weights.tensor(f"{_ENCODER}.{name}.weight")
        return kernel.swapaxes(1, 2).reshape(config.hidden_size, -1)

    return EncoderEnds(
        first=convolution("conv1"),
        first_bias=weights.tensor(f"{_ENCODER}.conv1.bias"),
        second=convolution("conv2"),
        second_bias=weights.tensor(f"{_ENCODER}.conv2.bias"),
        positions=weights.tensor(f"{_ENCODER}.embed_positions.weight"),
        norm=weights.tensor(f"{_ENCODER}.layer_norm.weight"),
        norm_bias=weights.tensor(f"{_ENCODER}.layer_norm.bias"),
    )


def load_encoder_layer(index: int, weights: Weights[ArrayT]) -> tuple[Attention[ArrayT], EncoderMlp[ArrayT]]:
    """One layer of the encoder."""
    prefix = f"{_ENCODER}.layers.{index}"
    mlp = EncoderMlp(
        norm=weights.tensor(f"{prefix}.final_layer_norm.weight"),
        norm_bias=weights.tensor(f"{prefix}.final_layer_norm.bias"),
        up=weights.tensor(f"{prefix}.fc1.weight"),
        up_bias=weights.tensor(f"{prefix}.fc1.bias"),
        down=weights.tensor(f"{prefix}.fc2.weight"),
        down_bias=weights.tensor(f"{prefix}.fc2.bias"),
    )
    return _attention(f"{prefix}.self_attn", weights), mlp


def load_cross(index: int, weights: Weights[ArrayT]) -> Attention[ArrayT]:
    """A decoder layer's attention to the clip."""
    return _attention(f"model.decoder.layers.{index}.encoder_attn", weights)


def _attention(prefix: str, weights: Weights[ArrayT]) -> Attention[ArrayT]:
    def own(name: str) -> ArrayT:
        return weights.tensor(f"{prefix}.{name}")

    return Attention(
        norm=weights.tensor(f"{prefix}_layer_norm.weight"),
        norm_bias=weights.tensor(f"{prefix}_layer_norm.bias"),
        query=own("q_proj.weight"),
        query_bias=own("q_proj.bias"),
        key=own("k_proj.weight"),
        value=own("v_proj.weight"),
        value_bias=own("v_proj.bias"),
        output=own("out_proj.weight"),
        output_bias=own("out_proj.bias"),
    )
