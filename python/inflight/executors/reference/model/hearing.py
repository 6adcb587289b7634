"""The encoder of a model that hears: its sizes, as `config.json` states them, and its tensors.

Owns Whisper's, the one that is implemented, and what a decoder's layers have to attend to what it gives. How
samples become a spectrogram is `log_mel`'s. Pure; knows neither files nor arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inflight.executors.reference.errors import UnsupportedModelError
from inflight.model.config import ModelFacts
from inflight.model.values import bad_value, integer

#: Of all norms, which no config states.
NORM_EPSILON = 1e-5
#: The two that were published, and with them the filters that were compared with transformers'.
MELS = (80, 128)
#: Frames of the spectrogram that become one position: the stride of the second convolution.
STRIDE = 2

_MOST_LAYERS = 1000
#: Far above any encoder, so that a damaged number cannot ask for all memory.
_LARGEST = 1 << 17

_ENCODER = "model.encoder"
_DECODER = "model.decoder.layers.{}"


@dataclass(frozen=True, slots=True)
class HearingConfig:
    """Everything that the encoder's forward pass needs to know."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    #: Bands of the spectrogram.
    mels: int
    #: Of a clip, whatever its length: it is filled up with silence.
    positions: int
    #: Of the decoder, each of which attends to the clip.
    decoder_layers: int
    decoder_heads: int

    @property
    def frames(self) -> int:
        """Of the spectrogram of a clip."""
        return self.positions * STRIDE

    def clip_bytes(self, element_bytes: int) -> int:
        """Keys and values of a clip over all layers of the decoder."""
        return 2 * element_bytes * self.decoder_layers * self.positions * self.hidden_size


def parse_hearing(facts: ModelFacts, values: Mapping[str, Any]) -> HearingConfig:
    """The encoder in the object of a `config.json`. Raises `CheckpointError`, `UnsupportedModelError`."""

    def number(key: str, *, maximum: int = _LARGEST) -> int:
        return integer(values, key, maximum=maximum)

    hidden, heads = facts.hidden_size, number("encoder_attention_heads")
    if hidden % heads:
        raise bad_value("encoder_attention_heads", heads, f"a divisor of `d_model` ({hidden})")
    mels = number("num_mel_bins")
    if mels not in MELS:
        raise UnsupportedModelError(
            f"`num_mel_bins` in `config.json` is `{mels}`, which the reference executor does not support",
            f"use a checkpoint with {' or '.join(map(str, MELS))}",
        )
    return HearingConfig(
        num_layers=number("encoder_layers", maximum=_MOST_LAYERS),
        hidden_size=hidden,
        intermediate_size=number("encoder_ffn_dim"),
        num_heads=heads,
        mels=mels,
        positions=number("max_source_positions"),
        decoder_layers=facts.num_layers,
        decoder_heads=facts.num_heads,
    )


def hearing_tensors(config: HearingConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each tensor of the encoder, and of the decoder's attention to it; matrices are
    ``[out, in]``."""
    hidden, inner = config.hidden_size, config.intermediate_size
    for name, channels in (("conv1", config.mels), ("conv2", hidden)):
        yield f"{_ENCODER}.{name}.weight", (hidden, channels, 3)
        yield f"{_ENCODER}.{name}.bias", (hidden,)
    yield f"{_ENCODER}.embed_positions.weight", (config.positions, hidden)
    for layer in range(config.num_layers):
        prefix = f"{_ENCODER}.layers.{layer}"
        yield from _attention(f"{prefix}.self_attn", hidden)
        yield from _norm(f"{prefix}.self_attn_layer_norm", hidden)
        for name, rows, columns in (("fc1", inner, hidden), ("fc2", hidden, inner)):
            yield f"{prefix}.{name}.weight", (rows, columns)
            yield f"{prefix}.{name}.bias", (rows,)
        yield from _norm(f"{prefix}.final_layer_norm", hidden)
    yield from _norm(f"{_ENCODER}.layer_norm", hidden)
    for layer in range(config.decoder_layers):
        yield from _attention(f"{_DECODER.format(layer)}.encoder_attn", hidden)
        yield from _norm(f"{_DECODER.format(layer)}.encoder_attn_layer_norm", hidden)


def _attention(prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        yield f"{prefix}.{name}.weight", (hidden, hidden)
        if name != "k_proj":
            yield f"{prefix}.{name}.bias", (hidden,)


def _norm(name: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (hidden,)
    yield f"{name}.bias", (hidden,)
