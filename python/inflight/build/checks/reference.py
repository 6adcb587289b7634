"""Whether the reference executor loads a checkpoint, told from its config and its headers alone.

Owns which tensors that executor's loader asks for and in which shapes, so that a refusal comes before a
weight is read or written. What a config may say is the executor's own reader's; NumPy is not imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inflight.errors import Problem
from inflight.executors.reference.config import ModelConfig, parse_config
from inflight.executors.reference.errors import ModelError
from inflight.model.checkpoint import Checkpoint
from inflight.model.shards import DTYPE_BYTES, Tensor

#: Types that are widened to float32, by the bytes of an element.
FLOATS = {name: DTYPE_BYTES[name] for name in ("F64", "F32", "F16", "BF16")}


def check_config(config: Mapping[str, Any]) -> Problem | None:
    """What of a `config.json` that executor does not implement; None: nothing."""
    try:
        parse_config(config)
    except ModelError as error:
        return Problem(error.problem, error.remedy)
    return None


def check_tensors(checkpoint: Checkpoint) -> Problem | None:
    """The first tensor that the loader would miss or refuse; None: it has all. The config must be sound."""
    found: dict[str, Tensor] = {
        tensor.name: tensor for shard in checkpoint.shards for tensor in shard.tensors
    }
    for name, shape in required_tensors(parse_config(checkpoint.config)):
        tensor = found.get(name)
        if tensor is None:
            return Problem(
                f"tensor `{name}` is missing from the checkpoint",
                "check that config.json belongs to these weights",
            )
        if tensor.shape != shape:
            return Problem(
                f"tensor `{name}` has shape `{list(tensor.shape)}` where config.json implies `{list(shape)}`",
                "check that config.json belongs to these weights",
            )
        if tensor.dtype not in FLOATS:
            return Problem(
                f"tensor `{name}` has dtype `{tensor.dtype}`",
                "use a checkpoint in F32, F16 or BF16 with the reference executor",
            )
    return None


def required_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor that the executor's loader asks for."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{norm}.weight", (hidden,)
        if config.qk_norm:
            for norm in ("q_norm", "k_norm"):
                yield f"{prefix}.self_attn.{norm}.weight", (config.head_dim,)
        for part, has_bias, outputs, inputs in (
            ("self_attn.q_proj", config.qkv_bias, queries, hidden),
            ("self_attn.k_proj", config.qkv_bias, keys, hidden),
            ("self_attn.v_proj", config.qkv_bias, keys, hidden),
            ("self_attn.o_proj", config.output_bias, hidden, queries),
            ("mlp.gate_proj", config.mlp_bias, inner, hidden),
            ("mlp.up_proj", config.mlp_bias, inner, hidden),
            ("mlp.down_proj", config.mlp_bias, hidden, inner),
        ):
            yield f"{prefix}.{part}.weight", (outputs, inputs)
            if has_bias:
                yield f"{prefix}.{part}.bias", (outputs,)
