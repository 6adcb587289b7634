"""Gemma: scaled embeddings, norms whose stored weights are differences from 1, and GELU in the gate.

Gemma 2 norms what attention and the MLP give as well, caps scores and logits, and every second layer
slides. Gemma 3 has norms of queries and keys instead of caps, and another rotary embedding in layers
that slide; of models that see, the language model alone is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inflight.model.config import ModelFacts
from inflight.model.values import number

from .family import Family, Names, Variant
from .rotary import ropes_by_type
from .windows import windows_but_each

#: What transformers assumes where the config states none.
_WINDOW, _QUERY_SCALAR = 4096, 256.0
_ATTENTION_SOFTCAP, _LOGIT_SOFTCAP = 50.0, 30.0

_NAMES = Names(
    output_norm="post_attention_layernorm",
    post_norm="pre_feedforward_layernorm",
    down_norm="post_feedforward_layernorm",
)


def _second_variant(_facts: ModelFacts, values: Mapping[str, Any]) -> Variant:
    return Variant(
        attention_scale=number(values, "query_pre_attn_scalar", _QUERY_SCALAR) ** -0.5,
        attention_softcap=_softcap(values, "attn_logit_softcapping", _ATTENTION_SOFTCAP),
        logit_softcap=_softcap(values, "final_logit_softcapping", _LOGIT_SOFTCAP),
    )


def _third_variant(_facts: ModelFacts, values: Mapping[str, Any]) -> Variant:
    return Variant(
        attention_scale=number(values, "query_pre_attn_scalar", _QUERY_SCALAR) ** -0.5,
        logit_softcap=_softcap(values, "final_logit_softcapping", None),
    )


def _softcap(values: Mapping[str, Any], key: str, absent: float | None) -> float | None:
    """A cap that ``null`` takes away."""
    if key not in values:
        return absent
    return None if values[key] is None else number(values, key)


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
GEMMA2 = replace(
    GEMMA,
    architectures=("Gemma2ForCausalLM",),
    names=_NAMES,
    activation_key="hidden_activation",
    windows=windows_but_each(2, None, _WINDOW),
    variant=_second_variant,
)
GEMMA3 = replace(
    GEMMA2,
    architectures=("Gemma3ForCausalLM",),
    qk_norm=True,
    windows=windows_but_each(6, "sliding_window_pattern", _WINDOW),
    # transformers reads a cap of scores and does not apply it.
    required={**GEMMA.required, "attn_logit_softcapping": (None,)},
    variant=_third_variant,
    ropes=ropes_by_type(1e6, "rope_local_base_freq", 1e4),
)
GEMMA3_SEEING = replace(
    GEMMA3,
    architectures=("Gemma3ForConditionalGeneration",),
    # As transformers has them in memory, and as published checkpoints have them.
    names=replace(
        _NAMES,
        spellings=(
            ("model.", "model.language_model."),
            ("model.", "language_model.model."),
            ("lm_head.", "language_model.lm_head."),
        ),
    ),
    # Here, it does not apply a cap of logits either.
    required={**GEMMA3.required, "final_logit_softcapping": (None,)},
)
