"""Makes a fixture's checkpoint a quantized one, and its twin with the same numbers in float32.

Packs by the published layouts word for word, one nibble at a time, and shares no code with what reads them.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from reference.support import FIXTURES

Array = npt.NDArray[Any]

#: Modules that are quantized, by how their names end.
LINEAR = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"),
    *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
)

_TYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "uint8": "F8_E4M3"}
#: Of bytes by the ends of their tensors' names, where they are not FP8.
_BYTES = {"_blocks": "U8", "_scales": "U8"}


@dataclass
class Packed:
    """A matrix as it is stored, by the ends of its tensors' names, and the numbers that it stands for."""

    tensors: dict[str, Array]
    means: Array
    scheme: dict[str, Any] = field(default_factory=dict)


def e4m3(values: Array) -> tuple[Array, Array]:
    """The codes of the nearest FP8 numbers, and those numbers."""
    codes = np.arange(256, dtype=np.uint8)
    numbers = np.zeros(256)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        numbers[code] = -size if code & 128 else size
    numbers[[127, 255]] = np.inf  # not numbers
    order = np.argsort(numbers[:255])
    ordered = numbers[order]
    right = np.clip(np.searchsorted(ordered, values), 1, 253)
    nearest = np.where(values - ordered[right - 1] < ordered[right] - values, right - 1, right)
    return codes[order[nearest]], ordered[nearest]


def fp8(matrix: Array, block: tuple[int, int], scale_name: str, static: bool = False) -> Packed:
    """With a scale for each block."""
    rows, columns = matrix.shape
    down, across = -(-rows // block[0]), -(-columns // block[1])
    codes, means = np.zeros(matrix.shape, np.uint8), np.zeros(matrix.shape, np.float32)
    scales = np.zeros((down, across), np.float32)
    for i in range(down):
        for j in range(across):
            part = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            scales[i, j] = np.abs(matrix[part]).max() / 448
            codes[part], numbers = e4m3(matrix[part] / scales[i, j])
            means[part] = numbers.astype(np.float32) * scales[i, j]
    if down == across == 1:
        scales = scales.reshape(())
    tensors = {"weight": codes, scale_name: scales}
    if static:
        tensors["input_scale"] = np.float32(0.1).reshape(())
    return Packed(tensors, means)


def grouped(matrix: Array, group: int, group_of: Array) -> tuple[Array, Array, Array]:
    """Integers ``[out, in]``, zeros and scales ``[out, groups]``."""
    groups = matrix.shape[1] // group
    zeros = np.zeros((len(matrix), groups), np.int64)
    scales = np.zeros((len(matrix), groups), np.float16)
    for one in range(groups):
        part = matrix[:, group_of == one]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        scales[:, one] = np.maximum((high - low) / 15, 1e-3)
        zeros[:, one] = np.clip(np.rint(-low / scales[:, one].astype(np.float32)), 1, 15)
    integers = np.rint(matrix / scales[:, group_of].astype(np.float32)) + zeros[:, group_of]
    return np.clip(integers, 0, 15).astype(np.int64), zeros, scales


def words(integers: Array, order: list[int]) -> Array:
    """``[n, m]`` to ``[n, m / 8]``: the nibble i of a word is the integer ``order[i]`` of its eight."""
    packed = np.zeros((integers.shape[0], integers.shape[1] // 8), np.uint32)
    for nibble, place in enumerate(order):
        packed |= integers[:, place::8].astype(np.uint32) << np.uint32(4 * nibble)
    return packed.view(np.int32)


IN_ORDER = list(range(8))


def awq(matrix: Array, group: int) -> Packed:
    """AutoAWQ's `gemm`."""
    group_of = np.arange(matrix.shape[1]) // group
    integers, zeros, scales = grouped(matrix, group, group_of)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    tensors = {
        "qweight": words(integers.T, order),
        "qzeros": words(zeros.T, order),
        "scales": np.ascontiguousarray(scales.T),
    }
    return Packed(tensors, _mean(integers, zeros, scales, group_of))


def gptq(matrix: Array, group: int, act_order: bool, version: int = 1) -> Packed:
    """GPTQ's; the first version stores zeros less 1."""
    group_of = np.arange(matrix.shape[1]) // group
    if act_order:
        group_of = np.random.default_rng(4).permutation(group_of)
    integers, zeros, scales = grouped(matrix, group, group_of)
    tensors = {
        "qweight": np.ascontiguousarray(words(integers, IN_ORDER).T),
        "qzeros": words((zeros - (version == 1)).T, IN_ORDER),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": group_of.astype(np.int32),
    }
    return Packed(tensors, _mean(integers, zeros, scales, group_of))


def packed(matrix: Array, group: int, symmetric: bool) -> Packed:
    """compressed-tensors' `pack-quantized`."""
    group_of = np.arange(matrix.shape[1]) // group
    integers, zeros, scales = grouped(matrix, group, group_of)
    if symmetric:
        scales = np.zeros_like(scales)
        for one in range(scales.shape[1]):
            scales[:, one] = np.abs(matrix[:, group_of == one]).max(1) / 7
        integers = np.rint(matrix / scales[:, group_of].astype(np.float32)) + 8
        integers, zeros = np.clip(integers, 0, 15).astype(np.int64), np.full(scales.shape, 8)
    tensors = {
        "weight_packed": words(integers, IN_ORDER),
        "weight_scale": scales,
        "weight_shape": np.array(matrix.shape, np.int32),
    }
    if not symmetric:
        tensors["weight_zero_point"] = np.ascontiguousarray(words(zeros.T, IN_ORDER).T)
    return Packed(tensors, _mean(integers, zeros, scales, group_of))


def mxfp4(matrices: Array) -> Packed:
    """gpt-oss's: of all experts ``[experts, in, out]``, two numbers a byte, 32 inputs a power of two."""
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    turned = matrices.transpose(0, 2, 1)
    experts, outputs, inputs = turned.shape
    groups = turned.reshape(experts, outputs, inputs // 32, 32)
    exponents = np.floor(np.log2(np.abs(groups).max(-1))) - 2
    scaled = groups / 2.0 ** exponents[..., None]
    codes = np.abs(scaled[..., None] - numbers).argmin(-1)
    means = (numbers[codes] * 2.0 ** exponents[..., None]).reshape(turned.shape).transpose(0, 2, 1)
    blocks = (codes[..., ::2] + 16 * codes[..., 1::2]).astype(np.uint8)
    return Packed({"blocks": blocks, "scales": (exponents + 127).astype(np.uint8)}, means.astype(np.float32))


def _mean(integers: Array, zeros: Array, scales: Array, group_of: Array) -> Array:
    means: Array = (integers - zeros[:, group_of]).astype(np.float32)
    return means * scales.astype(np.float32)[:, group_of]


def _group(bits: int, kind: str, strategy: str, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, **more}
    return {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}


#: By name: what becomes of a matrix, and `quantization_config`; the groups of 16 suit matrices of 32 and 48.
SCHEMES: dict[str, tuple[Any, dict[str, Any]]] = {
    "fp8_static": (
        lambda m: fp8(m, m.shape, "weight_scale", static=True),
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
    ),
    "fp8_block": (
        lambda m: fp8(m, (16, 16), "weight_scale_inv"),
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 16]},
    ),
    "fp8_large_block": (
        lambda m: fp8(m, (128, 128), "weight_scale_inv"),
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    ),
    "fp8_rows": (
        lambda m: fp8(m, (1, m.shape[1]), "weight_scale"),
        {"quant_method": "compressed-tensors", "format": "float-quantized"}
        | {"config_groups": _group(8, "float", "channel"), "ignore": ["lm_head"]},
    ),
    "modelopt": (
        lambda m: fp8(m, m.shape, "weight_scale", static=True),
        {
            "producer": {"name": "modelopt"},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None},
        },
    ),
    "awq": (
        lambda m: awq(m, 16),
        {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"},
    ),
    "gptq": (lambda m: gptq(m, 16, False), {"quant_method": "gptq", "bits": 4, "group_size": 16}),
    "gptq_act_order": (
        lambda m: gptq(m, 16, True),
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True},
    ),
    "gptq_v2": (
        lambda m: gptq(m, m.shape[1], False, version=2),
        {"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "gptq_v2"},
    ),
    "packed": (
        lambda m: packed(m, 16, True),
        {"quant_method": "compressed-tensors", "format": "pack-quantized"}
        | {"config_groups": _group(4, "int", "group", group_size=16)},
    ),
    "packed_zeros": (
        lambda m: packed(m, 16, False),
        {"quant_method": "compressed-tensors", "format": "pack-quantized"}
        | {"config_groups": _group(4, "int", "group", group_size=16)},
    ),
}


#: Schemes of tensors that have all experts' matrices.
OF_EXPERTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mxfp4": (mxfp4, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})
}


def write_checkpoint(directory: Path, config: dict[str, Any], tensors: dict[str, Array]) -> None:
    """Writes tensors as they are: unsigned bytes are FP8."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    header, data, offset = {}, b"", 0
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": _BYTES.get(name[-7:], _TYPES[str(array.dtype)]),
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        data, offset = data + raw, offset + len(raw)
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def make(name: str, scheme: str, folder: Path) -> tuple[Path, Path]:
    """A fixture quantized by a scheme, and its twin."""
    return quantized(FIXTURES / name, (SCHEMES | OF_EXPERTS)[scheme], folder, scheme in OF_EXPERTS)


def quantized(
    source: Path, scheme: tuple[Any, dict[str, Any]], folder: Path, of_experts: bool = False
) -> tuple[Path, Path]:
    """A checkpoint in bfloat16 quantized by one of `SCHEMES` or `OF_EXPERTS`, and its twin."""
    quantize, stated = scheme
    config = json.loads((source / "config.json").read_text())
    stored: dict[str, Array] = {}
    plain: dict[str, Array] = {}
    with safe_open(source / "model.safetensors", framework="np") as file:
        names = list(file.keys())
    for tensor, values in read_floats(source / "model.safetensors", names).items():
        module = tensor.removesuffix(".weight")
        if of_experts and values.ndim == 3:
            done = quantize(values)
            stored |= {f"{tensor}_{end}": array for end, array in done.tensors.items()}
            plain[tensor] = done.means
        elif not of_experts and module.endswith(LINEAR) and tensor.endswith(".weight"):
            done = quantize(values)
            stored |= {f"{module}.{end}": array for end, array in done.tensors.items()}
            plain[tensor] = done.means
        else:
            stored[tensor] = plain[tensor] = values
    if "producer" in stated:
        write_checkpoint(folder / "quantized", config, stored)
        (folder / "quantized" / "hf_quant_config.json").write_text(json.dumps(stated))
    else:
        write_checkpoint(folder / "quantized", config | {"quantization_config": stated}, stored)
    write_checkpoint(folder / "twin", config, plain)
    return folder / "quantized", folder / "twin"


def read_floats(path: Path, names: list[str]) -> dict[str, Array]:
    """Tensors in bfloat16 as float32."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name in names:
        begin, end = header[name]["data_offsets"]
        raw = np.frombuffer(data[8 + length + begin : 8 + length + end], np.uint16)
        assert header[name]["dtype"] == "BF16"
        found[name] = (raw.astype(np.uint32) << 16).view(np.float32).reshape(header[name]["shape"])
    return found
