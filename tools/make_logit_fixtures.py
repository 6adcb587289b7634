"""Makes the logit fixtures of `tests/reference/fixtures`: tiny random checkpoints with the logits of
Hugging Face transformers.

Owns the shapes and seeds of the fixtures. It needs torch and transformers, which no test does: run it
where they are installed, and commit what it writes.

    python tools/make_logit_fixtures.py tests/reference/fixtures             # transformers 5
    python tools/make_logit_fixtures.py --configs tests/reference/fixtures   # transformers 4

The first form writes checkpoint, `config.json` and `expected.npz` (token ids, logits of every position,
float32). The second writes only `config-4.json`, the same configurations as transformers 4 spells them.
All parameters are drawn anew, biases and norms included, so that no mistake hides behind a zero or a one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Fixture:
    """One checkpoint: the family's class prefix, what differs from `_SHAPE`, and how it is stored."""

    name: str
    family: str
    #: Prompt length; long enough that what the fixture is about changes the logits.
    tokens: int
    storage: str = "bfloat16"
    shard_bytes: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    #: What follows the prefix in the name of the class.
    suffix: str = "ForCausalLM"
    #: The base of layers that slide, where they have another rotary embedding.
    sliding_theta: float | None = None
    #: Of the vision tower, if there is one.
    vision: dict[str, Any] | None = None
    #: What the numbers are drawn with; 0: the fixture's place in the list.
    seed: int = 0


FIXTURES = (
    Fixture("llama", "Llama", 24),
    Fixture(
        "llama_biased_linear_rope",
        "Llama",
        24,
        shard_bytes=12_000,
        config={"attention_bias": True, "mlp_bias": True},
        rope_scaling={"rope_type": "linear", "factor": 4.0},
    ),
    Fixture(
        "llama3_rope",
        "Llama",
        48,
        rope_theta=1000.0,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    Fixture("mistral_window", "Mistral", 40, storage="float16", config={"sliding_window": 8}),
    Fixture("qwen2_tied", "Qwen2", 24, storage="float32", config={"tie_word_embeddings": True}),
    Fixture(
        "qwen2_window",
        "Qwen2",
        40,
        config={"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    Fixture("qwen3", "Qwen3", 24, config={"head_dim": 16}),
    Fixture(
        "gpt2",
        "GPT2",
        24,
        storage="float32",
        config={"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
        suffix="LMHeadModel",
    ),
    Fixture("mixtral", "Mixtral", 24, config={"num_local_experts": 4, "num_experts_per_tok": 2}),
    Fixture("phi3_window", "Phi3", 40, config={"sliding_window": 8, "pad_token_id": 0}),
    Fixture("gemma", "Gemma", 24, config={"head_dim": 16, "hidden_act": "gelu_pytorch_tanh"}),
    Fixture("baichuan2_rotary", "Baichuan", 24, config={"num_key_value_heads": 4}),
    Fixture(
        "baichuan2_alibi",
        "Baichuan",
        40,
        config={"num_key_value_heads": 6, "num_attention_heads": 6, "hidden_size": 48},
    ),
    Fixture(
        "qwen3_moe",
        "Qwen3Moe",
        24,
        config={
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": False,
        },
    ),
    Fixture(
        "gpt_oss",
        "GptOss",
        40,
        config={
            "head_dim": 16,
            # Whole groups of MXFP4.
            "intermediate_size": 64,
            "sliding_window": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "pad_token_id": 0,
        },
        rope_theta=1000.0,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 8.0,
            "beta_fast": 4.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 32,
        },
    ),
    Fixture(
        "deepseek_v2",
        "DeepseekV2",
        40,
        config={
            "num_key_value_heads": 4,
            "q_lora_rank": None,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 12,
            "v_head_dim": 10,
            "first_k_dense_replace": 1,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "n_shared_experts": 2,
            "topk_method": "group_limited_greedy",
            "n_group": 3,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
        rope_scaling={
            "rope_type": "yarn",
            "factor": 8.0,
            "mscale": 0.707,
            "mscale_all_dim": 0.9,
            "original_max_position_embeddings": 32,
        },
    ),
    Fixture(
        "deepseek_v3",
        "DeepseekV3",
        24,
        config={
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "first_k_dense_replace": 1,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    Fixture(
        "llama_yarn",
        "Llama",
        40,
        rope_theta=1000.0,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    ),
    Fixture(
        "gemma2",
        "Gemma2",
        40,
        config={
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": 8,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 4.0,
        },
        seed=102,
    ),
    Fixture(
        "gemma3",
        "Gemma3",
        48,
        config={
            "num_hidden_layers": 3,
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": 8,
            "sliding_window_pattern": 3,
        },
        rope_theta=1000.0,
        rope_scaling={"rope_type": "linear", "factor": 4.0},
        sliding_theta=100.0,
        seed=103,
    ),
    Fixture(
        "gemma3_seeing",
        "Gemma3",
        40,
        config={"head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2},
        rope_theta=1000.0,
        suffix="ForConditionalGeneration",
        sliding_theta=100.0,
        vision={
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "image_size": 4,
            "patch_size": 2,
        },
        seed=104,
    ),
    Fixture(
        "phi3_long",
        "Phi3",
        40,
        config={
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "pad_token_id": 0,
            "original_max_position_embeddings": 32,
            "partial_rotary_factor": 0.75,
        },
        rope_scaling={
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            "long_factor": [1.0, 1.5, 2.0, 3.0, 4.5, 6.0],
        },
        seed=105,
    ),
)

#: Keys of the configuration that Baichuan's own code reads, besides `model_max_length` or, of the rotary
#: models, `max_position_embeddings`.
_BAICHUAN_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "bos_token_id",
    "eos_token_id",
)


def make_config(fixture: Fixture) -> Any:
    """The configuration object, built as the installed transformers wants it."""
    import transformers

    values = {**_SHAPE, **fixture.config}
    if fixture.family == "GPT2":
        shape = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
        values = {key: value for key, value in values.items() if key not in shape}
        values |= {"n_inner": values.pop("intermediate_size")}
        del values["num_key_value_heads"]
    elif int(transformers.__version__.split(".")[0]) >= 5:
        values["rope_parameters"] = {
            "rope_type": "default",
            "rope_theta": fixture.rope_theta,
            **(fixture.rope_scaling or {}),
        }
        if fixture.sliding_theta is not None:
            values["rope_parameters"] = {
                "full_attention": values["rope_parameters"],
                "sliding_attention": {"rope_type": "default", "rope_theta": fixture.sliding_theta},
            }
    else:
        values["rope_theta"] = fixture.rope_theta
        values["rope_scaling"] = fixture.rope_scaling
        if fixture.rope_scaling and fixture.rope_scaling["rope_type"] == "longrope":
            # Exactly these, under these names.
            lists = {key: fixture.rope_scaling[key] for key in ("short_factor", "long_factor")}
            values["rope_scaling"] = {"type": "longrope", **lists}
        if fixture.sliding_theta is not None:
            values["rope_local_base_freq"] = fixture.sliding_theta
    # transformers has no Baichuan: see `write_baichuan`.
    family = "Llama" if fixture.family == "Baichuan" else fixture.family
    if fixture.vision is not None:
        values = {
            "text_config": values,
            "vision_config": fixture.vision,
            "mm_tokens_per_image": 4,
            "image_token_index": 60,
        }
    elif family == "Gemma3":
        family = "Gemma3Text"
    config = getattr(transformers, f"{family}Config")(**values)
    config.architectures = [f"{fixture.family}{fixture.suffix}"]
    return config


def make_model(fixture: Fixture, config: Any) -> Any:
    """The model of transformers that computes what the fixture's family does, with its initial weights."""
    import transformers

    config._attn_implementation = "alibi" if fixture.name.endswith("alibi") else "eager"
    if fixture.name.endswith("alibi"):
        register_alibi()
    family = "Llama" if fixture.family == "Baichuan" else fixture.family
    return getattr(transformers, f"{family}{fixture.suffix}")(config).float().eval()


def register_alibi() -> None:
    """Makes `alibi` a way to attend: eager attention with BLOOM's linear biases and without rotation."""
    import torch
    from transformers import AttentionInterface
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.llama import modeling_llama

    def attend(
        _module: Any, query: Any, key: Any, value: Any, _mask: Any, scaling: float, **_options: Any
    ) -> tuple[Any, None]:
        heads, queries, keys = query.shape[1], query.shape[2], key.shape[2]
        scores = query @ key.transpose(2, 3) * scaling
        scores = scores + build_alibi_tensor(torch.ones(1, keys), heads, torch.float32).view(
            1, heads, 1, keys
        )
        own = torch.arange(keys - queries, keys)[:, None]
        scores = scores.masked_fill(torch.arange(keys) > own, float("-inf"))
        return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("alibi", attend)
    modeling_llama.apply_rotary_pos_emb = lambda query, key, *_: (query, key)


def save_baichuan(fixture: Fixture, model: Any, storage: Any, folder: Path) -> None:
    """Saves a Llama as the Baichuan2 that computes the same.

    transformers has no Baichuan; what its own code computes is Llama's, with queries, keys and values in one
    matrix, a head whose rows have unit length and, where the config has no `max_position_embeddings`, linear
    biases instead of rotation.
    """
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        if "self_attn.q_proj" in name:
            parts = [
                model.state_dict()[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")
            ]
            tensors[name.replace("q_proj", "W_pack")] = torch.cat(parts).to(storage)
        elif "self_attn.k_proj" not in name and "self_attn.v_proj" not in name:
            tensors[name] = tensor.to(storage)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    values = {key: getattr(model.config, key) for key in _BAICHUAN_KEYS}
    alibi = fixture.name.endswith("alibi")
    values |= {
        "architectures": ["BaichuanForCausalLM"],
        "model_type": "baichuan",
        "hidden_act": "silu",
        "rms_norm_eps": model.config.rms_norm_eps,
        "tie_word_embeddings": False,
        "torch_dtype": fixture.storage,
        "model_max_length" if alibi else "max_position_embeddings": 256,
    }
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def load_baichuan(folder: Path) -> Any:
    """The Llama that computes what a fixture of Baichuan2 does."""
    import torch
    from safetensors.torch import load_file

    fixture = next(one for one in FIXTURES if one.name == folder.name)
    model = make_model(fixture, make_config(fixture))
    tensors: dict[str, Any] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if "W_pack" in name:
            for part, values in zip(("q_proj", "k_proj", "v_proj"), tensor.float().chunk(3), strict=True):
                tensors[name.replace("W_pack", part)] = values
        else:
            tensors[name] = tensor.float()
    tensors["lm_head.weight"] = torch.nn.functional.normalize(tensors["lm_head.weight"])
    model.load_state_dict(tensors)
    return model


def write_fixture(fixture: Fixture, folder: Path, seed: int) -> None:
    """Draws the parameters, rounds them to the stored type, and records the float32 logits."""
    import numpy as np
    import torch

    generator = torch.Generator().manual_seed(seed)
    config = make_config(fixture)
    model = make_model(fixture, config)
    storage = getattr(torch, fixture.storage)
    with torch.no_grad():
        biases = [one for one in model.named_buffers() if one[0].endswith("e_score_correction_bias")]
        for name, parameter in [*model.named_parameters(), *biases]:
            is_norm = "norm" in name or ".ln_" in name
            is_centered = is_norm and name.endswith("weight") and not fixture.family.startswith("Gemma")
            center = 1.0 if is_centered else 0.0
            # So large that gpt-oss bounds some of what they are added to.
            spread = 6.0 if name.endswith("gate_up_proj_bias") else 0.2
            drawn = center + spread * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn.to(storage).float())
        token_ids = torch.randint(3, _SHAPE["vocab_size"], (fixture.tokens,), generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    if fixture.family == "Baichuan":
        save_baichuan(fixture, model, storage, folder)
        with torch.no_grad():
            model.lm_head.weight.copy_(torch.nn.functional.normalize(model.lm_head.weight))
    with torch.no_grad():
        logits = model(token_ids[None]).logits[0]
    if fixture.family != "Baichuan":
        shards = {"max_shard_size": fixture.shard_bytes} if fixture.shard_bytes else {}
        model.to(storage).save_pretrained(folder, **shards)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(
        folder / "expected.npz", token_ids=token_ids.numpy().astype(np.int32), logits=logits.float().numpy()
    )


def write_old_config(fixture: Fixture, folder: Path) -> None:
    """Writes `config-4.json` next to the checkpoint, as transformers 4 saves it."""
    import torch

    config = make_config(fixture)
    config.torch_dtype = getattr(torch, fixture.storage)
    with tempfile.TemporaryDirectory() as temporary:
        config.save_pretrained(temporary)
        text = (Path(temporary) / "config.json").read_text(encoding="utf-8")
    (folder / "config-4.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Writes every fixture, or with `--configs` every configuration of transformers 4."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the fixtures lie, e.g. tests/reference/fixtures")
    parser.add_argument("--configs", action="store_true", help="write only config-4.json (transformers 4)")
    parser.add_argument("names", nargs="*", help="which fixtures; all, if none is named")
    arguments = parser.parse_args()
    import transformers

    old = transformers.__version__.startswith("4.")
    if old != arguments.configs:
        parser.error(
            f"transformers {transformers.__version__} is installed; see --help for which form wants which"
        )
    for seed, fixture in enumerate(FIXTURES, start=1):
        folder = arguments.folder / fixture.name
        if arguments.names and fixture.name not in arguments.names:
            continue
        if arguments.configs and fixture.family == "Baichuan":
            continue  # its own code has one spelling
        if arguments.configs:
            write_old_config(fixture, folder)
        else:
            write_fixture(fixture, folder, fixture.seed or seed)


if __name__ == "__main__":
    main()
