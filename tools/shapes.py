"""Models to measure with: their `config.json` by shape, and directories that have no weights. Knows no
executor and no server: what runs a shape draws its weights."""

from __future__ import annotations

import itertools
import json
import shutil
import struct
from pathlib import Path
from typing import Any

#: Whose tokenizer a written model gets.
_DEMO_DIRECTORY = Path(__file__).parent.parent / "python" / "inflight" / "demo"

#: Keys of `config.json` by shape.
SHAPES: dict[str, dict[str, Any]] = {
    # To try a tool without a GPU.
    "tiny": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 2048,
        "max_position_embeddings": 4096,
    },
    "small": {
        "num_hidden_layers": 16,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "intermediate_size": 2816,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    "1b": {
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "max_position_embeddings": 4096,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
    },
    "8b": {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
    },
}

SHAPES |= {
    # Qwen3-30B-A3B's.
    "30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "vocab_size": 151936,
        "max_position_embeddings": 8192,
        "rope_theta": 1000000.0,
    },
    # Mixtral-8x7B's, 93 GB in 16 bits.
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "max_position_embeddings": 8192,
        "rope_theta": 1000000.0,
    },
    # As published, but for the longest sequence.
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "quantization_config": {"quant_method": "mxfp4"},
        "vocab_size": 201088,
        "max_position_embeddings": 8192,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    # DeepSeek-V2-Lite's.
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_hidden_layers": 27,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 102400,
        "max_position_embeddings": 8192,
    },
    # Gemma-3-4B's language model.
    "gemma-3-4b": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "hidden_size": 2560,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "intermediate_size": 10240,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "vocab_size": 262208,
        "max_position_embeddings": 8192,
    },
}
# Half the layers, so that it fits one GPU of 80 GB in 16 bits.
SHAPES["mixtral-half"] = {**SHAPES["mixtral"], "num_hidden_layers": 16}

#: How random weights are quantized, as `quantization_config` says it.
QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
}


def write_config(shape: str, directory: Path, quantization: str | None = None) -> None:
    """A ``config.json`` of ``shape`` in ``directory``; enough for random weights."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SHAPES[shape]}
    if quantization is not None:
        config["quantization_config"] = QUANTIZATIONS[quantization]
    (directory / "config.json").write_text(json.dumps(config))


def write_model(shape: str, directory: Path) -> None:
    """A directory that `inflight serve` takes: no weights, and a tokenizer with a word for every id."""
    directory.mkdir(parents=True, exist_ok=True)
    write_config(shape, directory)
    for name in ("tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(_DEMO_DIRECTORY / name, directory / name)
    tokenizer = json.loads((_DEMO_DIRECTORY / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    taken = {*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    words = (
        "\u0120" + "".join(letters)  # the byte-level space before a word
        for length in (4, 5)
        for letters in itertools.product("etaoinshrdlu", repeat=length)
    )
    free = (word for word in words if word not in vocabulary)
    for token in range(SHAPES[shape]["vocab_size"]):
        if token not in taken:
            vocabulary[next(free)] = token
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", 8) + b"{}      ")
