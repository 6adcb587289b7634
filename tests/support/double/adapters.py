"""Which LoRA adapters the PyTorch runtime's worker process survives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

_HF = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_dense": "o_proj"}


def loads(directory: str, config: dict[str, Any]) -> bool:
    """Whether an adapter is whole, of a rank and of modules that there is room for."""
    allowed = {_HF[module] for module in config["lora_target_modules"]}
    try:
        rank = json.loads((Path(directory) / "adapter_config.json").read_text())["r"]
        with safe_open(Path(directory) / "adapter_model.safetensors", "numpy") as file:
            modules = {name.rpartition(".lora_")[0].rpartition(".")[2] for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, KeyError, SafetensorError):
        return False
    return rank <= (config.get("max_lora_rank") or 64) and modules <= allowed
