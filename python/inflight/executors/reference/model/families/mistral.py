"""Mistral: Llama with a sliding window."""

from __future__ import annotations

from .family import Family
from .windows import one_window

MISTRAL = Family(("MistralForCausalLM",), windows=one_window)
