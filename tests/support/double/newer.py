"""What classes do in the line of 1.3, where they do other than in 1.2: one sampler, more to ask an LLM."""

from __future__ import annotations

from typing import Any

from support.double import behavior

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


class LLM(behavior.LLM):
    """`tensorrt_llm.LLM` of 1.3."""

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
