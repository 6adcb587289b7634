"""gpt-oss: experts with biases, every second layer with a window, and heads that may attend to nothing."""

from __future__ import annotations

from .family import SWIGLU_ALPHA, SWIGLU_LIMIT, Family, Names
from .windows import windows_but_each

#: What transformers assumes where the config states none.
_WINDOW = 128

GPT_OSS = Family(
    ("GptOssForCausalLM",),
    Names(
        router="mlp.router",
        expert="mlp.experts",
        gate_up=("gate_up_proj",),
        down="down_proj",
        stacked_experts=True,
        sink_scores="self_attn.sinks",
    ),
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    router_bias=True,
    windows=windows_but_each(2, None, _WINDOW),
    epsilon=1e-5,
    activations={"silu": "clamped_swiglu"},
    required={
        "attention_bias": (True,),
        "swiglu_limit": (SWIGLU_LIMIT,),
        "swiglu_alpha": (SWIGLU_ALPHA,),
    },
)
