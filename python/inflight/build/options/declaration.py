"""What an option of `inflight build` is: name, type, default, reason, and where its value goes.

Names are TensorRT-LLM's. Owns no option: those that say what the model becomes are `model_options`', those
that only the builder of engines takes are `engine_options`'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from inflight.model.runtimes import TENSORRT

Kind = Literal["integer", "text", "texts", "choice", "switch", "flag", "path"]

#: What trtllm-build takes for a plugin without a list of its own (`DefaultPluginDtype`).
PLUGIN_DTYPES = ("auto", "float16", "float32", "bfloat16", "int32", "disable")
LOG_LEVELS = ("internal_error", "error", "warning", "info", "verbose", "debug", "trace")
ENABLE, DISABLE = "enable", "disable"


@dataclass(frozen=True)
class Option:
    """One option. `default` None: absent, or derived from the checkpoint as `reason` says."""

    name: str
    kind: Kind
    reason: str
    group: str
    default: Any = None
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    #: Runtimes it means something to; given for another it is refused.
    runtimes: tuple[str, ...] = (TENSORRT,)
    #: Flag of `trtllm-build`, `BuildConfig` field, `PluginConfig` field, field of `TorchLlmArgs` (dotted).
    build_flag: str | None = None
    build_config: str | None = None
    plugin_config: str | None = None
    llm_args: str | None = None
    #: Names files whose content shapes the result, so that the manifest keeps their fingerprints.
    reads: bool = False
    #: What the bare flag means; None: it needs a value.
    bare: str | None = None
    #: Names of earlier releases, still taken.
    aliases: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """As people type it."""
        return "--" + self.name.replace("_", "-")


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


def built(name: str, kind: Kind, group: str, reason: str, **more: Any) -> Option:
    """An option with a flag of `trtllm-build` and a field of `BuildConfig` of its own name."""
    more.setdefault("build_config", name)
    return Option(name, kind, reason, group, build_flag=f"--{name}", **more)
