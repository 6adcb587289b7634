"""`config.json` of a Hugging Face checkpoint, parsed: architecture, sizes, precision.

Owns the key names that model families use. Reads no file and knows no runtime.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight.errors import UserMistake
from inflight.model.shards import DTYPE_NAMES, Shard

#: `model_type` -> architecture, for a `config.json` that names none.
ARCHITECTURE_OF_MODEL_TYPE: Mapping[str, str] = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "baichuan": "BaichuanForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
}

#: Fact -> the keys that families spell it with, in the order in which they are looked up.
KEYS: Mapping[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"),
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers", "decoder_layers"),
    "num_heads": ("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "d_kv", "kv_channels"),
    "intermediate_size": ("intermediate_size", "n_inner", "d_ff", "ffn_hidden_size", "decoder_ffn_dim"),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "model_max_length",
        "seq_length",
        "max_sequence_length",
    ),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_top_k"),
    "encoder_layers": ("encoder_layers", "num_layers"),
    "moe_intermediate_size": ("moe_intermediate_size",),
}

#: Architectures whose MLP is one product each way; the others gate, with a third matrix.
PLAIN_MLP = frozenset(
    {
        "GPT2LMHeadModel",
        "GPTBigCodeForCausalLM",
        "Starcoder2ForCausalLM",
        "GPTJForCausalLM",
        "PhiForCausalLM",
        "FalconForCausalLM",
        "BartForConditionalGeneration",
        "MBartForConditionalGeneration",
    }
)

#: Architectures that keep one vector per position.
LEARNED_POSITIONS = frozenset(
    {
        "GPT2LMHeadModel",
        "GPTBigCodeForCausalLM",
        "BartForConditionalGeneration",
        "MBartForConditionalGeneration",
    }
)


@dataclass(frozen=True)
class ModelFacts:
    """What `config.json` says of a model, under one name each."""

    architecture: str
    model_type: str
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    #: None: no bound, as with relative positions.
    max_position_embeddings: int | None
    num_experts: int = 0
    experts_per_token: int = 0
    is_encoder_decoder: bool = False
    encoder_layers: int = 0
    tie_word_embeddings: bool = False
    gated_mlp: bool = True
    learned_positions: bool = False
    #: The format of a checkpoint that is quantized already.
    quantized: str | None = None


def parse_config(config: Mapping[str, Any], shards: tuple[Shard, ...] = ()) -> ModelFacts:
    """The facts in the object of a `config.json`; sizes of a nested `text_config` count."""
    architecture = _architecture(config)
    nested = config.get("text_config")
    values = {**config, **nested} if isinstance(nested, dict) else config
    # ChatGLM and Falcon spell the group size beside a switch.
    multi_query = values.get("multi_query") is True and values.get("num_kv_heads") is None
    hidden_size = _needed(values, "hidden_size")
    num_heads = _needed(values, "num_heads")
    num_kv_heads = 1 if multi_query else _integer(values, "num_kv_heads") or num_heads
    if num_heads % num_kv_heads:
        raise UserMistake(
            f"config.json has `{num_kv_heads}` key-value heads, which do not divide `{num_heads}` heads",
            "fetch the checkpoint's `config.json` again",
        )
    gated = architecture not in PLAIN_MLP
    if architecture == "T5ForConditionalGeneration":
        gated = str(values.get("feed_forward_proj", "relu")).startswith("gated")
    encoder_decoder = values.get("is_encoder_decoder") is True
    # T5 has `num_layers` of the encoder and `num_decoder_layers`, absent where they are the same.
    decoder_layers = values.get("num_decoder_layers") if encoder_decoder else None
    return ModelFacts(
        architecture=architecture,
        model_type=str(config.get("model_type", "unknown")),
        dtype=_dtype(values, shards),
        vocab_size=_needed(values, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_integer(values, "intermediate_size") or 4 * hidden_size,
        num_layers=decoder_layers if isinstance(decoder_layers, int) else _needed(values, "num_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_integer(values, "head_dim") or hidden_size // num_heads,
        max_position_embeddings=_integer(values, "max_position_embeddings"),
        num_experts=_integer(values, "num_experts") or 0,
        experts_per_token=_integer(values, "experts_per_token") or 0,
        is_encoder_decoder=encoder_decoder,
        encoder_layers=(_integer(values, "encoder_layers") or 0) if encoder_decoder else 0,
        tie_word_embeddings=values.get("tie_word_embeddings", architecture in _TIED) is True,
        gated_mlp=gated,
        learned_positions=architecture in LEARNED_POSITIONS,
        quantized=_quantized(values),
    )


#: Tied unless their config says otherwise.
_TIED = frozenset(
    {"GPT2LMHeadModel", "GPTBigCodeForCausalLM", "T5ForConditionalGeneration", "GemmaForCausalLM"}
)


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures")
    if isinstance(named, list) and named:
        return str(named[0])
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UserMistake(
            "config.json names neither `architectures` nor `model_type`",
            "give a Hugging Face checkpoint, or fetch its `config.json` again",
        )
    return ARCHITECTURE_OF_MODEL_TYPE.get(model_type, model_type)


def _integer(values: Mapping[str, Any], fact: str) -> int | None:
    for key in KEYS[fact]:
        value = values.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserMistake(
                f"config key `{key}` is `{json.dumps(value)}`, where a positive integer is needed",
                "fetch the checkpoint's `config.json` again",
            )
        return value
    return None


def _needed(values: Mapping[str, Any], fact: str) -> int:
    value = _integer(values, fact)
    if value is None:
        keys = " nor ".join(f"`{key}`" for key in KEYS[fact])
        raise UserMistake(
            f"config.json has neither {keys}" if len(KEYS[fact]) > 1 else f"config.json has no {keys}",
            "fetch the checkpoint's `config.json` again",
        )
    return value


def _dtype(values: Mapping[str, Any], shards: tuple[Shard, ...]) -> str:
    """`dtype` is transformers 5, `torch_dtype` 4; older configs have neither and the weights tell."""
    named = values.get("dtype", values.get("torch_dtype"))
    if isinstance(named, str):
        return named.removeprefix("torch.")
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.dtype in DTYPE_NAMES:
                return DTYPE_NAMES[tensor.dtype]
    return "float32"


def _quantized(values: Mapping[str, Any]) -> str | None:
    quantization = values.get("quantization_config")
    if not isinstance(quantization, dict):
        return None
    for key in ("quant_algo", "quant_method"):
        if isinstance(quantization.get(key), str):
            return str(quantization[key])
    return "unknown"
