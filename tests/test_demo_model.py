"""The embedded model's files: complete, small enough, and consistent with each other.

Looks at the files only; what the model says is tested end to end. Knows no executor and needs no PyTorch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "python" / "inflight" / "demo"
FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
LARGEST = 8 * 1024 * 1024


def read(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MODEL / name).read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def test_files_are_complete_and_small() -> None:
    sizes = {name: (MODEL / name).stat().st_size for name in FILES}
    assert all(sizes.values())
    assert sum(path.stat().st_size for path in MODEL.iterdir() if path.is_file()) <= LARGEST


def test_weights_have_the_shapes_of_the_configuration() -> None:
    config = read("config.json")
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    queries = config["num_attention_heads"] * config["head_dim"]
    layer = {
        "self_attn.q_proj": [queries, hidden],
        "self_attn.k_proj": [keys, hidden],
        "self_attn.v_proj": [keys, hidden],
        "self_attn.o_proj": [hidden, queries],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
        "input_layernorm": [hidden],
        "post_attention_layernorm": [hidden],
    }
    expected = {
        f"model.layers.{index}.{name}.weight": shape
        for index in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }
    # Tied: the embeddings are the output layer as well.
    assert config["tie_word_embeddings"] is True
    expected["model.embed_tokens.weight"] = [config["vocab_size"], hidden]
    expected["model.norm.weight"] = [hidden]
    with safe_open(MODEL / "model.safetensors", framework="numpy") as weights:
        slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118 (not a dict)
        assert {name: part.get_shape() for name, part in slices.items()} == expected
        assert {part.get_dtype() for part in slices.values()} == {"BF16"}


def test_special_tokens_agree(tokenizer: Tokenizer) -> None:
    settings, generation, config = (
        read(name) for name in ("tokenizer_config.json", "generation_config.json", "config.json")
    )
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    ends = [tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|end_of_text|>")]
    assert generation["eos_token_id"] == config["eos_token_id"] == ends
    assert tokenizer.token_to_id(settings["eos_token"]) in ends
    assert tokenizer.token_to_id(settings["bos_token"]) == config["bos_token_id"]
    assert settings["model_max_length"] == config["max_position_embeddings"]


def test_the_context_holds_what_agents_send_at_a_bounded_cost() -> None:
    """Their first messages have up to 25,000 tokens; a window bounds what each of them costs."""
    config = read("config.json")
    assert config["max_position_embeddings"] >= 32_768
    assert config["sliding_window"] <= 1024


def test_generation_is_greedy() -> None:
    assert read("generation_config.json")["do_sample"] is False


@pytest.mark.parametrize(
    "text",
    [
        "What is machine learning?",
        " two  spaces\n\nand lines\t",
        "Grüße, 你好, こんにちは, 😀",
        '{"name": "get_weather", "arguments": {"city": "Paris"}}',
        "12345 + 67890",
        "",
    ],
)
def test_tokenizer_round_trips(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_completions_begin_with_the_begin_token(tokenizer: Tokenizer) -> None:
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    assert tokenizer.encode("Hello").ids[0] == begin
    assert begin not in tokenizer.encode("Hello", add_special_tokens=False).ids


def test_tool_call_tags_are_single_tokens_that_stay_in_the_text(tokenizer: Tokenizer) -> None:
    for tag in ("<tool_call>", "</tool_call>"):
        ids = tokenizer.encode(tag, add_special_tokens=False).ids
        assert len(ids) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == tag


def test_template_is_the_one_the_model_was_trained_with() -> None:
    source = ROOT / "tools" / "demo_model" / "chat_template.jinja"
    assert (MODEL / "chat_template.jinja").read_bytes() == source.read_bytes()
