"""Requests of the worker into `bindings.executor.Request`, by the table of `fields`.

Owns how keywords that came from several inputs make one object. Knows nothing of the executor that takes it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from inflight.executors.base import Request
from inflight.executors.tensorrt_llm import convert
from inflight.executors.tensorrt_llm.convert import Refused
from inflight.executors.tensorrt_llm.fields import BY_TENSOR, FIELDS, PARENTS, Target
from inflight.executors.tensorrt_llm.guide_requests import GUIDE_TYPES, check_guide

REQUEST_TYPES = {
    "context_and_generation": "REQUEST_TYPE_CONTEXT_AND_GENERATION",
    "context_only": "REQUEST_TYPE_CONTEXT_ONLY",
    "generation_only": "REQUEST_TYPE_GENERATION_ONLY",
}

#: Paths that the builder itself puts together.
_TOGETHER = frozenset(
    {
        "embedding_bias",
        "logit_bias",
        "input_token_ids",
        "output_config.num_top_log_probs",
        "output_config.num_prompt_log_probs",
    }
)


def _plain() -> list[tuple[Callable[[Any], Any], str, str]]:
    """(value of a request, class, keyword) of each field that is a separate value."""
    return [
        (attrgetter(field.path), field.engines.owner, field.engines.keyword)
        for field in FIELDS
        if field.path and field.path not in _TOGETHER and isinstance(field.engines, Target)
    ]


def dense_bias(request: Request, vocab_size: int) -> bytes:
    """The dense and the sparse bias as one: float32 `[vocab_size]`, or empty."""
    if not request.logit_bias:
        return request.embedding_bias
    packed = bytearray(request.embedding_bias or bytes(4 * vocab_size))
    for token, bias in request.logit_bias:
        if not 0 <= 4 * token <= len(packed) - 4:
            raise Refused(f"the token `{token}` of the bias is not in the vocabulary")
        (before,) = struct.unpack_from("<f", packed, 4 * token)
        struct.pack_into("<f", packed, 4 * token, before + bias)
    return bytes(packed)


class RequestBuilder:
    """Builds requests with the classes of one `tensorrt_llm.bindings.executor`."""

    def __init__(
        self,
        api: Any,
        torch: Any,
        vocab_size: int,
        *,
        encoder_decoder: bool = False,
        decoder_start: int | None = None,
        fast_logits: bool = False,
        reuses_blocks: bool = False,
        takes_formats: bool = False,
    ) -> None:
        """`takes_formats`: xgrammar reads structural tags in the later form."""
        self._takes_formats = takes_formats
        self._reuses_blocks = reuses_blocks
        self._api = api
        self._decoder_start = decoder_start
        self._fast_logits = fast_logits
        self._torch = torch
        self._vocab_size = vocab_size
        self._encoder_decoder = encoder_decoder
        self._plain = _plain()

    def build(self, request: Request, tag: int) -> Any:
        """The request under the client id `tag`. Errors: `Refused`; whatever the classes raise."""
        keywords: dict[str, dict[str, Any]] = {"Request": {}}
        for get, owner, keyword in self._plain:
            value = get(request)
            # Flags that are off and empty lists ask for nothing; neither does a default count of one.
            if value is None or value is False or value == []:
                continue
            keywords.setdefault(owner, {})[keyword] = value
        self._outputs(request, keywords)
        self._sequences(request, keywords)
        if request.embedding_bias or request.logit_bias:
            bias = dense_bias(request, self._vocab_size)
            keywords["Request"]["embedding_bias"] = convert.float_vector(bias, self._torch)
        keywords["Request"]["input_token_ids"] = request.input_token_ids
        if request.tensors or self._encoder_decoder:
            self._tensors(request, keywords)
        for owner, (parent, keyword) in PARENTS["engines"].items():
            if owner in keywords:
                keywords[parent][keyword] = getattr(self._api, owner)(**keywords[owner])
        return self._api.Request(client_id=tag, **keywords["Request"])

    def find_guide(self, request: Request) -> tuple[str, str] | None:
        """The type and text of the request's guide, as the engine will get them; None: it has none that can
        be wrong. Errors: `Refused`."""
        given = {tensor.name: tensor for tensor in request.tensors if tensor.name in _GUIDE}
        if len(given) < len(_GUIDE):
            return None
        kind, guide = (convert.text(given[name]) for name in _GUIDE)
        checked = check_guide(kind, guide, takes_formats=self._takes_formats)
        return None if checked is None else (kind, checked)

    def _outputs(self, request: Request, keywords: dict[str, dict[str, Any]]) -> None:
        wanted = keywords.setdefault("OutputConfig", {})
        wanted["exclude_input_from_output"] = True
        # 0 alternatives of the prompt still ask for its own log probabilities.
        if request.output_config.num_prompt_log_probs is not None:
            wanted["return_context_logits"] = True
        if request.output_config.num_top_log_probs:
            wanted["return_generation_logits"] = True

    def _sequences(self, request: Request, keywords: dict[str, dict[str, Any]]) -> None:
        config = keywords.setdefault("SamplingConfig", {})
        if request.sampling_config.num_return_sequences <= 1:
            config.pop("num_return_sequences", None)

    def _tensors(self, request: Request, keywords: dict[str, dict[str, Any]]) -> None:
        given: dict[str, Any] = {}
        for tensor in request.tensors:
            field = BY_TENSOR.get(tensor.name)
            if field is None or (field.path is not None):
                raise Refused(f"the tensorrt_llm executor does not support the input `{tensor.name}`")
            if isinstance(field.engines, Target):
                given[tensor.name] = field.engines.convert(tensor, self._torch)
        self._gather(given, request, keywords)

    def _gather(self, given: dict[str, Any], request: Request, keywords: dict[str, dict[str, Any]]) -> None:
        for name, value in given.items():
            target = BY_TENSOR[name].engines
            if name not in _TOGETHER_ONLY and isinstance(target, Target):
                keywords.setdefault(target.owner, {})[target.keyword] = value
        _require(given, "lora_weights", "lora_config")
        _require(given, "lora_config", "lora_weights")
        _require(given, "lora_weights", "lora_task_id")
        _require(given, "mrope_rotary_cos_sin", "mrope_position_deltas")
        _require(given, "mrope_position_deltas", "mrope_rotary_cos_sin")
        _require(given, "draft_logits", "draft_input_ids")
        _require(given, "draft_acceptance_threshold", "draft_input_ids")
        _require(given, "prompt_table_extra_ids", "prompt_embedding_table")
        _require(given, "guided_decoding_guide", "guided_decoding_guide_type")
        for name in _LOOKAHEAD:
            for other in _LOOKAHEAD:
                _require(given, name, other)
        if self._fast_logits and "ExternalDraftTokensConfig" in keywords:
            keywords["ExternalDraftTokensConfig"]["fast_logits"] = True
        self._guide(given, keywords)
        self._phase(given, keywords)
        self._decoder(given, request, keywords)
        retention = build_retention(self._api, given)
        if retention is not None:
            keywords.pop("KvCacheRetentionConfig", None)
            keywords["Request"]["kv_cache_retention_config"] = retention
        if "prompt_embedding_table" in given:
            self._extra_ids(request, keywords["PromptTuningConfig"])

    def _extra_ids(self, request: Request, config: dict[str, Any]) -> None:
        """As many as the prompt has tokens; the executor distinguishes prompts with different tables by them
        where it shares their blocks."""
        extra, needed = config.pop("input_token_extra_ids", None), len(request.input_token_ids)
        if extra is not None and len(extra) >= needed:
            config["input_token_extra_ids"] = extra[:needed]
        elif self._reuses_blocks:
            raise Refused(
                f"`prompt_table_extra_ids` has `{len(extra or ())}` values for `{needed}` prompt tokens, and "
                "this worker reuses cache blocks; send one for each"
            )

    def _guide(self, given: Mapping[str, Any], keywords: dict[str, dict[str, Any]]) -> None:
        kind = given.get("guided_decoding_guide_type")
        if kind is None:
            return
        guide = check_guide(kind, given.get("guided_decoding_guide"), takes_formats=self._takes_formats)
        guide_type = getattr(self._api.GuidedDecodingParams.GuideType, GUIDE_TYPES[kind], None)
        if guide_type is None:
            raise Refused(f"this TensorRT-LLM has no guides of the type `{kind}`")
        keywords.setdefault("GuidedDecodingParams", {})["guide_type"] = guide_type
        if guide is not None:
            keywords["GuidedDecodingParams"]["guide"] = guide

    def _phase(self, given: Mapping[str, Any], keywords: dict[str, dict[str, Any]]) -> None:
        kind, phase = request_phase(given)
        if kind is not None:
            keywords["Request"]["type"] = getattr(self._api.RequestType, REQUEST_TYPES[kind])
        if phase is not None:
            keywords.pop("ContextPhaseParams", None)
            # By position: the recorded names are those of a helper, not of the class.
            keywords["Request"]["context_phase_params"] = self._api.ContextPhaseParams(
                phase["first_gen_tokens"], phase["req_id"], phase["opaque_state"], phase["draft_tokens"]
            )

    def _decoder(
        self, given: Mapping[str, Any], request: Request, keywords: dict[str, dict[str, Any]]
    ) -> None:
        decoder = given.get("decoder_input_ids")
        length = given.get("decoder_input_lengths")
        if decoder is not None and length:
            decoder = decoder[:length]
        if decoder is None and not self._encoder_decoder:
            return
        if not decoder:
            # The model's own first token; else Triton's default.
            start = request.pad_id if self._decoder_start is None else self._decoder_start
            decoder = [] if start is None else [start]
        keywords["Request"]["input_token_ids"] = decoder
        if request.input_token_ids:
            keywords["Request"]["encoder_input_token_ids"] = request.input_token_ids


_GUIDE = ("guided_decoding_guide_type", "guided_decoding_guide")
#: Inputs that become part of an object only together with others.
_TOGETHER_ONLY = frozenset(
    {
        "guided_decoding_guide_type",
        "context_phase_params",
        "request_type",
        "decoder_input_ids",
        "decoder_input_lengths",
        "retention_token_range_starts",
        "retention_token_range_ends",
        "retention_token_range_priorities",
        "retention_token_range_durations_ms",
        "retention_decode_priority",
        "retention_decode_duration_ms",
    }
)
_LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")


def _require(given: Mapping[str, Any], name: str, other: str) -> None:
    if name in given and other not in given:
        raise Refused(f"`{name}` was sent without `{other}`; send both or neither")


def request_phase(given: Mapping[str, Any]) -> tuple[str | None, dict[str, Any] | None]:
    """The request's type, where it is not the usual one, and what its context phase left."""
    kind, phase = given.get("request_type"), given.get("context_phase_params")
    if kind is not None and kind not in REQUEST_TYPES:
        raise Refused(f"`request_type` is `{kind}`; send one of {', '.join(REQUEST_TYPES)}")
    if phase is not None:
        if kind not in (None, "generation_only"):
            raise Refused(f"`context_phase_params` was sent with the request type `{kind}`")
        kind = "generation_only"
    elif kind == "generation_only":
        raise Refused("`request_type` is `generation_only` without `context_phase_params`")
    return kind, phase


def build_retention(api: Any, given: Mapping[str, Any]) -> Any:
    """`KvCacheRetentionConfig` of the retention inputs; None without any.

    An end of -1 is the prompt's end, a duration of -1 has no expiry (Triton's wire has no null).
    """
    if not any(name.startswith("retention_") for name in given):
        return None
    starts = given.get("retention_token_range_starts", [])
    ends = given.get("retention_token_range_ends", [])
    priorities = given.get("retention_token_range_priorities", [])
    durations = given.get("retention_token_range_durations_ms") or [-1] * len(starts)
    if not len(starts) == len(ends) == len(priorities) == len(durations):
        raise Refused(
            "the `retention_token_range_*` inputs differ in length; send one value of each per range"
        )
    one = api.KvCacheRetentionConfig.TokenRangeRetentionConfig
    ranges = [
        one(
            token_start=start,
            token_end=None if end < 0 else end,
            priority=priority,
            duration_ms=_milliseconds(duration),
        )
        for start, end, priority, duration in zip(starts, ends, priorities, durations, strict=True)
    ]
    keywords: dict[str, Any] = {}
    if "retention_decode_priority" in given:
        keywords["decode_retention_priority"] = given["retention_decode_priority"]
    if "retention_decode_duration_ms" in given:
        keywords["decode_duration_ms"] = _milliseconds(given["retention_decode_duration_ms"])
    return api.KvCacheRetentionConfig(token_range_retention_configs=ranges, **keywords)


def _milliseconds(value: int) -> Any:
    """The bindings take durations as `timedelta`."""
    from datetime import timedelta

    return None if value < 0 else timedelta(milliseconds=value)
