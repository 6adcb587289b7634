"""Writes the model in the Hugging Face layout: bfloat16 weights, configuration, tokenizer, chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from .encoding import BEGIN, END, END_TURN, PAD, token_id
from .network import Mistral, Shape

TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def model_config(shape: Shape, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_theta,
        "sliding_window": shape.window,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "bos_token_id": token_id(tokenizer, BEGIN),
        "eos_token_id": ends(tokenizer),
        "pad_token_id": token_id(tokenizer, PAD),
    }


def ends(tokenizer: Tokenizer) -> list[int]:
    """The ids that end a sequence: of a turn in a chat, of a text in a completion."""
    return [token_id(tokenizer, END_TURN), token_id(tokenizer, END)]


def read(directory: Path, model: Mistral) -> None:
    """Loads the weights of a checkpoint that `write` made."""
    weights = {name: tensor.float() for name, tensor in load_file(directory / "model.safetensors").items()}
    model.load_state_dict(weights)


def write(directory: Path, model: Mistral, tokenizer: Tokenizer) -> None:
    """Writes all files of the checkpoint; existing ones are replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    generation = {
        "do_sample": False,
        "bos_token_id": token_id(tokenizer, BEGIN),
        "eos_token_id": ends(tokenizer),
        "pad_token_id": token_id(tokenizer, PAD),
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.shape.context,
        "bos_token": BEGIN,
        "eos_token": END_TURN,
        "pad_token": PAD,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
    }
    for name, value in (
        ("config.json", model_config(model.shape, tokenizer)),
        ("generation_config.json", generation),
        ("tokenizer_config.json", settings),
    ):
        (directory / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    (directory / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    shutil.copyfile(TEMPLATE, directory / "chat_template.jinja")
