"""Whisper: a decoder with learned positions and layer norms, whose layers attend to an encoded clip."""

from __future__ import annotations

from inflight.executors.reference.model.hearing import NORM_EPSILON, parse_hearing

from .family import Family, Names

WHISPER = Family(
    ("WhisperForConditionalGeneration",),
    Names(
        embedding="model.decoder.embed_tokens",
        positions="model.decoder.embed_positions",
        final_norm="model.decoder.layer_norm",
        head="proj_out",
        layer="model.decoder.layers.{}",
        input_norm="self_attn_layer_norm",
        output="self_attn.out_proj",
        post_norm="final_layer_norm",
        gate_up=("fc1",),
        down="fc2",
        unbiased=("self_attn.k_proj",),
    ),
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    norm="layer",
    epsilon=NORM_EPSILON,
    activation_key="activation_function",
    activation="gelu",
    activations={"gelu": "gelu"},
    required={"scale_embedding": (False,)},
    hearing=parse_hearing,
)
