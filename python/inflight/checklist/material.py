"""What requests of the checklist bring: tensors, an image, LoRA adapters. Made here, so that nothing is
downloaded and nothing of a user's is needed. Pure, but for the files of adapters."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inflight.executors.base import NamedTensor
from inflight.model.lora import PEFT_CONFIG, PEFT_WEIGHTS

#: Rank of the adapters that are made here.
RANK = 8
#: Layers that they change, and by which names of TensorRT-LLM the executor is to expect them.
LAYERS = {"attn_q": "q_proj", "attn_v": "v_proj"}

_CODES = {"INT32": "<i4", "UINT64": "<u8", "FP32": "<f4", "UINT8": "u1"}


def numbers(name: str, datatype: str, *values: float) -> NamedTensor:
    """A small tensor of numbers."""
    return NamedTensor(name, datatype, (len(values),), np.array(values, _CODES[datatype]).tobytes())


def text(name: str, value: str | bytes) -> NamedTensor:
    """A BYTES tensor of one element."""
    data = value.encode() if isinstance(value, str) else value
    return NamedTensor(name, "BYTES", (1,), struct.pack("<I", len(data)) + data)


def guide(kind: str, value: str) -> list[NamedTensor]:
    """The inputs of a guided request."""
    return [text("guided_decoding_guide_type", kind), text("guided_decoding_guide", value)]


def png(width: int = 56, height: int = 56, color: tuple[int, int, int] = (200, 40, 40)) -> bytes:
    """An image in one color."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress((b"\0" + bytes(color) * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def write_adapter(directory: Path, config: Mapping[str, Any]) -> None:
    """A LoRA adapter that changes nothing, in PEFT's format: `B` is zero. `config`: the text model's, of
    which sizes are read. Raises `KeyError` where it has none."""
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    head = int(config.get("head_dim") or hidden // heads)
    wide = {"q_proj": heads * head, "v_proj": int(config.get("num_key_value_heads") or heads) * head}
    tensors = {}
    for layer in range(int(config["num_hidden_layers"])):
        for module in LAYERS.values():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = np.full((RANK, hidden), 0.01, np.float32)
            tensors[f"{name}.lora_B.weight"] = np.zeros((wide[module], RANK), np.float32)
    directory.mkdir(parents=True)
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": sorted(LAYERS.values()),
    }
    (directory / PEFT_CONFIG).write_text(json.dumps(about))
    (directory / PEFT_WEIGHTS).write_bytes(_safetensors(tensors))


def cut_adapter(directory: Path) -> None:
    """Leaves half of the adapter's weights, as a copy that was interrupted."""
    weights = directory / PEFT_WEIGHTS
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])


def _safetensors(tensors: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """The file format: the length of a JSON header, the header, the data."""
    header, at = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in tensors.values())
