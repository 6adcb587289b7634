"""Gemma 2 and 3: what published configs say, names of tensors, drafts and beams, and what is refused.

Their logits and searches are compared with transformers' where all families' are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from inflight.errors import UserMistake
from inflight.executors.base import NamedTensor
from inflight.executors.images import IMAGES
from inflight.executors.reference.core.adapters import task_id_of
from inflight.executors.reference.core.drafts import LookupConfig
from inflight.executors.reference.model.config import RopeConfig, load_config, parse_config
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights
from inflight.model.config import parse_config as parse_facts
from inflight.model.memory import needs

from .support import FIXTURES, engine, read_config, request, run
from .test_lora import asked, matrices, merge, same, save_peft, serving, task

#: As google/gemma-2-2b, gemma-3-1b-it and gemma-3-4b-it have them, as far as they change the arithmetic.
GEMMA_2_2B: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "float32",
    "vocab_size": 256000,
}
GEMMA_3_1B: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "vocab_size": 262144,
}
GEMMA_3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "image_token_index": 262144,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model"},
}
PROMPT = [(7 * token) % 61 + 3 for token in range(40)]


def test_the_config_of_gemma_2_2b() -> None:
    config = parse_config(GEMMA_2_2B)
    assert config.windows == (4096, None) * 13
    assert (config.scale, config.attention_softcap, config.logit_softcap) == (1 / 16, 50.0, 30.0)
    assert (config.rope, config.sliding_rope, config.sliding_layers) == (RopeConfig(1e4), None, frozenset())
    assert (config.head_dim, config.embedding_scale, config.norm_offset) == (256, 48.0, 1.0)
    assert config.tie_word_embeddings
    assert not config.qk_norm
    # The 27B has fewer numbers a head than it scales by.
    assert parse_config(GEMMA_2_2B | {"query_pre_attn_scalar": 144, "head_dim": 128}).scale == 1 / 12
    absent = {key: value for key, value in GEMMA_2_2B.items() if "softcapping" not in key}
    assert parse_config(absent) == config
    uncapped = parse_config(absent | {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (uncapped.attention_softcap, uncapped.logit_softcap) == (None, None)


def test_the_config_of_gemma_3_1b() -> None:
    config = parse_config(GEMMA_3_1B)
    slides = [(layer + 1) % 6 != 0 for layer in range(26)]
    assert config.windows == tuple(512 if one else None for one in slides)
    assert config.sliding_layers == {layer for layer, one in enumerate(slides) if one}
    assert (config.rope, config.sliding_rope) == (RopeConfig(1e6), RopeConfig(1e4))
    assert (config.scale, config.attention_softcap, config.logit_softcap) == (1 / 16, None, None)
    assert config.qk_norm
    assert parse_config(GEMMA_3_1B | {"final_logit_softcapping": 20.0}).logit_softcap == 20.0


def test_the_config_of_gemma_3_4b_leaves_out_what_transformers_assumes() -> None:
    config = parse_config(GEMMA_3_4B)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (34, 8, 4, 256)
    assert (config.vocab_size, config.max_position_embeddings) == (262208, 131072)
    assert (config.rope, config.sliding_rope) == (RopeConfig(1e6, "linear", 8.0), RopeConfig(1e4))
    assert [layer for layer, window in enumerate(config.windows) if window is None] == [5, 11, 17, 23, 29]
    assert config.tie_word_embeddings
    assert config.vision is None
    stated = GEMMA_3_4B["text_config"] | {"num_attention_heads": 16, "num_key_value_heads": 8}
    assert parse_config(GEMMA_3_4B | {"text_config": stated}).num_heads == 16
    # 3.88 billion parameters without the tower, and 2 x 34 x 4 x 256 numbers a token.
    planned = needs(parse_facts(GEMMA_3_4B))
    assert 3.87e9 < planned.parameters < 3.89e9
    assert planned.kv_bytes_per_token == 2 * 34 * 4 * 256 * 2


@pytest.mark.parametrize(
    ("keys", "ropes"),
    [
        ({"rope_theta": 5e5, "rope_local_base_freq": 2e4}, (RopeConfig(5e5), RopeConfig(2e4))),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                }
            },
            (RopeConfig(1e6, "linear", 8.0), RopeConfig(1e4)),
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 7e5}}}, (RopeConfig(7e5), RopeConfig(1e4))),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 3e3}}}, (RopeConfig(1e6), RopeConfig(3e3))),
        (
            {"rope_scaling": {"type": "linear", "factor": 4}},
            (RopeConfig(1e6, "linear", 4.0), RopeConfig(1e4)),
        ),
        ({}, (RopeConfig(1e6), RopeConfig(1e4))),
    ],
)
def test_rotary_embeddings_by_layer_type(keys: dict[str, Any], ropes: tuple[RopeConfig, RopeConfig]) -> None:
    absent = {key: value for key, value in GEMMA_3_1B.items() if not key.startswith("rope_")}
    config = parse_config(absent | keys)
    assert (config.rope, config.sliding_rope) == ropes


@pytest.mark.parametrize(
    ("config", "keys", "says"),
    [
        (GEMMA_2_2B, {"use_bidirectional_attention": True}, "`use_bidirectional_attention` in `config.json`"),
        (GEMMA_3_1B, {"use_bidirectional_attention": True}, "`use_bidirectional_attention` in `config.json`"),
        # transformers reads these two, and does not apply them.
        (GEMMA_3_1B, {"attn_logit_softcapping": 50.0}, "`attn_logit_softcapping` in `config.json` is `50.0`"),
        (GEMMA_3_4B, {"final_logit_softcapping": 30.0}, "`final_logit_softcapping` in `config.json` is"),
        (
            GEMMA_2_2B,
            {"attn_logit_softcapping": 0},
            "`attn_logit_softcapping` in `config.json` must be a posi",
        ),
        (GEMMA_2_2B, {"final_logit_softcapping": "30"}, "`final_logit_softcapping` in `config.json` must be"),
        (
            GEMMA_2_2B,
            {"query_pre_attn_scalar": -1},
            "`query_pre_attn_scalar` in `config.json` must be a posi",
        ),
        (GEMMA_2_2B, {"hidden_activation": "gelu"}, "`hidden_activation` in `config.json` must be"),
        (
            GEMMA_2_2B,
            {"sliding_window": None},
            "`sliding_window` in `config.json` must be a positive integer",
        ),
        (
            GEMMA_2_2B,
            {"layer_types": ["full_attention"]},
            "`layer_types` in `config.json` must be a list of 26",
        ),
        (GEMMA_3_1B, {"layer_types": ["chunked_attention"] * 26}, "layer type `chunked_attention` is not"),
        (GEMMA_3_1B, {"sliding_window_pattern": 0}, "`sliding_window_pattern` in `config.json` must be"),
        (
            GEMMA_3_1B,
            {"rope_parameters": {"rope_theta": 1e6}},
            "`rope_parameters` in `config.json` must be an",
        ),
        (GEMMA_3_1B, {"rope_parameters": "linear"}, "`rope_parameters` in `config.json` must be an object"),
        (GEMMA_3_1B, {"rope_scaling": "linear"}, "`rope_scaling` in `config.json` must be an object"),
        (GEMMA_3_1B, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rotary scaling `dynamic`"),
        (GEMMA_3_1B, {"rope_local_base_freq": "1e4"}, "`rope_local_base_freq` in `config.json` must be a"),
    ],
)
def test_what_is_not_implemented_or_wrong_is_refused_by_name(
    config: dict[str, Any], keys: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserMistake) as refused:
        parse_config(config | keys)
    assert refused.value.what.startswith(says)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("language", "head"),
    [
        ("language_model.model.", "language_model.lm_head.weight"),
        ("model.language_model.", "lm_head.weight"),
        ("model.", "lm_head.weight"),
    ],
)
def test_a_model_that_sees_is_read_in_each_spelling_of_its_tensors(
    language: str, head: str, tmp_path: Path
) -> None:
    """Published checkpoints have the first, transformers has the second in memory; no tower is read."""
    folder, stored = FIXTURES / "gemma3_seeing", "language_model.model."
    with safe_open(folder / "model.safetensors", "np") as file:
        names = list(file.keys())
    weights = CheckpointWeights.of(load_config(folder), find_weights(folder))
    own = [name.removeprefix(stored) for name in names if name.startswith(stored)]
    assert len(own) < len(names)
    tensors = {language + name: weights.tensor(f"model.{name}") for name in own}
    # With a head, as where it is not tied.
    tensors[head] = 2 * weights.tensor("model.embed_tokens.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    values = read_config("gemma3_seeing")
    values["text_config"]["tie_word_embeddings"] = False
    (tmp_path / "config.json").write_text(json.dumps(values))
    wanted = request(1, PROMPT, 6, output={"return_generation_logits": True})
    told, expected = (run(engine(name), [wanted])[1, 0] for name in (str(tmp_path), "gemma3_seeing"))
    assert told.tokens == expected.tokens
    np.testing.assert_allclose(told.logits[0], 2 * expected.logits[0], atol=1e-4)


def test_an_adapter_names_modules_as_transformers_has_them_in_memory(tmp_path: Path) -> None:
    """PEFT saves the names of the model that it was given, here those of one that sees."""
    adapter = matrices("gemma3_seeing", 3)
    save_peft(
        tmp_path / "adapters" / "support",
        {name.replace("model.", "model.language_model.", 1): both for name, both in adapter.items()},
    )
    tensors = [task(task_id_of("support"))]
    told = run(serving("gemma3_seeing", tmp_path / "adapters"), [asked(1, PROMPT, tensors)])
    same(told, run(engine(merge(tmp_path / "merged", "gemma3_seeing", adapter)), [asked(1, PROMPT)]))


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9, "temperature": 1.5, "seed": 7}, {"beam_width": 3}])
@pytest.mark.parametrize("max_num_tokens", [256, 8])
def test_drafts_chunks_host_blocks_and_company_change_no_token(
    max_num_tokens: int, sampling: dict[str, Any], name: str
) -> None:
    """Contexts are several times the window of 8."""
    streaming = "beam_width" not in sampling
    requests = [
        request(
            key,
            [5 + key, *PROMPT[: 12 + 5 * key], *PROMPT[: 4 + key]],
            30,
            sampling=sampling,
            output={"return_log_probs": True},
            streaming=streaming,
        )
        for key in range(4)
    ]
    lookup = LookupConfig(max_draft_len=4, max_matching_ngram_size=2)
    subject = engine(
        name,
        lookup=lookup if streaming else None,
        max_num_tokens=max_num_tokens,
        max_batch_size=8,
        num_blocks=90,
        num_host_blocks=60,
    )
    run(subject, requests)
    # Again, when the prompts are in the cache or in the host's memory.
    told = run(subject, requests)
    for one in requests:
        plain = run(engine(name), [one])
        for key, other in plain.items():
            assert told[key].tokens == other.tokens
            assert told[key].log_probs == pytest.approx(other.log_probs, abs=1e-3)
    assert subject.pool.used == 0


def test_images_are_refused() -> None:
    image = NamedTensor(IMAGES, "BYTES", (1,), (3).to_bytes(4, "little") + b"png")
    [told] = run(engine("gemma3_seeing"), [request(1, PROMPT, 4, tensors=[image])]).values()
    assert told.error is not None
    assert "image" in told.error


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gemma3_seeing"])
def test_the_architecture_follows_from_the_model_type(name: str) -> None:
    values = read_config(name)
    [architecture] = values.pop("architectures")
    assert parse_config(values).architecture == architecture
