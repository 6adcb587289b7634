"""The angles of the rotary embedding, with the scalings that checkpoints ask for. Pure."""

from __future__ import annotations

import numpy as np

from .array_types import Float32
from .config import RopeConfig
from .yarn import yarn_frequencies


def turn_scales(rope: RopeConfig | None, head_dim: int) -> Float32:
    """What cosines and sines of each pair are multiplied with."""
    scales = np.ones(head_dim // 2, dtype=np.float32)
    if rope is not None and rope.yarn is not None:
        scales[:] = rope.yarn.attention_factor
    if rope is not None and rope.longrope is not None:
        scales[: len(rope.longrope.long)] = rope.longrope.attention_factor
    return scales


def inverse_frequencies(rope: RopeConfig | None, head_dim: int) -> Float32:
    """Angles per position of each pair, scaled as the checkpoint says; in float32, as transformers. What is
    not turned, turns by nothing."""
    frequencies = np.zeros(head_dim // 2, dtype=np.float32)
    if rope is not None:
        turned = rope.rotated or head_dim
        frequencies[: turned // 2] = _frequencies(rope, turned)
    return frequencies


def _frequencies(rope: RopeConfig, head_dim: int) -> Float32:
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies: Float32 = np.float32(1.0) / np.power(np.float32(rope.theta), exponents)
    if rope.longrope is not None:
        frequencies /= np.array(rope.longrope.factors, dtype=np.float32)
        return frequencies
    if rope.yarn is not None:
        return yarn_frequencies(rope.yarn, rope.theta, frequencies)
    if rope.rope_type == "linear":
        frequencies /= np.float32(rope.factor)
    if rope.rope_type != "llama3":
        return frequencies
    # Llama 3.1: long wavelengths are stretched, short ones kept, and those between blended.
    wavelengths: Float32 = np.float32(2 * np.pi) / frequencies
    original = rope.original_max_position_embeddings
    smooth = (original / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
    scaled: Float32 = np.where(
        wavelengths > original / rope.low_freq_factor, frequencies / rope.factor, blended
    )
    scaled = np.where(wavelengths < original / rope.high_freq_factor, frequencies, scaled)
    return scaled.astype(np.float32)
