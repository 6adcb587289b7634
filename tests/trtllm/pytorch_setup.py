"""What the PyTorch runtime's adapter starts with, over the double: a checkpoint, adapters, options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from inflight.executors.tensorrt_llm import pytorch_start
from inflight.executors.tensorrt_llm.options import parse
from support import double

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": double.VOCAB,
    "max_position_embeddings": 128,
}
#: Of a checkpoint that the double takes images for.
SEEING = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "vision_config": {"hidden_size": 8},
}
OPTIONS = {
    "guided_decoding_backend": "xgrammar",
    "cache_transceiver_backend": "UCX",
    "sampler_type": "TRTLLMSampler",
    "disable_overlap_scheduler": True,
    "gather_generation_logits": True,
    "enable_kv_cache_reuse": False,
}


def write_checkpoint(directory: Path, **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    return directory


def write_adapter(folder: Path, name: str = "7", rank: int = 8, module: str = "q_proj") -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "adapter_config.json").write_text(json.dumps({"r": rank}))
    prefix = f"base_model.model.model.layers.0.self_attn.{module}"
    weights = {f"{prefix}.lora_A.weight": np.ones((rank, 4), np.float32)}
    weights[f"{prefix}.lora_B.weight"] = np.ones((4, rank), np.float32)
    save_file(weights, folder / name / "adapter_model.safetensors")
    return folder


def options_of_line() -> dict[str, Any]:
    """Options with every feature on: in the line of 1.3 there is no sampler to choose."""
    has_two_samplers = double.version() == "1.2.1"
    return {name: value for name, value in OPTIONS.items() if has_two_samplers or name != "sampler_type"}


def start(tmp_path: Path, **options: Any) -> Any:
    parsed = parse(options_of_line() | options, "pytorch", {})
    return pytorch_start.create_pytorch(write_checkpoint(tmp_path / "model"), parsed, double.version())
