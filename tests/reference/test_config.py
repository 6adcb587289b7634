"""Configuration keys of both transformers lines, and what is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.errors import UserMistake
from inflight.executors.reference.core.options import parse_options, settle_rope
from inflight.executors.reference.errors import CheckpointError, UnsupportedModelError
from inflight.executors.reference.model.config import RopeConfig, load_config, parse_config
from inflight.executors.reference.model.rope import inverse_frequencies, turn_scales

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
MISTRAL: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "sliding_window": 8}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


#: Phi-4-mini's keys, small.
PHI: dict[str, Any] = LLAMA | {
    "architectures": ["Phi3ForCausalLM"],
    "partial_rotary_factor": 0.75,
    "max_position_embeddings": 256,
    "original_max_position_embeddings": 32,
    "rope_scaling": {"type": "longrope", "short_factor": [1, 1.5, 2], "long_factor": [1, 3, 5]},
}


DEEPSEEK: dict[str, Any] = LLAMA | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "kv_lora_rank": 6,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
}


def test_parts_of_heads_turn_by_the_factors_of_the_longest_sequence() -> None:
    for name in ("longrope", "su"):
        config = parse_config(PHI | {"rope_scaling": {**PHI["rope_scaling"], "type": name}})
        turned = [settle_rope(config, parse_options({"max_seq_len": longest})).rope for longest in (32, 33)]
        assert turned[1] == config.rope
        short, long = (inverse_frequencies(rope, 8) for rope in turned)
        base = 10000.0 ** -(np.arange(3) / 3)
        np.testing.assert_allclose(short, [*(base / [1, 1.5, 2]), 0], rtol=1e-6)
        np.testing.assert_allclose(long, [*(base / [1, 3, 5]), 0], rtol=1e-6)
        # What does not turn is not made larger either.
        factor = math.sqrt(1 + math.log(8) / math.log(32))
        np.testing.assert_allclose(turn_scales(config.rope, 8), [factor] * 3 + [1.0], rtol=1e-6)
        assert config.head_order == (0, 1, 2, 6, 3, 4, 5, 7)
        # Four heads of queries, four of keys, and values as they are.
        assert config.row_order(8, 8) == [8, 9, 10, 14, 11, 12, 13, 15]
        assert config.row_order(64, 3) == [64, 65, 66]


def test_sizes_of_latent_attention_are_ignored_by_other_families() -> None:
    keys = {key: DEEPSEEK[key] for key in DEEPSEEK if key.startswith(("kv_", "qk_", "v_"))}
    assert parse_config(LLAMA | keys) == parse_config(LLAMA)


def test_absent_keys_take_the_defaults_of_transformers() -> None:
    config = parse_config(LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.max_position_embeddings) == (4, 8, 2048)
    assert config.rope == RopeConfig(theta=10000.0)
    assert config.norm_epsilon == 1e-6
    assert config.windows == (None, None, None)
    assert not config.tie_word_embeddings
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (False, False, False)


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"rope_theta": 5e5}, RopeConfig(5e5)),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, RopeConfig(5e5)),
        ({"rope_theta": 5e5, "rope_scaling": None}, RopeConfig(5e5)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, RopeConfig(1e4, "linear", 2.0)),
        (
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2}},
            RopeConfig(5e5, "linear", 2.0),
        ),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, RopeConfig(5e5, "llama3", 8.0, 1.0, 4.0, 8192)),
        ({"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, RopeConfig(5e5, "llama3", 8.0, 1.0, 4.0, 8192)),
    ],
)
def test_rotary_embedding_in_old_and_new_keys(keys: dict[str, Any], rope: RopeConfig) -> None:
    assert parse_config(LLAMA | keys).rope == rope


@pytest.mark.parametrize(
    ("keys", "windows"),
    [
        ({"architectures": ["LlamaForCausalLM"], "sliding_window": 8}, (None, None, None)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, (None, None, None)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 8}, (8, 8, 8)),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 8}, (None, None, None)),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 8,
                "use_sliding_window": True,
                "max_window_layers": 2,
            },
            (None, None, 8),
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (8, None, 8),
        ),
    ],
)
def test_sliding_windows_by_layer(keys: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert parse_config(LLAMA | keys).windows == windows


@pytest.mark.parametrize(
    ("keys", "biases"),
    [
        ({"attention_bias": True, "mlp_bias": True}, (True, True, True)),
        ({"architectures": ["MistralForCausalLM"], "attention_bias": True}, (False, False, False)),
        ({"architectures": ["Qwen2ForCausalLM"]}, (True, False, False)),
        ({"architectures": ["Qwen3ForCausalLM"], "attention_bias": True}, (True, True, False)),
    ],
)
def test_biases_by_architecture(keys: dict[str, Any], biases: tuple[bool, bool, bool]) -> None:
    config = parse_config(LLAMA | keys)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == biases


def test_the_architecture_may_come_from_the_model_type() -> None:
    values = {key: value for key, value in LLAMA.items() if key != "architectures"}
    assert parse_config(values | {"model_type": "qwen3"}).architecture == "Qwen3ForCausalLM"


@pytest.mark.parametrize(
    ("keys", "kind", "words"),
    [
        (
            {"architectures": ["FalconForCausalLM"]},
            UnsupportedModelError,
            ["FalconForCausalLM", "Qwen3ForCausalLM"],
        ),
        ({"architectures": [], "model_type": "mamba"}, UnsupportedModelError, ["mamba"]),
        ({"quantization_config": {"quant_method": "gptq"}}, UnsupportedModelError, ["quantization_config"]),
        ({"hidden_act": "gelu"}, UnsupportedModelError, ["hidden_act", "gelu", "silu"]),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, UnsupportedModelError, ["dynamic", "llama3"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 0}}, CheckpointError, ["factor", "positive"]),
        (
            {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4},
            CheckpointError,
            ["num_experts_per_tok", "1 to 4"],
        ),
        (
            DEEPSEEK | {"num_experts_per_tok": 5, "n_group": 2, "topk_group": 1, "n_routed_experts": 8},
            CheckpointError,
            ["num_experts_per_tok", "1 to 4"],
        ),
        (DEEPSEEK | {"n_group": 3}, CheckpointError, ["n_group", "divisor", "4"]),
        (DEEPSEEK | {"topk_method": "best"}, UnsupportedModelError, ["topk_method", "`best`", "noaux_tc"]),
        (DEEPSEEK | {"scoring_func": "softmax"}, UnsupportedModelError, ["scoring_func", "noaux_tc"]),
        (DEEPSEEK | {"kv_lora_rank": None}, CheckpointError, ["kv_lora_rank", "missing"]),
        (DEEPSEEK | {"qk_rope_head_dim": 3}, CheckpointError, ["qk_rope_head_dim", "even"]),
        (DEEPSEEK | {"kv_lora_rank": 0}, CheckpointError, ["kv_lora_rank", "positive integer"]),
        (DEEPSEEK | {"attention_bias": True}, UnsupportedModelError, ["attention_bias"]),
        ({"rope_theta": 1, "rope_scaling": {"type": "yarn"}}, CheckpointError, ["rope_theta", "yarn"]),
        (
            {"rope_scaling": {"type": "longrope"}},
            CheckpointError,
            ["original_max_position_embeddings", "missing"],
        ),
        (PHI | {"partial_rotary_factor": 0.4}, CheckpointError, ["partial_rotary_factor", "`8` numbers"]),
        (PHI | {"partial_rotary_factor": 0.5}, CheckpointError, ["short_factor", "2 numbers"]),
        (
            PHI | {"quantization_config": {"quant_method": "fp8"}},
            UnsupportedModelError,
            ["partial_rotary_factor", "unquantized"],
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, UnsupportedModelError, ["layer type"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, UnsupportedModelError, ["partial_rotary"]),
        ({"partial_rotary_factor": 0.5}, UnsupportedModelError, ["partial_rotary_factor"]),
        ({"num_hidden_layers": 10**15}, CheckpointError, ["num_hidden_layers", "100000"]),
        ({"rope_theta": 10**400}, CheckpointError, ["rope_theta", "positive number"]),
        (
            {
                "architectures": ["MistralForCausalLM"],
                "sliding_window": 8,
                "layer_types": ["full_attention"] * 3,
            },
            UnsupportedModelError,
            ["layer_types"],
        ),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["chunked_attention"] * 3,
            },
            UnsupportedModelError,
            ["chunked_attention"],
        ),
        ({"rope_scaling": "linear"}, CheckpointError, ["rope_scaling"]),
        ({"rope_scaling": {"type": "linear"}}, CheckpointError, ["factor", "missing"]),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, CheckpointError, ["high_freq_factor"]),
        ({"vocab_size": None}, CheckpointError, ["vocab_size", "missing"]),
        ({"hidden_size": "32"}, CheckpointError, ["hidden_size", "32"]),
        ({"hidden_size": 30}, CheckpointError, ["hidden_size", "num_attention_heads"]),
        ({"num_attention_heads": 0}, CheckpointError, ["num_attention_heads"]),
        ({"num_key_value_heads": 3}, CheckpointError, ["num_key_value_heads", "3"]),
        ({"head_dim": 7}, CheckpointError, ["head_dim", "even"]),
        ({"rms_norm_eps": -1.0}, CheckpointError, ["rms_norm_eps"]),
        ({"tie_word_embeddings": "yes"}, CheckpointError, ["tie_word_embeddings"]),
        ({"num_hidden_layers": True}, CheckpointError, ["num_hidden_layers"]),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    keys: dict[str, Any], kind: type[UserMistake], words: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        parse_config(LLAMA | keys)
    for word in words:
        assert word in f"{caught.value.what}; {caught.value.remedy}"
    assert caught.value.remedy


@pytest.mark.parametrize("content", [None, b"{", b"[]", b"\xff\xfe"])
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_config(tmp_path)


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert load_config(tmp_path) == parse_config(LLAMA)
