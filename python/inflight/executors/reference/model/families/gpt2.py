"""GPT-2: learned positions, layer norms, an MLP without a gate, and matrices stored the other way round."""

from __future__ import annotations

from .family import Family, Names

GPT2 = Family(
    ("GPT2LMHeadModel",),
    Names(
        embedding="transformer.wte",
        positions="transformer.wpe",
        final_norm="transformer.ln_f",
        layer="transformer.h.{}",
        input_norm="ln_1",
        qkv=("attn.c_attn",),
        output="attn.c_proj",
        post_norm="ln_2",
        gate_up=("mlp.c_fc",),
        down="mlp.c_proj",
        transposed=True,
        optional_prefix="transformer.",
    ),
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    norm="layer",
    epsilon_key="layer_norm_epsilon",
    epsilon=1e-5,
    activation_key="activation_function",
    activation="gelu_new",
    activations={"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"},
    required={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
)
