"""Model configuration: Hugging Face `config.json` to the values the forward pass needs.

Owns the key names of transformers 4.x and 5.x and their defaults, per architecture. Knows nothing of
weights or arrays. Whatever would change the logits and is not implemented is refused by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CheckpointError, UnsupportedModelError

#: Architecture names of `config.json` that the forward pass implements.
SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

#: Rotary scaling by name; the empty remainder (dynamic, yarn, longrope, ...) is refused.
SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")

_ARCHITECTURE_OF_MODEL_TYPE = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

_DEFAULT_ROPE_THETA = 10000.0

#: Far above any model, so that a damaged number cannot ask for all memory.
_MOST_LAYERS = 100_000


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding; the last four fields have meaning for scaled types only."""

    theta: float
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the forward pass needs to know of a Llama-family model."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    #: RMS norm of each query and key head before the rotary embedding (Qwen3).
    qk_norm: bool
    #: Per layer: how many of the latest positions a query sees, itself included; None: all.
    windows: tuple[int | None, ...]


def load_config(model_dir: Path) -> ModelConfig:
    """Reads ``config.json`` of a checkpoint directory. Errors: `CheckpointError`, `UnsupportedModelError`."""
    path = model_dir / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"`{path}` does not exist",
            "give a Hugging Face checkpoint directory with config.json and safetensors",
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"`{path}` cannot be read: {error}", "fetch the checkpoint again") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"`{path}` does not hold a JSON object", "fetch the checkpoint again")
    return parse_config(values)


def parse_config(values: Mapping[str, Any]) -> ModelConfig:
    """The configuration in ``values``, the object of a ``config.json``."""
    architecture = _architecture(values)
    if values.get("quantization_config") is not None:
        raise UnsupportedModelError(
            "the checkpoint is quantized (config key `quantization_config`)",
            "use the unquantized checkpoint with the reference executor",
        )
    activation = values.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModelError(
            f"config key `hidden_act` is `{activation}`", "the reference executor implements `silu` only"
        )

    hidden_size = _integer(values, "hidden_size")
    num_layers = _integer(values, "num_hidden_layers")
    if num_layers > _MOST_LAYERS:
        raise _bad("num_hidden_layers", num_layers, f"at most {_MOST_LAYERS}")
    num_heads = _integer(values, "num_attention_heads")
    num_kv_heads = _integer(values, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise _bad("num_key_value_heads", num_kv_heads, f"a divisor of num_attention_heads ({num_heads})")
    if values.get("head_dim") is None and hidden_size % num_heads:
        raise _bad("hidden_size", hidden_size, f"a multiple of num_attention_heads ({num_heads})")
    # Qwen3's own default is not hidden_size / heads, so that an absent key must not be guessed from it.
    default_head_dim = 128 if architecture == "Qwen3ForCausalLM" else hidden_size // num_heads
    head_dim = _integer(values, "head_dim", default_head_dim)
    if head_dim % 2:
        raise _bad("head_dim", head_dim, "an even number")
    max_positions = _integer(values, "max_position_embeddings", 2048)

    is_qwen2 = architecture == "Qwen2ForCausalLM"
    takes_bias = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")
    attention_bias = takes_bias and _flag(values, "attention_bias", False)
    return ModelConfig(
        architecture=architecture,
        vocab_size=_integer(values, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_integer(values, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        rms_norm_eps=_number(values, "rms_norm_eps", 1e-6),
        rope=_rope(values, max_positions),
        tie_word_embeddings=_flag(values, "tie_word_embeddings", False),
        qkv_bias=attention_bias or is_qwen2,
        output_bias=attention_bias,
        mlp_bias=architecture == "LlamaForCausalLM" and _flag(values, "mlp_bias", False),
        qk_norm=architecture == "Qwen3ForCausalLM",
        windows=_windows(values, architecture, num_layers),
    )


def _architecture(values: Mapping[str, Any]) -> str:
    named = values.get("architectures")
    if isinstance(named, list) and named:
        architecture = str(named[0])
    else:
        model_type = str(values.get("model_type", "unknown"))
        architecture = _ARCHITECTURE_OF_MODEL_TYPE.get(model_type, model_type)
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise UnsupportedModelError(
            f"architecture `{architecture}` is not implemented by the reference executor",
            f"use one of {', '.join(SUPPORTED_ARCHITECTURES)}, or the tensorrt_llm executor",
        )
    return architecture


def _rope(values: Mapping[str, Any], max_positions: int) -> RopeConfig:
    """transformers 5 keeps all in ``rope_parameters``; 4 has ``rope_theta`` beside ``rope_scaling``."""
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(values.get(key), (dict, type(None))):
            raise _bad(key, values[key], "an object")
    parameters: Mapping[str, Any] = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if any(isinstance(value, dict) for value in parameters.values()):
        raise UnsupportedModelError(
            "config key `rope_parameters` differs by layer type", "use a model with one rotary embedding"
        )
    partial = parameters.get("partial_rotary_factor", values.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise UnsupportedModelError(
            f"config key `partial_rotary_factor` is `{partial}`",
            "the reference executor rotates whole heads only",
        )
    rope_type = str(parameters.get("rope_type", parameters.get("type", "default")))
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise UnsupportedModelError(
            f"rotary scaling `{rope_type}` is not implemented by the reference executor",
            f"use a checkpoint with one of {', '.join(SUPPORTED_ROPE_TYPES)}",
        )
    theta = _number(parameters, "rope_theta", _number(values, "rope_theta", _DEFAULT_ROPE_THETA))
    if rope_type == "default":
        return RopeConfig(theta=theta)
    factor = _number(parameters, "factor")
    if rope_type == "linear":
        return RopeConfig(theta=theta, rope_type=rope_type, factor=factor)
    low = _number(parameters, "low_freq_factor")
    high = _number(parameters, "high_freq_factor")
    if high <= low:
        raise _bad("high_freq_factor", high, f"more than low_freq_factor ({low})")
    return RopeConfig(
        theta=theta,
        rope_type=rope_type,
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=_integer(
            parameters, "original_max_position_embeddings", max_positions
        ),
    )


def _windows(values: Mapping[str, Any], architecture: str, num_layers: int) -> tuple[int | None, ...]:
    """Sliding windows by layer: Mistral slides everywhere, Qwen where told, Llama nowhere."""
    if architecture == "LlamaForCausalLM" or values.get("sliding_window") is None:
        return (None,) * num_layers
    if architecture == "MistralForCausalLM":
        if values.get("layer_types") is not None:
            raise UnsupportedModelError(
                "config key `layer_types` is set on a MistralForCausalLM",
                "the reference executor slides on every Mistral layer; use a checkpoint without the key",
            )
        return (_integer(values, "sliding_window"),) * num_layers
    if not _flag(values, "use_sliding_window", False):
        return (None,) * num_layers
    window = _integer(values, "sliding_window")
    layer_types = values.get("layer_types")
    if layer_types is None:
        first = _integer(values, "max_window_layers", 28, minimum=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise _bad("layer_types", layer_types, f"a list of {num_layers} names")
    for layer_type in layer_types:
        if layer_type not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(
                f"layer type `{layer_type}` is not implemented by the reference executor",
                "use a checkpoint of `full_attention` and `sliding_attention` layers",
            )
    return tuple(window if layer_type == "sliding_attention" else None for layer_type in layer_types)


def _bad(key: str, value: object, expected: str) -> CheckpointError:
    return CheckpointError(f"config key `{key}` is `{value}`", f"it must be {expected}")


def _integer(values: Mapping[str, Any], key: str, default: int | None = None, minimum: int = 1) -> int:
    value = values.get(key)
    if value is None:
        if default is None:
            raise CheckpointError(
                f"config key `{key}` is missing", "fetch the checkpoint's config.json again"
            )
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise _bad(key, value, f"an integer of at least {minimum}")
    return value


def _number(values: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = values.get(key)
    if value is None:
        if default is None:
            raise CheckpointError(
                f"config key `{key}` is missing", "fetch the checkpoint's config.json again"
            )
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
        raise _bad(key, value, "a positive number")
    return float(value)


def _flag(values: Mapping[str, Any], key: str, default: bool) -> bool:
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _bad(key, value, "true or false")
    return value
