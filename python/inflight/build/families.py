"""Which architectures each runtime takes, and how a checkpoint of it is converted. Data only.

Architectures are those of `config.json`. For engines: `model_class` is converted by that class of
`tensorrt_llm.models`, `llm` by `tensorrt_llm._tensorrt_engine.LLM` where the class takes other arguments
than the common ones, `script` by an example script of the same release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from inflight.executors.reference.model.config import SUPPORTED_ARCHITECTURES as REFERENCE_ARCHITECTURES
from inflight.model.runtimes import PYTORCH, REFERENCE, RUNTIMES, TENSORRT

Converter = Literal["model_class", "llm", "script"]


@dataclass(frozen=True)
class EngineFamily:
    """How TensorRT-LLM makes an engine of an architecture."""

    converter: Converter
    #: `model_class`: class in `tensorrt_llm.models`; `script`: the script's `--model_type`.
    name: str
    #: `script`: path below the examples directory.
    script: str | None = None


def _class(name: str) -> EngineFamily:
    return EngineFamily("model_class", name)


_ENCODER_DECODER = "models/core/enc_dec/convert_checkpoint.py"
_LLAMA = _class("LLaMAForCausalLM")
_GPT = _class("GPTForCausalLM")
_QWEN = _class("QWenForCausalLM")

ENGINES: Mapping[str, EngineFamily] = {
    "GPT2LMHeadModel": _GPT,
    "GPTBigCodeForCausalLM": _GPT,
    "Starcoder2ForCausalLM": _GPT,
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": _LLAMA,
    "GraniteForCausalLM": _LLAMA,
    "ExaoneForCausalLM": _LLAMA,
    "BaichuanForCausalLM": _class("BaichuanForCausalLM"),
    "BaiChuanForCausalLM": _class("BaichuanForCausalLM"),
    "QWenLMHeadModel": _QWEN,
    "Qwen2ForCausalLM": _QWEN,
    "Qwen2MoeForCausalLM": _QWEN,
    "Qwen3ForCausalLM": _QWEN,
    "GemmaForCausalLM": _class("GemmaForCausalLM"),
    "Gemma2ForCausalLM": _class("GemmaForCausalLM"),
    "PhiForCausalLM": _class("PhiForCausalLM"),
    "Phi3ForCausalLM": _class("Phi3ForCausalLM"),
    "FalconForCausalLM": _class("FalconForCausalLM"),
    "GPTJForCausalLM": _class("GPTJForCausalLM"),
    "ChatGLMModel": _class("ChatGLMForCausalLM"),
    "ChatGLMForConditionalGeneration": _class("ChatGLMForCausalLM"),
    "CohereForCausalLM": _class("CohereForCausalLM"),
    "DeciLMForCausalLM": EngineFamily("llm", "DeciLMForCausalLM"),
    "DeepseekV2ForCausalLM": EngineFamily("llm", "DeepseekV2ForCausalLM"),
    "T5ForConditionalGeneration": EngineFamily("script", "t5", _ENCODER_DECODER),
    "BartForConditionalGeneration": EngineFamily("script", "bart", _ENCODER_DECODER),
    "MBartForConditionalGeneration": EngineFamily("script", "bart", _ENCODER_DECODER),
}

PYTORCH_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Gemma3ForCausalLM",
    "Phi3ForCausalLM",
    "DeciLMForCausalLM",
    "DeepseekV3ForCausalLM",
    "GptOssForCausalLM",
    "NemotronForCausalLM",
    "Exaone4ForCausalLM",
    # With images.
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
)


def supported(runtime: str) -> tuple[str, ...]:
    """The architectures that `runtime` takes."""
    by_runtime = {
        TENSORRT: tuple(ENGINES),
        PYTORCH: PYTORCH_ARCHITECTURES,
        REFERENCE: REFERENCE_ARCHITECTURES,
    }
    return by_runtime[runtime]


def runtimes_of(architecture: str) -> tuple[str, ...]:
    """The runtimes that take `architecture`."""
    return tuple(runtime for runtime in RUNTIMES if architecture in supported(runtime))
