"""What the double's classes and commands for building do: files as the real ones write,
without content.

What `from_hugging_face` and `Mapping` take is in no record and is written here as the example scripts of the
release call them. Every call is logged as a line of JSON, so that a test can follow it.
"""

from __future__ import annotations

import argparse
import enum
import json
import os
import sys
from pathlib import Path
from typing import Any


def log(name: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Appends a call to the file that `DOUBLE_LOG` names, if it does."""
    path = os.environ.get("DOUBLE_LOG")
    if path:
        made = [name, [_plain(value) for value in args], {key: _plain(kwargs[key]) for key in kwargs}]
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(made) + "\n")


def _plain(value: Any) -> str:
    return str(value.value if isinstance(value, enum.Enum) else value)


def fails(what: str) -> None:
    """Ends the process where `DOUBLE_FAIL` names this place."""
    if os.environ.get("DOUBLE_FAIL") == what:
        print("the double was told to fail at", what)
        raise SystemExit(3)


class Mapping:
    """`tensorrt_llm.mapping.Mapping`."""

    def __init__(
        self,
        world_size: int = 1,
        rank: int = 0,
        gpus_per_node: int = 8,  # noqa: ARG002
        *,
        cp_size: int = 1,
        tp_size: int = 1,
        pp_size: int = 1,
        moe_tp_size: int = -1,  # noqa: ARG002
        moe_ep_size: int = -1,  # noqa: ARG002
    ) -> None:
        assert world_size == tp_size * pp_size * cp_size, "world_size"
        assert 0 <= rank < world_size, "rank"
        self.world_size, self.rank = world_size, rank


class Model:
    """A class of `tensorrt_llm.models`."""

    mapping: Any
    dtype: str
    vocab_size: int

    @classmethod
    def from_hugging_face(
        cls,
        hf_model_or_dir: str,
        dtype: str = "auto",
        mapping: Any = None,
        quant_config: Any = None,  # noqa: ARG003
        **kwargs: Any,
    ) -> Model:
        log(cls.__name__ + ".from_hugging_face", (hf_model_or_dir, dtype), {"rank": mapping.rank, **kwargs})
        config = json.loads((Path(hf_model_or_dir) / "config.json").read_text())
        fails(f"convert{mapping.rank}")
        model = cls()
        model.mapping, model.dtype, model.vocab_size = mapping, dtype, config["vocab_size"]
        return model

    def save_checkpoint(self, output_dir: str, save_config: bool = True) -> None:
        target = Path(output_dir)
        target.mkdir(parents=True, exist_ok=True)
        if save_config:
            mapping = {"world_size": self.mapping.world_size}
            config = {"mapping": mapping, "dtype": self.dtype, "vocab_size": self.vocab_size}
            (target / "config.json").write_text(json.dumps(config))
        (target / f"rank{self.mapping.rank}.safetensors").write_bytes(b"converted")


class EngineLLM:
    """`tensorrt_llm._tensorrt_engine.LLM`."""

    values: dict[str, Any]

    def save(self, engine_dir: str) -> None:
        target = Path(engine_dir)
        target.mkdir(parents=True)
        (target / "config.json").write_text("{}")
        size = self.values["tensor_parallel_size"] * self.values["pipeline_parallel_size"]
        for rank in range(size):
            (target / f"rank{rank}.engine").write_bytes(b"engine")

    def shutdown(self) -> None:
        pass


BEHAVIOR: dict[str, type] = {"tensorrt_llm._tensorrt_engine.LLM": EngineLLM}
#: Classes of which no signature is recorded.
UNRECORDED: dict[str, type] = {
    "tensorrt_llm.mapping.Mapping": Mapping,
    **{
        f"tensorrt_llm.models.{name}": type(name, (Model,), {})
        for name in ("LLaMAForCausalLM", "GPTForCausalLM", "ChatGLMForCausalLM")
    },
}


def trtllm_build() -> None:
    """The command `trtllm-build`: takes the recorded flags only."""
    from support.double.classes import RECORD, SYMBOLS

    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in RECORD["cli"]["trtllm-build"]["options"]:
        more = {"nargs": option.get("nargs"), "choices": option.get("choices")}
        parser.add_argument(*option["names"], **{"action": "store_true"} if option.get("is_flag") else more)
    for param in SYMBOLS["tensorrt_llm.plugin.PluginConfig"]["params"]:
        if param["name"] != "paged_kv_cache":
            parser.add_argument("--" + param["name"])
    given = parser.parse_args()
    log("trtllm-build", sys.argv[1:], {})
    source, target = Path(given.checkpoint_dir), Path(given.output_dir)
    pretrained = json.loads((source / "config.json").read_text())
    mapping = pretrained["mapping"]
    target.mkdir(parents=True, exist_ok=True)
    (target / "rank0.engine").write_bytes(b"half")
    fails("build")
    sizes = {name: int(value) for name, value in vars(given).items() if name.startswith("max_") and value}
    plugins = {"lora_plugin": given.lora_plugin, "tokens_per_block": int(given.tokens_per_block or 32)}
    build = {**sizes, "gather_context_logits": given.gather_context_logits, "plugin_config": plugins}
    config = {"version": "1.2.1", "pretrained_config": pretrained, "build_config": build}
    (target / "config.json").write_text(json.dumps(config))
    for rank in range(mapping["world_size"]):
        (target / f"rank{rank}.engine").write_bytes(b"engine")


def quantize() -> None:
    """The example script `quantization/quantize.py`: takes the recorded flags only."""
    from support.double.classes import RECORD

    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in RECORD["cli"]["examples/quantization/quantize.py"]["options"]:
        more = {"choices": option.get("choices")}
        parser.add_argument(*option["names"], **{"action": "store_true"} if option.get("is_flag") else more)
    given = parser.parse_args()
    log("quantize.py", sys.argv[1:], {})
    target = Path(given.output_dir)
    target.mkdir(parents=True)
    (target / "config.json").write_text(json.dumps({"mapping": {"world_size": 1}, "as": given.qformat}))


def convert_encoder_decoder() -> None:
    """The example script that converts T5 and BART: its flags are in no record."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("model_type", "model_dir", "output_dir", "tp_size", "pp_size", "dtype", "workers"):
        parser.add_argument("--" + name, required=True)
    given = parser.parse_args()
    source = json.loads((Path(given.model_dir) / "config.json").read_text())
    for part in ("encoder", "decoder"):
        target = Path(given.output_dir) / part
        target.mkdir(parents=True)
        config = {"mapping": {"world_size": int(given.tp_size)}, "vocab_size": source["vocab_size"]}
        (target / "config.json").write_text(json.dumps(config))
