"""`config.json` of a Hugging Face checkpoint, parsed: architecture, sizes, precision.

Owns the key names that model families use, and what a family's config leaves out. To add a family, add a row
to `CONVENTIONS`; what an executor computes with it is the executor's. Reads no file and knows nothing of
runtimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight.errors import CheckpointError
from inflight.model.latent import Latent, parse_latent
from inflight.model.quantization import Quantization, parse_quantization
from inflight.model.shards import DTYPE_NAMES, Shard
from inflight.model.values import MAXIMUM, REMEDY, bad_value, flag, integer, missing_key


@dataclass(frozen=True)
class Convention:
    """What an architecture's `config.json` does not say."""

    #: For a config without `architectures`.
    model_type: str | None = None
    #: Whether the MLP has a gate, that is a third matrix.
    gated_mlp: bool = True
    #: Whether the model has one vector per position.
    learned_positions: bool = False
    #: Whether input and output embeddings are one matrix unless the config says otherwise.
    tied: bool = False
    #: Size of a head if the config has none; None: `hidden_size` shared by the heads.
    head_dim: int | None = None
    #: Fact -> its key here, where the usual keys are of another part of the model, or none states it.
    keys: Mapping[str, str] = field(default_factory=dict)
    #: Fact -> what it is where no key states it: published configs of some leave out keys.
    defaults: Mapping[str, int] = field(default_factory=dict)


#: Architecture -> its own. One that is not listed gets the defaults of `Convention`.
CONVENTIONS: Mapping[str, Convention] = {
    "BaiChuanForCausalLM": Convention(),
    "BaichuanForCausalLM": Convention("baichuan"),
    "BartForConditionalGeneration": Convention("bart", gated_mlp=False, learned_positions=True),
    "DeepseekV2ForCausalLM": Convention("deepseek_v2"),
    "DeepseekV3ForCausalLM": Convention("deepseek_v3"),
    "FalconForCausalLM": Convention(gated_mlp=False),
    "GPT2LMHeadModel": Convention("gpt2", gated_mlp=False, learned_positions=True, tied=True),
    "GPTBigCodeForCausalLM": Convention(gated_mlp=False, learned_positions=True, tied=True),
    "GPTJForCausalLM": Convention(gated_mlp=False),
    "Gemma2ForCausalLM": Convention("gemma2", tied=True, head_dim=256),
    "Gemma3ForCausalLM": Convention("gemma3_text", tied=True, head_dim=256),
    # transformers 4 writes of a nested `text_config` only what differs from its defaults.
    "Gemma3ForConditionalGeneration": Convention(
        "gemma3",
        tied=True,
        head_dim=256,
        defaults={
            "vocab_size": 262_208,
            "num_heads": 8,
            "num_kv_heads": 4,
            "max_position_embeddings": 131_072,
        },
    ),
    "GemmaForCausalLM": Convention("gemma", tied=True, head_dim=256),
    "GptOssForCausalLM": Convention("gpt_oss", head_dim=64),
    "LlamaForCausalLM": Convention("llama"),
    "MBartForConditionalGeneration": Convention(gated_mlp=False, learned_positions=True),
    "MistralForCausalLM": Convention("mistral"),
    "MixtralForCausalLM": Convention("mixtral"),
    "Phi3ForCausalLM": Convention("phi3"),
    "PhiForCausalLM": Convention(gated_mlp=False),
    "Qwen2ForCausalLM": Convention("qwen2"),
    "Qwen2_5_VLForConditionalGeneration": Convention("qwen2_5_vl"),
    "Qwen3ForCausalLM": Convention("qwen3", head_dim=128),
    "Qwen3MoeForCausalLM": Convention("qwen3_moe", head_dim=128),
    "Starcoder2ForCausalLM": Convention(gated_mlp=False),
    "T5ForConditionalGeneration": Convention("t5", tied=True),
    # The usual keys are the encoder's.
    "WhisperForConditionalGeneration": Convention(
        "whisper",
        gated_mlp=False,
        learned_positions=True,
        tied=True,
        keys={
            "num_layers": "decoder_layers",
            "num_heads": "decoder_attention_heads",
            "intermediate_size": "decoder_ffn_dim",
            "max_position_embeddings": "max_target_positions",
        },
    ),
}
_OF_MODEL_TYPE = {one.model_type: name for name, one in CONVENTIONS.items() if one.model_type}

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
}


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
    #: None: the config states no bound, as with relative positions.
    max_position_embeddings: int | None
    num_experts: int = 0
    experts_per_token: int = 0
    is_encoder_decoder: bool = False
    encoder_layers: int = 0
    tie_word_embeddings: bool = False
    gated_mlp: bool = True
    learned_positions: bool = False
    #: The format of a checkpoint that is quantized already, by its own name; and the scheme.
    quantized: str | None = None
    quantization: Quantization | None = None
    #: Of a mixture: an expert's MLP where it is not of ``intermediate_size``, layers without experts that
    #: come first, and experts of all tokens.
    expert_size: int | None = None
    dense_layers: int = 0
    shared_experts: int = 0
    #: None: keys and values of all heads are cached.
    latent: Latent | None = None


def parse_config(config: Mapping[str, Any], shards: tuple[Shard, ...] = ()) -> ModelFacts:
    """The facts in the object of a `config.json`. Raises `CheckpointError` for a key that cannot be right.

    `shards` state the precision where the config does not.
    """
    architecture = find_architecture(config)
    convention = CONVENTIONS.get(architecture, Convention())
    values = {**text_values(config)}
    for fact, own in convention.keys.items():
        values[KEYS[fact][0]] = integer(values, own, maximum=MAXIMUM)
    for fact, default in convention.defaults.items():
        values[KEYS[fact][0]] = size(values, fact) or default
    # ChatGLM and Falcon spell the group size next to a switch.
    multi_query = values.get("multi_query") is True and values.get("num_kv_heads") is None
    hidden_size = stated(values, "hidden_size")
    num_heads = stated(values, "num_heads")
    num_kv_heads = 1 if multi_query else size(values, "num_kv_heads") or num_heads
    if num_heads % num_kv_heads:
        raise bad_value(
            _key(values, "num_kv_heads"), num_kv_heads, f"a divisor of the number of heads ({num_heads})"
        )
    head_dim = size(values, "head_dim") or convention.head_dim
    if head_dim is None and hidden_size % num_heads:
        raise bad_value(
            _key(values, "hidden_size"),
            hidden_size,
            f"a multiple of {_key(values, 'num_heads')} ({num_heads})",
        )
    gated = convention.gated_mlp
    if architecture == "T5ForConditionalGeneration":
        gated = str(values.get("feed_forward_proj", "relu")).startswith("gated")
    encoder_decoder = values.get("is_encoder_decoder") is True
    quantization = parse_quantization(values)
    return ModelFacts(
        architecture=architecture,
        model_type=str(config.get("model_type", "unknown")),
        dtype=_dtype(values, shards),
        vocab_size=stated(values, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(values) or 4 * hidden_size,
        num_layers=_num_layers(values, encoder_decoder=encoder_decoder),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim or hidden_size // num_heads,
        max_position_embeddings=size(values, "max_position_embeddings"),
        num_experts=size(values, "num_experts") or 0,
        experts_per_token=size(values, "experts_per_token") or 0,
        is_encoder_decoder=encoder_decoder,
        encoder_layers=(size(values, "encoder_layers") or 0) if encoder_decoder else 0,
        tie_word_embeddings=flag(values, "tie_word_embeddings", convention.tied),
        gated_mlp=gated,
        learned_positions=convention.learned_positions,
        quantized=None if quantization is None else quantization.name,
        quantization=quantization,
        expert_size=_optional(values, "moe_intermediate_size"),
        dense_layers=_optional(values, "first_k_dense_replace") or 0,
        shared_experts=_optional(values, "n_shared_experts") or 0,
        latent=parse_latent(values),
    )


def text_values(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of the language model: those of a nested `text_config` over the outer ones."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


def find_architecture(config: Mapping[str, Any]) -> str:
    """The architecture that the config names, or the one that its `model_type` implies."""
    named = config.get("architectures")
    if isinstance(named, list) and named:
        return str(named[0])
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError("`config.json` names neither `architectures` nor `model_type`", REMEDY)
    return _OF_MODEL_TYPE.get(model_type, model_type)


def size(values: Mapping[str, Any], fact: str) -> int | None:
    """A fact of `KEYS` under whichever key states it; None: none does."""
    key = _key(values, fact)
    if values.get(key) is None:
        return None
    # "Any length" is written as a huge number of positions.
    maximum = 2**63 - 1 if fact == "max_position_embeddings" else MAXIMUM
    return integer(values, key, maximum=maximum)


def stated(values: Mapping[str, Any], fact: str) -> int:
    """A fact that the config must state."""
    value = size(values, fact)
    if value is None:
        raise missing_key(*KEYS[fact])
    return value


def _optional(values: Mapping[str, Any], key: str) -> int | None:
    return None if values.get(key) is None else integer(values, key, minimum=0, maximum=MAXIMUM)


def _key(values: Mapping[str, Any], fact: str) -> str:
    """The key that states the fact here; the usual one where none does."""
    return next((key for key in KEYS[fact] if values.get(key) is not None), KEYS[fact][0])


def _intermediate_size(values: Mapping[str, Any]) -> int | None:
    """Of an expert, where every layer is a mixture of them."""
    if values.get("moe_intermediate_size") is not None and _is_all_experts(values):
        return integer(values, "moe_intermediate_size", maximum=MAXIMUM)
    return size(values, "intermediate_size")


def _is_all_experts(values: Mapping[str, Any]) -> bool:
    return not values.get("mlp_only_layers") and not values.get("first_k_dense_replace")


def _num_layers(values: Mapping[str, Any], *, encoder_decoder: bool) -> int:
    layers = stated(values, "num_layers")
    if encoder_decoder:
        # T5 has `num_layers` of the encoder and `num_decoder_layers`, absent where they are the same.
        layers = integer(values, "num_decoder_layers", layers)
    return layers


def _dtype(values: Mapping[str, Any], shards: tuple[Shard, ...]) -> str:
    """`dtype` is transformers 5, `torch_dtype` 4; older configs have neither, and the weights decide."""
    named = values.get("dtype", values.get("torch_dtype"))
    if isinstance(named, str):
        return named.removeprefix("torch.")
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.dtype in DTYPE_NAMES:
                return DTYPE_NAMES[tensor.dtype]
    return "float32"
