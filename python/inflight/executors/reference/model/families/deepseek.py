"""DeepSeek V2 and V3, and what has their architecture: latent attention, and mixtures with shared experts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from inflight.executors.reference.model.mixture import parse_mixture

from .family import Family, Names

_NAMES = Names(
    router="mlp.gate",
    expert="mlp.experts.{}",
    shared_expert="mlp.shared_experts",
    dense="mlp",
    choice_bias="mlp.gate.e_score_correction_bias",
    gate_up=("gate_proj", "up_proj"),
    down="down_proj",
)

DEEPSEEK_V2 = Family(
    ("DeepseekV2ForCausalLM",),
    _NAMES,
    # Its own code divides the shares before they are scaled, transformers does not.
    required={
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "moe_layer_freq": (1,),
        "norm_topk_prob": (False, None),
    },
    latent=True,
    mixture=partial(parse_mixture, method="greedy"),
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    architectures=("DeepseekV3ForCausalLM",),
    required={
        "attention_bias": (False,),
        "moe_layer_freq": (1,),
        "rope_interleave": (True, None),
    },
    mixture=partial(parse_mixture, method="noaux_tc"),
)
