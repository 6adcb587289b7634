"""What each TensorRT-LLM runtime does with each input of the core model, and the conditions for it.

Which inputs there are, the capability that each needs and the field of the request that it becomes come from
the worker's table (`inflight._native.core_model()`). Capabilities and the start-up check (`promises`), the
builders of requests and the tables of the documentation follow from both. Names are TensorRT-LLM's: for
engines classes of `tensorrt_llm.bindings.executor`, for PyTorch `SamplingParams` and the keywords of
`LLM.generate_async`. Holds no object of TensorRT-LLM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from inflight._native import CoreInput, CoreParameter, core_model
from inflight.executors.tensorrt_llm import convert, images

Runtime = Literal["engines", "pytorch"]
RUNTIMES: tuple[Runtime, ...] = ("engines", "pytorch")

#: Samplers of PyTorch up to 1.2: only this one applies penalties and the like; the default ignores them
#: silently (NVIDIA/TensorRT-LLM issue 9442, pull request 16485).
TRTLLM_SAMPLER = "sampler_type=TRTLLMSampler"


@dataclass(frozen=True)
class Target:
    """A keyword of a class (or of `generate_async`), and how the value gets there."""

    owner: str
    keyword: str
    convert: Callable[[Any, Any], Any] = convert.same
    #: A setting that the runtime needs to apply the field; a key of `CONDITIONS`.
    condition: str | None = None


@dataclass(frozen=True)
class Unsupported:
    """The runtime cannot receive it."""

    reason: str


@dataclass(frozen=True)
class Refusal:
    """The runtime refuses a request that has it; the capability that it belongs to stays supported."""

    reason: str


#: Where a runtime puts an input; None: the worker deals with it.
Place = Target | Unsupported | Refusal | None


_CORE = core_model()
_ROWS: dict[str, CoreInput | CoreParameter] = {row.name: row for row in _CORE.inputs}
_ROWS.update((row.name, row) for row in _CORE.parameters)


@dataclass(frozen=True)
class Field:
    """One input or request parameter of the core model. An unknown name is a `KeyError`."""

    tensor: str
    engines: Place
    pytorch: Place
    #: The field of `inflight.executors.base.Request` that has it. None for what the worker applies, and for
    #: a tensor that travels in `Request.tensors` under its own name.
    path: str | None = field(init=False)
    capability: str | None = field(init=False)

    def __post_init__(self) -> None:
        row = _ROWS[self.tensor]
        object.__setattr__(self, "path", row.path if isinstance(row, CoreInput) else None)
        object.__setattr__(self, "capability", row.capability)

    def target(self, runtime: Runtime) -> Place:
        """None: the worker deals with it itself."""
        return self.engines if runtime == "engines" else self.pytorch


#: What a field with this condition needs in order to be applied, worded for the documentation.
CONDITIONS = {
    "gather_context_logits": "engine built with `gather_context_logits`",
    "gather_generation_logits": "option `gather_generation_logits`, or an engine built with it",
    "prompt_table": "engine built with `max_prompt_embedding_table_size`",
    "lora": "engine built with the LoRA plugin",
    "adapters": "option `lora_adapter_dir`, or `lora_target_modules` to load adapters while it runs",
    "draft": "engine built with `speculative_decoding_mode=draft_tokens_external`",
    "encoder": "encoder-decoder: `encoder` and `decoder` below the directory, or option `encoder_model_path`",
    "mrope": "engine built with `use_mrope`",
    "beams": "`max_beam_width` above 1",
    "guided": "option `guided_decoding_backend`",
    "lookahead": "option `decoding_mode=lookahead`",
    "cache_transceiver": "option `cache_transceiver_backend`",
    "full_sampler": f"option `{TRTLLM_SAMPLER}`, or beams, for which 1.2 takes that sampler by itself",
    "undrafted": "no drafter",
    "no_reuse": "option `enable_kv_cache_reuse=false`, and no mRoPE: else logits do not cover the prompt",
    "images": "checkpoint with a `vision_config`, for which TensorRT-LLM has an input processor",
    "own_sampling": "no drafter that samples inside the model, as `eagle` and `mtp` do",
    "alternatives": f"`own_sampling`, and not `{TRTLLM_SAMPLER}`, which returns the sampled token's only",
    "kept_logits": "option `gather_generation_logits`, and no drafter: logits would be another request's",
}

#: The object that a class's keywords make -> where that object goes.
PARENTS: dict[Runtime, dict[str, tuple[str, str]]] = {
    "engines": {
        "SamplingConfig": ("Request", "sampling_config"),
        "OutputConfig": ("Request", "output_config"),
        "ExternalDraftTokensConfig": ("Request", "external_draft_tokens_config"),
        "PromptTuningConfig": ("Request", "prompt_tuning_config"),
        "MropeConfig": ("Request", "mrope_config"),
        "LoraConfig": ("Request", "lora_config"),
        "LookaheadDecodingConfig": ("Request", "lookahead_config"),
        "KvCacheRetentionConfig": ("Request", "kv_cache_retention_config"),
        "GuidedDecodingParams": ("Request", "guided_decoding_params"),
        "ContextPhaseParams": ("Request", "context_phase_params"),
    },
    "pytorch": {
        "SamplingParams": ("generate_async", "sampling_params"),
        "GuidedDecodingParams": ("SamplingParams", "guided_decoding"),
        "KvCacheRetentionConfig": ("generate_async", "kv_cache_retention_config"),
        "LoRARequest": ("generate_async", "lora_request"),
        "DisaggregatedParams": ("generate_async", "disaggregated_params"),
    },
}

_WORKER = None
_ENGINES_ONLY = Unsupported("engines only")
_PYTORCH_ONLY = Unsupported("PyTorch runtime only")
_REFERENCE_ONLY = Unsupported("reference executor only")
_ADAPTERS_ARE_FILES = Refusal("the PyTorch runtime reads adapters from `lora_adapter_dir`")
_RANGE = "KvCacheRetentionConfig.TokenRangeRetentionConfig"


def _keyword(tensor: str) -> str:
    """The name of the field that a tensor becomes, which is TensorRT-LLM's as well."""
    row = _ROWS[tensor]
    if not isinstance(row, CoreInput) or row.path is None:
        raise ValueError(f"`{tensor}` has no separate field")
    return row.path.rpartition(".")[2]


def _sampling(tensor: str, *, condition: str | None = None, beams: bool = False) -> Field:
    name, engines_condition = _keyword(tensor), "beams" if beams else None
    return Field(
        tensor,
        Target("SamplingConfig", name, condition=engines_condition),
        Target("SamplingParams", name, condition=condition or engines_condition),
    )


def _output(tensor: str, condition: str | None, pytorch: Place) -> Field:
    return Field(tensor, Target("OutputConfig", _keyword(tensor), condition=condition), pytorch)


def _passed(tensor: str, engines: Place, pytorch: Place = _ENGINES_ONLY) -> Field:
    return Field(tensor, engines, pytorch)


def _retention(tensor: str, owner: str, keyword: str, converter: Callable[[Any, Any], Any]) -> Field:
    target = Target(owner, keyword, converter)
    return Field(tensor, target, target)


_SAMPLER = "full_sampler"
_OWN_SAMPLING = "own_sampling"
_NO_REUSE = "no_reuse"

FIELDS: tuple[Field, ...] = (
    Field(
        "input_ids",
        Target("Request", "input_token_ids"),
        Target("generate_async", "inputs"),
    ),
    _passed(
        "encoder_input_features",
        Target("Request", "encoder_input_features", convert.tensor, "encoder"),
    ),
    _passed(
        "encoder_output_lengths",
        Target("Request", "encoder_output_length", convert.first, "encoder"),
    ),
    Field("input_lengths", _WORKER, _WORKER),
    Field(
        "request_output_len",
        Target("Request", "max_tokens"),
        Target("SamplingParams", "max_tokens"),
    ),
    Field(
        "num_return_sequences",
        Target("SamplingConfig", "num_return_sequences"),
        Target("SamplingParams", "n"),
    ),
    _passed(
        "draft_input_ids",
        Target("ExternalDraftTokensConfig", "tokens", convert.token_ids, "draft"),
    ),
    # Decoder ids take the prompt's place; the prompt becomes Request.encoder_input_token_ids.
    _passed("decoder_input_ids", Target("Request", "input_token_ids", convert.token_ids, "encoder")),
    _passed("decoder_input_lengths", Target("Request", "input_token_ids", convert.first, "encoder")),
    _passed("draft_logits", Target("ExternalDraftTokensConfig", "logits", convert.tensor, "draft")),
    _passed(
        "draft_acceptance_threshold",
        Target("ExternalDraftTokensConfig", "acceptance_threshold", convert.first, "draft"),
    ),
    Field("end_id", Target("Request", "end_id"), Target("SamplingParams", "end_id")),
    Field("pad_id", Target("Request", "pad_id"), Target("SamplingParams", "pad_id")),
    # PyTorch: words of several tokens go to the private `_stop_word_ids`.
    Field(
        "stop_words_list",
        Target("Request", "stop_words"),
        Target("SamplingParams", "stop_token_ids"),
    ),
    Field(
        "bad_words_list",
        Target("Request", "bad_words"),
        Target("SamplingParams", "bad_token_ids", condition=_SAMPLER),
    ),
    Field(
        "embedding_bias",
        Target("Request", "embedding_bias", convert.float_vector),
        Target("SamplingParams", "embedding_bias", convert.float_vector, _OWN_SAMPLING),
    ),
    Field(
        "beam_width",
        Target("SamplingConfig", "beam_width", condition="beams"),
        Target("SamplingParams", "best_of", condition="beams"),
    ),
    _sampling("temperature"),
    _sampling("runtime_top_k"),
    _sampling("runtime_top_p"),
    _sampling("runtime_top_p_min", condition=_SAMPLER),
    _sampling("runtime_top_p_decay", condition=_SAMPLER),
    _sampling("runtime_top_p_reset_ids", condition=_SAMPLER),
    _sampling("len_penalty", beams=True),
    _sampling("early_stopping", beams=True),
    _sampling("repetition_penalty", condition=_SAMPLER),
    _sampling("min_tokens"),
    _sampling("beam_search_diversity_rate", beams=True),
    _sampling("presence_penalty", condition=_SAMPLER),
    _sampling("frequency_penalty", condition=_SAMPLER),
    # Without it every request is sampled with one generator, whatever it asks for.
    _sampling("seed", condition=_SAMPLER),
    _output(
        "return_log_probs",
        None,
        # TensorRT-LLM adds the sampled token to the most probable ones.
        Target("SamplingParams", "logprobs", condition=_OWN_SAMPLING),
    ),
    _output(
        "return_context_logits",
        "gather_context_logits",
        Target("SamplingParams", "return_context_logits", condition=_NO_REUSE),
    ),
    _output(
        "return_generation_logits",
        "gather_generation_logits",
        Target("SamplingParams", "return_generation_logits", condition="kept_logits"),
    ),
    _output(
        "return_perf_metrics",
        None,
        Target("SamplingParams", "return_perf_metrics"),
    ),
    Field("return_num_input_tokens", _WORKER, _WORKER),
    Field("return_num_output_tokens", _WORKER, _WORKER),
    Field("exclude_input_in_output", _WORKER, _WORKER),
    Field("stop", _WORKER, _WORKER),
    Field("streaming", Target("Request", "streaming"), Target("generate_async", "streaming")),
    _passed(
        "prompt_embedding_table",
        Target("PromptTuningConfig", "embedding_table", convert.tensor, "prompt_table"),
    ),
    _passed(
        "prompt_table_extra_ids",
        Target("PromptTuningConfig", "input_token_extra_ids", convert.extra_ids, "prompt_table"),
    ),
    # The executor reads the size off the table.
    _passed("prompt_vocab_size", _WORKER),
    _passed(
        "cross_attention_mask",
        Target("Request", "cross_attention_mask", convert.tensor, "encoder"),
    ),
    _passed(
        "mrope_rotary_cos_sin",
        Target("MropeConfig", "mrope_rotary_cos_sin", convert.tensor, "mrope"),
    ),
    _passed(
        "mrope_position_deltas",
        Target("MropeConfig", "mrope_position_deltas", convert.first, "mrope"),
    ),
    _passed(
        "lora_task_id",
        Target("LoraConfig", "task_id", convert.first, "lora"),
        Target("LoRARequest", "lora_int_id", convert.first, "adapters"),
    ),
    _passed("lora_weights", Target("LoraConfig", "weights", convert.tensor, "lora"), _ADAPTERS_ARE_FILES),
    _passed("lora_config", Target("LoraConfig", "config", convert.tensor, "lora"), _ADAPTERS_ARE_FILES),
    _passed(
        "context_phase_params",
        Target("ContextPhaseParams", "opaque_state", convert.context_phase, "cache_transceiver"),
        Target("DisaggregatedParams", "opaque_state", convert.context_phase, "cache_transceiver"),
    ),
    _passed(
        "skip_cross_attn_blocks",
        Target("Request", "skip_cross_attn_blocks", convert.tensor, "encoder"),
    ),
    _retention("retention_token_range_starts", _RANGE, "token_start", convert.numbers),
    _retention("retention_token_range_ends", _RANGE, "token_end", convert.numbers),
    _retention("retention_token_range_priorities", _RANGE, "priority", convert.numbers),
    _retention("retention_token_range_durations_ms", _RANGE, "duration_ms", convert.numbers),
    _retention(
        "retention_decode_priority", "KvCacheRetentionConfig", "decode_retention_priority", convert.first
    ),
    _retention("retention_decode_duration_ms", "KvCacheRetentionConfig", "decode_duration_ms", convert.first),
    # PyTorch: the type chooses the field of GuidedDecodingParams that takes the guide.
    _passed(
        "guided_decoding_guide_type",
        Target("GuidedDecodingParams", "guide_type", convert.text, "guided"),
        Target("GuidedDecodingParams", "json_object", convert.text, "guided"),
    ),
    _passed(
        "guided_decoding_guide",
        Target("GuidedDecodingParams", "guide", convert.text, "guided"),
        Target("GuidedDecodingParams", "json", convert.text, "guided"),
    ),
    _passed(
        "lookahead_window_size",
        Target("LookaheadDecodingConfig", "max_window_size", convert.first, "lookahead"),
    ),
    _passed(
        "lookahead_ngram_size",
        Target("LookaheadDecodingConfig", "max_ngram_size", convert.first, "lookahead"),
    ),
    _passed(
        "lookahead_verification_set_size",
        Target("LookaheadDecodingConfig", "max_verification_set_size", convert.first, "lookahead"),
    ),
    _sampling("no_repeat_ngram_size", condition=_SAMPLER),
    Field("inflight_handle", _WORKER, _WORKER),
    _sampling("inflight_min_p", condition=_SAMPLER),
    # Engines: computed here from the logits.
    Field(
        "inflight_num_top_log_probs",
        Target("OutputConfig", "return_generation_logits", condition="gather_generation_logits"),
        Target("SamplingParams", "logprobs", condition="alternatives"),
    ),
    Field("inflight_log_prob_ids", _REFERENCE_ONLY, _REFERENCE_ONLY),
    # All three become one processor (`thinking`).
    _passed(
        "inflight_thinking_budget",
        _PYTORCH_ONLY,
        Target("SamplingParams", "logits_processor", convert.first, "undrafted"),
    ),
    _passed(
        "inflight_thinking_start_ids",
        _PYTORCH_ONLY,
        Target("SamplingParams", "logits_processor", convert.token_ids, "undrafted"),
    ),
    _passed(
        "inflight_thinking_end_ids",
        _PYTORCH_ONLY,
        Target("SamplingParams", "logits_processor", convert.token_ids, "undrafted"),
    ),
    Field(
        "inflight_num_prompt_log_probs",
        Target("OutputConfig", "return_context_logits", condition="gather_context_logits"),
        Target("SamplingParams", "return_context_logits", condition=_NO_REUSE),
    ),
    # Merged into the dense bias.
    Field(
        "inflight_logit_bias_ids",
        Target("Request", "embedding_bias", convert.float_vector),
        Target("SamplingParams", "embedding_bias", convert.float_vector, _OWN_SAMPLING),
    ),
    Field(
        "inflight_logit_bias_values",
        Target("Request", "embedding_bias", convert.float_vector),
        Target("SamplingParams", "embedding_bias", convert.float_vector, _OWN_SAMPLING),
    ),
    # The gateway repeats such a request instead, and compares.
    Field("inflight_generated_ids", _REFERENCE_ONLY, _REFERENCE_ONLY),
    Field("inflight_generated_lengths", _REFERENCE_ONLY, _REFERENCE_ONLY),
    Field("inflight_generated_cum_log_probs", _REFERENCE_ONLY, _REFERENCE_ONLY),
    _passed(
        "inflight_cache_salt",
        Target("Request", "cache_salt_id", convert.salt_id),
        Target("generate_async", "cache_salt", convert.text),
    ),
    Field("inflight_pooling", _REFERENCE_ONLY, _REFERENCE_ONLY),
    # The prompt becomes a `TokensPrompt` with `multi_modal_data`.
    _passed(
        "inflight_images",
        Unsupported("engines take an encoder's output for images"),
        Target("generate_async", "inputs", images.decode, "images"),
    ),
    Field("WAV", _REFERENCE_ONLY, _REFERENCE_ONLY),
    # KServe request parameters, not tensors; the worker passes them under these names.
    _passed(
        "request_type",
        Target("Request", "type", convert.text, "cache_transceiver"),
        Target("DisaggregatedParams", "request_type", convert.text, "cache_transceiver"),
    ),
    _passed(
        "priority",
        Target("Request", "priority", convert.first),
        Target("generate_async", "priority", convert.first),
    ),
)

BY_TENSOR = {one.tensor: one for one in FIELDS}
#: Request parameters among the fields, next to the tensors.
PARAMETERS = frozenset(parameter.name for parameter in _CORE.parameters)
