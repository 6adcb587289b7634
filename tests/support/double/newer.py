"""What classes do in the line of 1.3, where they do other than in 1.2: one sampler, more to ask an LLM."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from support.double import behavior
from support.double.engine import MODULES

#: Drafters whose tokens pass through the sampler.
_SAMPLED = {"NGramDecodingConfig", "AutoDecodingConfig", "UserProvidedDecodingConfig"}


class Mode:
    """`SpeculativeDecodingMode`."""

    def __init__(self, is_one_engine: bool) -> None:
        self._is_one_engine = is_one_engine

    def use_one_engine(self) -> bool:
        return self._is_one_engine


class Drafter:
    """Any `DecodingBaseConfig`."""

    @property
    def spec_dec_mode(self) -> Mode:
        if type(self).__name__ == "AutoDecodingConfig":
            raise KeyError("AUTO")
        return Mode(type(self).__name__ not in _SAMPLED)


class PreprocessedInputs:
    """`llmapi.llm.PreprocessedInputs`."""

    def __init__(self, inputs: Any) -> None:
        self.inputs = inputs


class Proxy(behavior.Proxy):
    """The executor of 1.3 says by itself whether its ranks live."""

    def check_health(self) -> bool:
        return not any(future.done() for future in self.mpi_futures)


class EncoderOutput:
    """`llmapi.llm.EncoderOutput`."""

    def __init__(self, logits: Any, prompt_token_ids: list[int], prompt: str | None = None) -> None:
        self.logits, self.prompt_token_ids, self.prompt = logits, prompt_token_ids, prompt


#: Prompts that begin with it end the encoder: an error of CUDA's.
LOST = 91


class LLM(behavior.LLM):
    """`tensorrt_llm.LLM` of 1.3."""

    #: How many prompts each call encoded.
    _sim_encoded: list[int]

    def encode(
        self,
        inputs: list[list[int]],
        add_special_tokens: bool = True,  # noqa: ARG002 -- for texts
        batch_indexed_model_output: bool = True,
        copy_logits_to_host: bool = True,
        return_raw_logits: bool = False,
        **model_kwargs: Any,
    ) -> list[EncoderOutput]:
        """Of a model for embeddings its vectors, and of one that generates the last token's logits."""
        assert batch_indexed_model_output
        assert copy_logits_to_host
        assert not return_raw_logits
        assert not model_kwargs
        assert self.values["encode_only"], "encode() requires encode_only=True"
        assert not getattr(self, "_sim_busy", False), "its buffers are for one call at a time"
        assert isinstance(inputs[0], list)
        if len(inputs) > (self.values.get("max_batch_size") or 2048):
            raise ValueError(f"Batch size ({len(inputs)}) exceeds max_batch_size")
        if sum(map(len, inputs)) > (self.values.get("max_num_tokens") or 8192):
            raise ValueError("Total tokens across the batch exceeds max_num_tokens")
        self._sim_busy = True
        self._sim_encoded = [*getattr(self, "_sim_encoded", []), len(inputs)]
        time.sleep(0.002)
        self._sim_busy = False
        if any(prompt[0] == LOST for prompt in inputs):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        config = json.loads((Path(self.values["model"]) / "config.json").read_text())
        architectures = (self.values.get("model_kwargs") or {}).get("architectures", config["architectures"])
        width = config["hidden_size"] if architectures == ["Qwen3ForTextEmbedding"] else config["vocab_size"]
        made = []
        for prompt in inputs:
            vector = np.bincount([token % width for token in prompt], minlength=width)
            made.append(EncoderOutput(MODULES["torch"].Tensor(vector, "bfloat16"), prompt))
        return made

    @property
    def _executor(self) -> Proxy:
        return Proxy(self._sim)

    def _sim_is_full_sampler(self) -> bool:
        return True

    def preprocess(self, inputs: Any, sampling_params: Any = None, disaggregated_params: Any = None) -> Any:
        assert sampling_params is not None
        assert disaggregated_params is None
        return PreprocessedInputs(behavior.check_prompt(inputs))

    def get_kv_cache_capacity(self) -> dict[str, int]:
        held = (self.values.get("kv_cache_config") or {}).get("max_tokens")
        return {} if held is None else {"maxNumBlocks": held, "tokensPerBlock": 1, "maxNumTokens": held}

    def generate_async(  # type: ignore[override]
        self,
        inputs: Any,
        sampling_params: Any = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        trace_headers: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        conversation_params: Any = None,
        cache_salt: Any = None,
        priority: float = 0.5,
    ) -> Any:
        if self.values.get("encode_only"):
            raise RuntimeError("generate_async() is not available when encode_only=True.")
        assert conversation_params is None
        assert 0 <= priority <= 1
        self._sim_more = {} if priority == 0.5 else {"priority": priority}
        return behavior.LLM.generate_async(
            self,
            inputs.inputs if isinstance(inputs, PreprocessedInputs) else inputs,
            sampling_params,
            lora_request,
            prompt_adapter_request,
            streaming,
            kv_cache_retention_config,
            disaggregated_params,
            trace_headers,
            _postproc_params,
            scheduling_params,
            cache_salt,
        )


BEHAVIOR: dict[str, type] = {
    "tensorrt_llm.llmapi.LLM": LLM,
    **{
        f"tensorrt_llm.llmapi.{name}DecodingConfig": Drafter
        for name in (
            "Auto",
            "DFlash",
            "DSpark",
            "DraftTarget",
            "Eagle",
            "Eagle3",
            "MTP",
            "NGram",
            "PARD",
            "SA",
            "SaveHiddenStates",
            "UserProvided",
        )
    },
}
