"""A TensorRT-LLM that is not one: packages, metadata and commands that answer to the recorded names only.

Writes a folder of packages for PYTHONPATH and a folder of commands for PATH. Classes are made from
the record and raise on any keyword it does not have; `trtllm-build` takes the recorded flags only.
What `from_hugging_face` and `Mapping` take is in no record and is written here as the example scripts of the
release call them. Every call is logged as a line of JSON, so that a test can follow it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

#: One record for this double and for the generated ones of `trtllm`; `ORIGIN.md` beside it says whence.
RECORDED = Path(__file__).parents[1] / "trtllm" / "data" / "tensorrt_llm_api.json"

_COMMON = """
import json, os, inspect
from pathlib import Path

RECORD = json.loads(Path({record!r}).read_text())

def log(name, args, kwargs):
    made = [name, [str(value) for value in args], {{k: str(v) for k, v in kwargs.items()}}]
    with open(os.environ["DOUBLE_LOG"], "a") as file:
        file.write(json.dumps(made) + "\\n")

def fields(name):
    symbol = RECORD["symbols"][name]
    names = [entry["name"] for entry in symbol["params"] if not entry["name"].startswith("*")]
    inherited = symbol.get("inherits")
    return names + (fields(inherited) if inherited in RECORD["symbols"] else [])

def recorded(name, extra=()):
    taken = dict.fromkeys([*fields(name), *extra])
    def __init__(self, *args, **kwargs):
        log(name, args, kwargs)
        self.kwargs = kwargs
        self.args = args
    made = type(name.rpartition(".")[2], (), {{"__init__": __init__}})
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    parameters += [inspect.Parameter(x, inspect.Parameter.KEYWORD_ONLY, default=None) for x in taken]
    __init__.__signature__ = inspect.Signature(parameters)
    return made

def fails(what):
    if os.environ.get("DOUBLE_FAIL") == what:
        print("the double was told to fail at", what)
        raise SystemExit(3)
"""

_MAPPING = """
class Mapping:
    def __init__(self, world_size=1, rank=0, gpus_per_node=8, *, cp_size=1, tp_size=1, pp_size=1,
                 moe_tp_size=-1, moe_ep_size=-1):
        assert world_size == tp_size * pp_size * cp_size, "world_size"
        assert 0 <= rank < world_size, "rank"
        self.__dict__.update({name: value for name, value in locals().items() if name != "self"})
"""

_MODELS = """
from pathlib import Path
import json
from tensorrt_llm.common import fails, log

class _Model:
    @classmethod
    def from_hugging_face(cls, hf_model_or_dir, dtype="auto", mapping=None, quant_config=None, **kwargs):
        log(cls.__name__ + ".from_hugging_face", (hf_model_or_dir, dtype), {"rank": mapping.rank, **kwargs})
        config = json.loads((Path(hf_model_or_dir) / "config.json").read_text())
        fails(f"convert{mapping.rank}")
        model = cls()
        model.mapping, model.dtype, model.vocab_size = mapping, dtype, config["vocab_size"]
        return model

    def save_checkpoint(self, output_dir, save_config=True):
        target = Path(output_dir)
        target.mkdir(parents=True, exist_ok=True)
        if save_config:
            mapping = {"world_size": self.mapping.world_size}
            config = {"mapping": mapping, "dtype": self.dtype, "vocab_size": self.vocab_size}
            (target / "config.json").write_text(json.dumps(config))
        (target / f"rank{self.mapping.rank}.safetensors").write_bytes(b"converted")

class LLaMAForCausalLM(_Model): ...
class GPTForCausalLM(_Model): ...
"""

_LLMAPI = """
from tensorrt_llm.common import RECORD, recorded
BuildConfig = recorded("tensorrt_llm.llmapi.BuildConfig")
QuantConfig = recorded("tensorrt_llm.llmapi.QuantConfig")
TorchLlmArgs = recorded("tensorrt_llm.llmapi.TorchLlmArgs")

class QuantAlgo(str):
    def __new__(cls, value):
        assert value in RECORD["symbols"]["tensorrt_llm.llmapi.QuantAlgo"]["members"], value
        return str.__new__(cls, value)
"""

_PLUGIN = """
from tensorrt_llm.common import recorded
PluginConfig = recorded("tensorrt_llm.plugin.PluginConfig")
"""

_ENGINE = """
from pathlib import Path
from tensorrt_llm.common import fields, recorded
_Base = recorded("tensorrt_llm._tensorrt_engine.LLM", fields("tensorrt_llm.llmapi.TrtLlmArgs"))

class LLM(_Base):
    def save(self, engine_dir):
        target = Path(engine_dir)
        target.mkdir(parents=True)
        (target / "config.json").write_text("{}")
        size = self.kwargs["tensor_parallel_size"] * self.kwargs["pipeline_parallel_size"]
        for rank in range(size):
            (target / f"rank{rank}.engine").write_bytes(b"engine")

    def shutdown(self):
        pass
"""

_TRTLLM_BUILD = """#!{python}
import argparse, json, os, sys
from pathlib import Path
sys.path.insert(0, {site!r})
from tensorrt_llm.common import RECORD, fails, fields, log
parser = argparse.ArgumentParser(allow_abbrev=False)
for option in RECORD["cli"]["trtllm-build"]["options"]:
    more = {{"nargs": option.get("nargs"), "choices": option.get("choices")}}
    if option.get("is_flag"):
        more = {{"action": "store_true"}}
    parser.add_argument(*option["names"], **more)
for name in fields("tensorrt_llm.plugin.PluginConfig"):
    if name != "paged_kv_cache":
        parser.add_argument("--" + name)
given = parser.parse_args()
log("trtllm-build", sys.argv[1:], {{}})
source, target = Path(given.checkpoint_dir), Path(given.output_dir)
pretrained = json.loads((source / "config.json").read_text())
mapping = pretrained["mapping"]
target.mkdir(parents=True, exist_ok=True)
(target / "rank0.engine").write_bytes(b"half")
fails("build")
sizes = {{name: int(value) for name, value in vars(given).items() if name.startswith("max_") and value}}
plugins = {{"lora_plugin": given.lora_plugin, "tokens_per_block": int(given.tokens_per_block or 32)}}
build = {{**sizes, "gather_context_logits": given.gather_context_logits, "plugin_config": plugins}}
config = {{"version": "1.2.1", "pretrained_config": pretrained, "build_config": build}}
(target / "config.json").write_text(json.dumps(config))
for rank in range(mapping["world_size"]):
    (target / f"rank{{rank}}.engine").write_bytes(b"engine")
"""

_NVIDIA_SMI = """#!/bin/sh
i=0
while [ $i -lt {count} ]; do echo "NVIDIA H100 80GB HBM3, 81559, {capability}"; i=$((i+1)); done
"""


def write_double(
    folder: Path, *, version: str = "1.2.1", gpus: int = 1, capability: str = "9.0"
) -> dict[str, str]:
    """Writes it below `folder`; returns the environment in which processes meet it."""
    site, commands = folder / "site", folder / "bin"
    package = site / "tensorrt_llm"
    for name, text in {
        "__init__.py": "",
        "common.py": _COMMON.format(record=str(RECORDED)),
        "mapping.py": _MAPPING,
        "models.py": _MODELS,
        "llmapi.py": _LLMAPI,
        "_tensorrt_engine.py": _ENGINE,
        "plugin.py": _PLUGIN,
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    for name, number in (("tensorrt_llm", version), ("tensorrt", "10.14.1.48")):
        metadata = site / f"{name}-{number}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    commands.mkdir(parents=True)
    scripts = {
        "trtllm-build": _TRTLLM_BUILD.format(python=sys.executable, site=str(site)),
        "nvidia-smi": _NVIDIA_SMI.format(count=gpus, capability=capability),
    }
    for name, text in scripts.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    return {
        "PYTHONPATH": str(site),
        "PATH": f"{commands}:{os.environ['PATH']}",
        "DOUBLE_LOG": str(folder / "calls.jsonl"),
    }


#: The script of the release's examples: its flags are in no record.
_ENCODER_DECODER = """
import argparse, json
from pathlib import Path
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
"""


def write_encoder_decoder_script(examples: Path) -> None:
    """Writes the example script that converts T5 and BART below `examples`."""
    script = examples / "models/core/enc_dec/convert_checkpoint.py"
    script.parent.mkdir(parents=True)
    script.write_text(_ENCODER_DECODER)


def calls(environment: dict[str, str]) -> list[tuple[str, list[str], dict[str, str]]]:
    """What was called so far: name, positional arguments, keywords."""
    log = Path(environment["DOUBLE_LOG"])
    if not log.is_file():
        return []
    return [tuple(json.loads(line)) for line in log.read_text().splitlines()]
