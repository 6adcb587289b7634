"""LoRA adapters of the embedded model, as files, and what a chat answers with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openai
from safetensors.numpy import save_file

import inflight
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.lora import named_slots

DEMO = Path(inflight.__file__).parent / "demo"
RANK = 2
MESSAGES: list[Any] = [{"role": "user", "content": "What is machine learning?"}]


def matrices(scale: float) -> dict[str, tuple[Any, Any]]:
    """Of every layer's output projection: one down, one up; with scale 0 they change nothing."""
    draw = np.random.default_rng(7)
    config = load_config(DEMO)
    name = config.names.output
    slot = named_slots(config)[name]

    def drawn(rows: int, columns: int) -> Any:
        return (draw.normal(0, 1, (rows, columns)) * scale).astype(np.float32)

    return {
        f"{config.names.layer.format(layer)}.{name}": (drawn(RANK, slot.inputs), drawn(slot.stop, RANK))
        for layer in range(config.num_layers)
    }


def save(folder: Path, scale: float) -> None:
    """An adapter as PEFT writes it."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {}
    for module, (down, up) in matrices(scale).items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = down
        tensors[f"base_model.model.{module}.lora_B.weight"] = up
    save_file(tensors, folder / "adapter_model.safetensors")


def answer(client: openai.OpenAI, model: str, stream: bool = False) -> str:
    asked = client.chat.completions.create
    if stream:
        chunks = list(asked(model=model, messages=MESSAGES, max_tokens=16, temperature=0, stream=True))
        assert {chunk.model for chunk in chunks} == {model}
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    whole = asked(model=model, messages=MESSAGES, max_tokens=16, temperature=0)
    assert whole.model == model
    return whole.choices[0].message.content or ""
