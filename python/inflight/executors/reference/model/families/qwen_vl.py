"""Qwen2.5-VL: Qwen2 with a vision tower and rotary positions of time, row and column."""

from __future__ import annotations

from inflight.executors.reference.model.vision import parse_vision

from .family import Family, Names
from .windows import chosen_windows

QWEN2_5_VL = Family(
    ("Qwen2_5_VLForConditionalGeneration",),
    # As transformers has them in memory, and some versions on disk.
    Names(spellings=(("model.", "model.language_model."), ("visual.", "model.visual."))),
    qkv_bias=True,
    windows=chosen_windows,
    epsilon=1e-5,
    vision=parse_vision,
)
