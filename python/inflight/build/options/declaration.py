"""What an option of `inflight build` is, beyond `inflight.options.Option`: its group, the runtimes that take
it, and where its value goes.

Names are TensorRT-LLM's. `model` declares those that say what the model becomes, `engine` those that only the
builder of engines takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inflight.model.runtimes import TENSORRT
from inflight.options import Kind, Option

#: What trtllm-build takes for a plugin without its own list (`DefaultPluginDtype`).
PLUGIN_DTYPES = ("auto", "float16", "float32", "bfloat16", "int32", "disable")
LOG_LEVELS = ("internal_error", "error", "warning", "info", "verbose", "debug", "trace")
ENABLE, DISABLE = SWITCH = "enable", "disable"


@dataclass(frozen=True)
class BuildOption(Option):
    """An option of `inflight build`, its group in the help, and where its value goes."""

    group: str = ""
    #: Runtimes that it has an effect with; given for another it is refused.
    runtimes: tuple[str, ...] = (TENSORRT,)
    #: Flag of `trtllm-build`, `BuildConfig` field, `PluginConfig` field, field of `TorchLlmArgs` (dotted).
    build_flag: str | None = None
    build_config: str | None = None
    plugin_config: str | None = None
    llm_args: str | None = None
    #: Names files whose content shapes the result, so that the manifest keeps their fingerprints.
    reads: bool = False
    #: What each of several `texts` may be: more than one may follow the flag, and commas may separate them.
    items: tuple[str, ...] = ()
    #: What the flag means without a value; None: it needs one.
    bare: str | None = None
    #: Names of earlier releases, still accepted.
    aliases: tuple[str, ...] = ()


RUN, PARALLEL, LENGTHS, QUANTIZATION, LORA, SPECULATION, PLUGINS, FEATURES, BUILDER, EARLIER = (
    "What to build",
    "Parallelism and precision",
    "Sizes",
    "Quantization",
    "LoRA and prompt tables",
    "Speculative decoding",
    "Plugins",
    "Features",
    "Builder",
    "Of releases before 0.8",
)


def built(name: str, kind: Kind, group: str, meaning: str, **more: Any) -> BuildOption:
    """An option with a flag of `trtllm-build` and a field of `BuildConfig` of the same name."""
    more.setdefault("build_config", name)
    return BuildOption(name, kind, meaning, group=group, build_flag=f"--{name}", **more)
