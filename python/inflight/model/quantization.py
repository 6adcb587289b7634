"""How a checkpoint says that its matrices are quantized: the dialects of `quantization_config`, one value.

Owns the dialects (compressed-tensors, ModelOpt, `fp8`, AWQ, GPTQ, `mxfp4`). Reads no file; which scheme an
executor computes with is the executor's. Nothing here raises: a scheme that is not recognized is described as
well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: How matrices are stored: `fp8`, three layouts of 4-bit integers, and 4-bit floats of which 32 share a power
#: of two.
Layout = Literal["fp8", "awq", "gptq", "packed", "mxfp4"]

#: The formats by layout.
_FORMATS: Mapping[Layout, str] = {
    "fp8": "fp8",
    "awq": "int4",
    "gptq": "int4",
    "packed": "int4",
    "mxfp4": "mxfp4",
}

#: Inputs that share a scale in MXFP4.
MXFP4_GROUP = 32


@dataclass(frozen=True)
class Quantization:
    """What a config says of quantized matrices."""

    #: As the config names it.
    name: str
    #: None: a layout that is not recognized.
    layout: Layout | None = None
    #: Rows and columns that share a scale, of FP8 in blocks.
    block: tuple[int, int] | None = None
    #: Inputs that share a scale, of integers; -1: all.
    group_size: int = -1
    #: What a stored zero point is below the real one: 1 in the first format of GPTQ.
    zero_offset: int = 0
    #: What about it is not recognized.
    unknown: str | None = None

    @property
    def format(self) -> str | None:
        """`fp8`, `int4` or `mxfp4`; None: none of them."""
        return None if self.layout is None else _FORMATS[self.layout]

    def describe(self) -> str:
        """In words, for people."""
        if self.layout is None:
            return self.name
        if self.layout == "fp8":
            rows, columns = self.block or (0, 0)
            detail = f"in blocks of {rows} x {columns}" if self.block else "per tensor or row"
            return f"FP8, {detail}, {self.name}"
        if self.layout == "mxfp4":
            return f"MXFP4, {self.name}"
        groups = "whole rows" if self.group_size < 0 else f"groups of {self.group_size}"
        return f"INT4, {groups}, {self.name}"


def parse_quantization(values: Mapping[str, Any]) -> Quantization | None:
    """The scheme in the object of a `config.json`; None: the checkpoint is not quantized."""
    found = values.get("quantization_config")
    if found is None:
        return None
    config: Mapping[str, Any] = found if isinstance(found, dict) else {}
    named = [config[key] for key in ("quant_algo", "quant_method") if isinstance(config.get(key), str)]
    name = named[0] if named else "unknown"
    method = config.get("quant_method")
    if "quant_algo" in config or method == "modelopt":
        return _modelopt(name, config)
    if method == "compressed-tensors":
        return _compressed_tensors(name, config)
    if method == "fp8":
        return _fp8(name, config)
    if method == "awq":
        return _awq(name, config)
    if method == "gptq":
        return _gptq(name, config)
    if method == "mxfp4":
        return Quantization(name, "mxfp4", group_size=MXFP4_GROUP)
    return Quantization(name, unknown=f"the method `{name}`")


def _modelopt(name: str, config: Mapping[str, Any]) -> Quantization:
    if str(config.get("quant_algo")).upper() == "FP8":
        return Quantization(name, "fp8")
    return Quantization(name, unknown=f"`quant_algo` `{config.get('quant_algo')}`")


def _fp8(name: str, config: Mapping[str, Any]) -> Quantization:
    block = config.get("weight_block_size")
    if block is None:
        return Quantization(name, "fp8")
    pair = _pair(block)
    if pair is None:
        return Quantization(name, unknown=f"`weight_block_size` `{block}`")
    return Quantization(name, "fp8", block=pair)


def _pair(value: Any) -> tuple[int, int] | None:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, int) and one > 0 for one in value):
        return value[0], value[1]
    return None


def _awq(name: str, config: Mapping[str, Any]) -> Quantization:
    version = str(config.get("version", "gemm")).lower()
    bits = config.get("bits", config.get("w_bit"))
    if version != "gemm":
        return Quantization(name, unknown=f"AWQ's layout `{version}`")
    if bits != 4:
        return Quantization(name, unknown=f"AWQ with `{bits}` bits")
    group = config.get("group_size", config.get("q_group_size"))
    return _integers(name, "awq", group)


def _gptq(name: str, config: Mapping[str, Any]) -> Quantization:
    if config.get("bits") != 4:
        return Quantization(name, unknown=f"GPTQ with `{config.get('bits')}` bits")
    if config.get("dynamic"):
        return Quantization(name, unknown="GPTQ with `dynamic` rules by module")
    layout = config.get("checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        return Quantization(name, unknown=f"GPTQ's `checkpoint_format` `{layout}`")
    return _integers(name, "gptq", config.get("group_size"), zero_offset=int(layout == "gptq"))


def _integers(name: str, layout: Layout, group: Any, zero_offset: int = 0) -> Quantization:
    if not isinstance(group, int) or (group != -1 and group < 1):
        return Quantization(name, unknown=f"a group size of `{group}`")
    return Quantization(name, layout, group_size=group, zero_offset=zero_offset)


def _compressed_tensors(name: str, config: Mapping[str, Any]) -> Quantization:
    groups = config.get("config_groups")
    schemes = [one.get("weights") for one in groups.values()] if isinstance(groups, dict) else []
    schemes = [one for one in schemes if isinstance(one, dict)]
    if not schemes:
        return Quantization(name, unknown="compressed-tensors without `config_groups`")
    kinds = [
        {key: one.get(key) for key in ("num_bits", "type", "strategy", "group_size", "block_structure")}
        for one in schemes
    ]
    if any(kind != kinds[0] for kind in kinds):
        return Quantization(name, unknown="compressed-tensors with several schemes of weights")
    [kind, *_] = kinds
    bits, number, strategy = kind["num_bits"], kind["type"], kind["strategy"]
    if (bits, number) == (8, "float") and strategy in ("tensor", "channel"):
        return Quantization(name, "fp8")
    if (bits, number, strategy) == (8, "float", "block") and _pair(kind["block_structure"]) is not None:
        return Quantization(name, "fp8", block=_pair(kind["block_structure"]))
    if (bits, number) == (4, "int") and strategy in ("group", "channel"):
        if config.get("format") in (None, "pack-quantized"):
            return _integers(name, "packed", kind["group_size"] if strategy == "group" else -1)
        return Quantization(name, unknown=f"compressed-tensors' format `{config.get('format')}`")
    return Quantization(
        name, unknown=f"compressed-tensors with weights of {bits} bits, `{number}` per `{strategy}`"
    )
