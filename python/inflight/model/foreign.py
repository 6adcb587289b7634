"""What others built: engines of `trtllm-build` without a manifest, checkpoints that are quantized already.

Owns how their configs name formats. Reads configs only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.model.config import ModelFacts, parse_config
from inflight.model.files import read_json

#: How `QuantAlgo` and Hugging Face's `quant_method` begin, the longest counts -> the `--quantization` of as
#: many bytes.
_FORMATS = {
    "W8A16": "int8_wo",
    "W4A16": "int4_wo",
    "W4A16_AWQ": "int4_awq",
    "W4A8_AWQ": "w4a8_awq",
    "W8A8_SQ": "int8_sq",
    "FP8": "fp8",
    "NVFP4": "nvfp4",
    "AWQ": "int4_awq",
    "GPTQ": "int4_wo",
}


def foreign_engine(directory: Path) -> Path | None:
    """The directory with the engine, of an encoder-decoder the decoder's; None where there is none."""
    for path in (directory, directory / "decoder"):
        if (path / "rank0.engine").is_file():
            return path
    return None


def read_foreign_engine(directory: Path) -> tuple[ModelFacts, dict[str, Any], str, str]:
    """Its facts, settings, kind and files; the engine's own config has everything."""
    config = read_json(directory / "config.json")
    pretrained, build = config.get("pretrained_config"), config.get("build_config")
    if not isinstance(pretrained, dict) or not isinstance(build, dict):
        raise UserMistake(
            f"`{directory / 'config.json'}` is not the config of an engine", "build the engine again"
        )
    named = {**pretrained, "architectures": [pretrained.get("architecture", "unknown")]}
    settings = _integers(build, "max_seq_len")
    settings |= _integers(build.get("plugin_config"), "tokens_per_block")
    settings |= _integers(pretrained.get("mapping"), "tp_size", "pp_size", "cp_size")
    formats = pretrained.get("quantization")
    if isinstance(formats, dict):
        settings |= _format("quantization", formats.get("quant_algo"))
        cache = str(formats.get("kv_cache_quant_algo")).lower()
        settings |= {"kv_cache_dtype": cache} if cache in ("int8", "fp8") else {}
    engines = sorted(directory.glob("rank*.engine"))
    size = sum(path.stat().st_size for path in engines)
    kind = f"a TensorRT engine of TensorRT-LLM {config.get('version', 'unknown')}, without a manifest"
    return parse_config(named), settings, kind, f"{len(engines)} engines, {size} bytes"


def formats_of_checkpoint(facts: ModelFacts) -> dict[str, Any]:
    """The setting that counts a quantized checkpoint's bytes; none for an unknown format."""
    scheme = facts.quantization
    if scheme is not None and scheme.format is not None:
        return {"quantization": {"fp8": "fp8", "int4": "int4_wo", "mxfp4": "mxfp4"}[scheme.format]}
    return _format("quantization", facts.quantized)


def _format(setting: str, name: Any) -> dict[str, Any]:
    spelled = str(name).upper()
    fitting = [beginning for beginning in _FORMATS if spelled.startswith(beginning)]
    return {setting: _FORMATS[max(fitting, key=len)]} if fitting else {}


def _integers(values: Any, *names: str) -> dict[str, Any]:
    held: Mapping[str, Any] = values if isinstance(values, dict) else {}
    return {name: held[name] for name in names if isinstance(held.get(name), int)}
