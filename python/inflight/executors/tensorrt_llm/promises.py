"""What follows from the table of `fields`: names that a runtime must have, capabilities it may promise.

Owns the names that requests need besides those of the table.
"""

from __future__ import annotations

from collections.abc import Iterator

from inflight._native import Capability
from inflight.executors.tensorrt_llm.fields import FIELDS, Refusal, Runtime, Target

#: Keywords that every request needs besides those of the table.
ALWAYS: dict[Runtime, tuple[tuple[str, str], ...]] = {
    "engines": (
        ("OutputConfig", "exclude_input_from_output"),
        ("Request", "sampling_config"),
        ("Request", "output_config"),
        ("Request", "client_id"),
    ),
    "pytorch": (
        ("SamplingParams", "detokenize"),
        ("SamplingParams", "ignore_eos"),
        ("SamplingParams", "exclude_input_from_output"),
        ("SamplingParams", "include_stop_str_in_output"),
        ("generate_async", "sampling_params"),
    ),
}

#: Capability -> further keywords without which it is not available.
ALSO: dict[Runtime, dict[str, tuple[tuple[str, str], ...]]] = {
    "engines": {
        Capability.ENCODER: (("Request", "encoder_input_token_ids"),),
        Capability.DRAFT_TOKENS: (("Request", "external_draft_tokens_config"),),
        Capability.PROMPT_TUNING: (("Request", "prompt_tuning_config"),),
        Capability.MROPE: (("Request", "mrope_config"),),
        Capability.LORA: (("Request", "lora_config"),),
        Capability.LOOKAHEAD: (("Request", "lookahead_config"),),
        Capability.GUIDED_DECODING: (("Request", "guided_decoding_params"),),
        Capability.KV_CACHE_RETENTION: (
            ("Request", "kv_cache_retention_config"),
            ("KvCacheRetentionConfig", "token_range_retention_configs"),
        ),
        Capability.CONTEXT_PHASE: (
            ("Request", "context_phase_params"),
            ("ContextPhaseParams", "first_gen_tokens"),
            ("ContextPhaseParams", "req_id"),
            ("ContextPhaseParams", "draft_tokens"),
        ),
    },
    "pytorch": {
        Capability.BEAM_SEARCH: (("SamplingParams", "use_beam_search"),),
        Capability.LORA: (
            ("generate_async", "lora_request"),
            ("LoRARequest", "lora_name"),
            ("LoRARequest", "lora_path"),
        ),
        Capability.GUIDED_DECODING: (
            ("SamplingParams", "guided_decoding"),
            ("GuidedDecodingParams", "regex"),
            ("GuidedDecodingParams", "grammar"),
            ("GuidedDecodingParams", "structural_tag"),
        ),
        Capability.IMAGES: (("generate_async", "cache_salt"),),
        Capability.KV_CACHE_RETENTION: (
            ("generate_async", "kv_cache_retention_config"),
            ("KvCacheRetentionConfig", "token_range_retention_configs"),
        ),
        Capability.CONTEXT_PHASE: (
            ("generate_async", "disaggregated_params"),
            ("DisaggregatedParams", "first_gen_tokens"),
            ("DisaggregatedParams", "ctx_request_id"),
            ("DisaggregatedParams", "draft_tokens"),
        ),
    },
}


def keywords(runtime: Runtime) -> Iterator[tuple[str, str, str | None]]:
    """Every (class, keyword, capability) of a runtime's requests; capability None: always needed."""
    for owner, keyword in ALWAYS[runtime]:
        yield owner, keyword, None
    for field in FIELDS:
        target = field.target(runtime)
        if isinstance(target, Target):
            yield target.owner, target.keyword, field.capability
    for capability, pairs in ALSO[runtime].items():
        for owner, keyword in pairs:
            yield owner, keyword, capability


def capabilities(runtime: Runtime, conditions: frozenset[str], off: frozenset[str]) -> tuple[str, ...]:
    """What is promised: capabilities all of whose conditions hold and that the installed version has.

    A capability is had when no field of it is unsupported; a field's condition outside `conditions` takes
    the capability away. `off`: what the start-up check found missing.
    """
    had: dict[str, bool] = {}
    for field in FIELDS:
        if field.capability is None:
            continue
        target = field.target(runtime)
        possible = isinstance(target, Refusal | None) or (
            isinstance(target, Target) and (target.condition is None or target.condition in conditions)
        )
        had[field.capability] = had.get(field.capability, True) and possible
    return tuple(name for name, possible in had.items() if possible and name not in off)
