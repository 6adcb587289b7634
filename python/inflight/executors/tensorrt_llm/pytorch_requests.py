"""Requests of the worker into keywords of `LLM.generate_async`, by the table of `fields`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from inflight.executors.base import AdapterRefused, Request, SamplingConfig, StatusCode
from inflight.executors.tensorrt_llm import convert, images
from inflight.executors.tensorrt_llm.adapters import Adapters
from inflight.executors.tensorrt_llm.convert import Refused
from inflight.executors.tensorrt_llm.disaggregation import further_keywords
from inflight.executors.tensorrt_llm.engine_requests import (
    build_retention,
    dense_bias,
    request_phase,
)
from inflight.executors.tensorrt_llm.fields import BY_TENSOR, FIELDS, Refusal, Target
from inflight.executors.tensorrt_llm.guide_requests import check_guide
from inflight.executors.tensorrt_llm.images import IMAGES
from inflight.executors.tensorrt_llm.thinking import BUDGET, read_thinking

#: The field of GuidedDecodingParams that takes a guide of this type.
_GUIDES = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf_grammar": "grammar",
    "structural_tag": "structural_tag",
}
#: Logits of one request. Those of outputs take pinned memory, those of prompts take it on the GPU, next to
#: the KV cache: one tenth of what is free, by default.
MAX_LOGITS_BYTES = 2 << 30
#: What keeps the cache blocks of one client from others.
SALT = "inflight_cache_salt"
#: The end id of a request without one; `ignore_eos` sends the same to the engine.
_NO_END = -1


@dataclass(frozen=True)
class Started:
    """What the LLM was started with, as far as requests depend on it."""

    #: Its `max_beam_width`, the only width that it runs.
    beam_width: int = 1
    #: Whether it runs the overlap scheduler.
    overlaps: bool = False
    #: Whether it computes long prompts in chunks.
    in_chunks: bool = False
    #: Whether its sampler applies what `fields` has the condition `full_sampler` for, seeds among it, and
    #: ranks beams as they ask for. Otherwise it ignores both.
    full_sampler: bool = True
    #: What compiles guides, and whether it takes the later form of structural tags only.
    guide_backend: str = "xgrammar"
    takes_formats: bool = False
    #: Turns a prompt of text alone back into text. Positions of mRoPE come from the input processor, which
    #: TensorRT-LLM leaves out for token ids.
    decode: Callable[[list[int]], str] | None = None
    #: `LLM.preprocess`, where there is one: it runs the input processor outside of the loop.
    preprocess: Callable[..., Any] | None = None


class SamplingBuilder:
    """Builds calls with the classes of one installed version. `find`: a class by its name in the table."""

    def __init__(
        self,
        find: Any,
        bindings: Any,
        torch: Any,
        vocab_size: int,
        adapters: Adapters | None = None,
        started: Started | None = None,
    ) -> None:
        self._started = started or Started()
        self._beam_width = self._started.beam_width
        self._adapters = adapters
        self._find = find
        self._lora_request = find("LoRARequest")
        self._params = find("SamplingParams")
        self._guided = find("GuidedDecodingParams")
        self._disaggregated = find("DisaggregatedParams")
        self._bindings = bindings
        self._torch = torch
        self._vocab_size = vocab_size
        self._plain = [
            (attrgetter(field.path), field.pytorch.keyword)
            for field in FIELDS
            if field.path
            and field.path.startswith("sampling_config.")
            and isinstance(field.pytorch, Target)
            and field.pytorch.owner == "SamplingParams"
            and field.pytorch.keyword not in ("n", "best_of")
            and (field.pytorch.keyword != "seed" or self._started.full_sampler)
        ]

    @property
    def adapters(self) -> Adapters | None:
        """The LoRA adapters; None where the worker was started without LoRA."""
        return self._adapters

    def require_adapters(self) -> Adapters:
        """The LoRA adapters. Errors: `AdapterRefused` where the worker was started without LoRA."""
        if self._adapters is None:
            raise AdapterRefused(
                StatusCode.UNIMPLEMENTED,
                "this worker was started without LoRA; pass `lora_target_modules`",
            )
        return self._adapters

    def build(self, request: Request) -> dict[str, Any]:
        """The keywords. Errors: `Refused`; whatever the classes raise."""
        keywords: dict[str, Any] = {
            "max_tokens": request.max_tokens,
            "detokenize": False,
            "exclude_input_from_output": True,
            # Rows hold matched stop words.
            "include_stop_str_in_output": True,
            "end_id": _NO_END if request.end_id is None else request.end_id,
        }
        if request.end_id is None:
            keywords["ignore_eos"] = True
        if request.pad_id is not None:
            keywords["pad_id"] = request.pad_id
        for get, keyword in self._plain:
            value = get(request)
            if value is not None:
                keywords[keyword] = value
        streaming = self._sequences(request, keywords)
        self._outputs(request, keywords, streaming)
        if request.embedding_bias or request.logit_bias:
            bias = dense_bias(request, self._vocab_size)
            keywords["embedding_bias"] = convert.float_vector(bias, self._torch)
        call: dict[str, Any] = {"inputs": request.input_token_ids, "streaming": streaming}
        self._tensors(request, keywords, call)
        decode = self._started.decode
        if decode is not None and not isinstance(call["inputs"], dict):
            call["inputs"] = {"prompt": decode(request.input_token_ids)}
            keywords["add_special_tokens"] = False
        stops, bads = _split(request.stop_words), _split(request.bad_words)
        if stops[0]:
            keywords["stop_token_ids"] = stops[0]
        if bads[0]:
            keywords["bad_token_ids"] = bads[0]
        params = self._params(**keywords)
        _set_words(params, "stop", stops[1])
        _set_words(params, "bad", bads[1])
        call["sampling_params"] = params
        if "multi_modal_data" in call["inputs"] and self._started.preprocess is not None:
            call["inputs"] = self._started.preprocess(call["inputs"], params)
        return call

    def _sequences(self, request: Request, keywords: dict[str, Any]) -> bool:
        """How many sequences are asked for; whether they are streamed. TensorRT-LLM fails on a width that is
        not its `max_beam_width`, some versions for every request that runs."""
        config = request.sampling_config
        width = max(config.beam_width, 1)
        if width == self._beam_width:
            if width > 1:
                self._check_ranking(config)
                keywords.update(use_beam_search=True, best_of=width)
                keywords["n"] = config.num_return_sequences if config.num_return_sequences > 1 else width
            elif config.num_return_sequences > 1:
                keywords["n"] = config.num_return_sequences
            return request.streaming
        if width == 1 and _is_one_greedy_token(request):
            # The best of several beams, as which the worker's own first request is answered.
            keywords.update(use_beam_search=True, best_of=self._beam_width, n=1)
            return False
        raise Refused(
            f"`beam_width` is `{width}`, and this worker serves `{self._beam_width}` only, its "
            "`max_beam_width`"
        )

    def _check_ranking(self, config: SamplingConfig) -> None:
        """Refuses what would rank or end beams in another way, where the sampler does not do it."""
        asked = {
            "len_penalty": config.length_penalty not in (None, 0.0),
            "beam_search_diversity_rate": config.beam_search_diversity_rate not in (None, 0.0),
            "early_stopping": config.early_stopping not in (None, 1),
        }
        for name, is_asked in asked.items():
            if is_asked and not self._started.full_sampler:
                raise Refused(
                    f"`{name}` is ignored by this TensorRT-LLM's TorchSampler; leave it out, or start the "
                    "worker without `sampler_type`"
                )

    def _outputs(self, request: Request, keywords: dict[str, Any], streaming: bool) -> None:
        output = request.output_config
        log_probs = output.return_log_probs or output.num_top_log_probs
        if log_probs and self._beam_width > 1:
            raise Refused("log probabilities are not supported together with beam search")
        if log_probs:
            keywords["logprobs"] = max(output.num_top_log_probs, 1)
        if output.return_generation_logits:
            if streaming:
                # They are read when a message is written, by when they may be those of a later token.
                raise Refused(
                    "`return_generation_logits` is not supported in a stream, where TensorRT-LLM's logits "
                    "may be those of another token; ask for the whole answer"
                )
            self._check_logits("return_generation_logits", "max_tokens", request.max_tokens)
            keywords["return_generation_logits"] = True
        for name, is_asked in (
            ("return_context_logits", output.return_context_logits),
            ("inflight_num_prompt_log_probs", output.num_prompt_log_probs is not None),
        ):
            if is_asked:
                self._check_logits(name, "prompt tokens", len(request.input_token_ids))
                keywords["return_context_logits"] = True
        if output.return_perf_metrics:
            keywords["return_perf_metrics"] = True

    def _check_logits(self, name: str, what: str, tokens: int) -> None:
        """Refuses logits for whose memory an allocation may fail, which fails all that runs: TensorRT-LLM
        has room for as many rows as a request may have tokens."""
        most = MAX_LOGITS_BYTES // (4 * self._vocab_size)
        if tokens > most:
            raise Refused(
                f"`{name}` for `{tokens}` {what} is more than this worker keeps of a vocabulary of "
                f"`{self._vocab_size}`; send at most {most}"
            )

    def _tensors(self, request: Request, keywords: dict[str, Any], call: dict[str, Any]) -> None:
        given: dict[str, Any] = {}
        for tensor in request.tensors:
            field = BY_TENSOR.get(tensor.name)
            if field is not None and isinstance(field.pytorch, Refusal):
                raise Refused(f"`{tensor.name}` cannot be taken: {field.pytorch.reason}")
            if field is None or not isinstance(field.pytorch, Target) or field.path is not None:
                raise Refused(f"the input `{tensor.name}` is not supported by TensorRT-LLM's PyTorch runtime")
            given[tensor.name] = field.pytorch.convert(tensor, self._torch)
        kind = given.get("guided_decoding_guide_type")
        if kind is not None:
            guide = check_guide(
                kind,
                given.get("guided_decoding_guide"),
                backend=self._started.guide_backend,
                takes_formats=self._started.takes_formats,
            )
            wanted = {"json_object": True} if kind == "json" else {_GUIDES[kind]: guide}
            keywords["guided_decoding"] = self._guided(**wanted)
        elif "guided_decoding_guide" in given:
            raise Refused("`guided_decoding_guide` was sent without `guided_decoding_guide_type`; send both")
        task_id = given.get("lora_task_id")
        if task_id is not None:
            if self._adapters is None:
                raise Refused(
                    "`lora_task_id` was sent, and the worker was started without `lora_adapter_dir` and "
                    "`lora_target_modules`"
                )
            call["lora_request"] = self._lora_request(
                lora_name=str(task_id), lora_int_id=task_id, lora_path=self._adapters.path(task_id)
            )
        if given.get(IMAGES):
            check_beside_images(request, given)
            call["inputs"] = {
                "prompt_token_ids": request.input_token_ids,
                "multi_modal_data": {"image": given[IMAGES]},
            }
            # Placeholders of different images are the same tokens. Without it, a request whose images
            # TensorRT-LLM cannot hash would find cache blocks of other images.
            own = images.salt(next(tensor for tensor in request.tensors if tensor.name == IMAGES))
            given[SALT] = f"{given[SALT]}:{own}" if SALT in given else own
        self._think(request, given, keywords, call)
        if SALT in given:
            call["cache_salt"] = given[SALT]
        if "priority" in given:
            call["priority"] = given["priority"]
        retention = build_retention(self._bindings, given)
        if retention is not None:
            call["kv_cache_retention_config"] = retention
        phase_kind, phase = request_phase(given)
        if phase_kind == "context_only" and self._started.overlaps:
            raise Refused(
                "`request_type` is `context_only`, which the overlap scheduler does not support; start the "
                "worker with `disable_overlap_scheduler=true`"
            )
        if phase_kind is not None:
            state = (
                {}
                if phase is None
                else {
                    "first_gen_tokens": phase["first_gen_tokens"],
                    "ctx_request_id": phase["req_id"],
                    "opaque_state": phase["opaque_state"],
                    "draft_tokens": phase["draft_tokens"],
                    **further_keywords(phase["more"], self._find),
                }
            )
            call["disaggregated_params"] = self._disaggregated(request_type=phase_kind, **state)

    def _think(
        self, request: Request, given: dict[str, Any], keywords: dict[str, Any], call: dict[str, Any]
    ) -> None:
        """Bounds the reasoning, where the request asks for it."""
        encodes = self._started.decode is not None or isinstance(call["inputs"], dict)
        processor = read_thinking(
            given,
            self._vocab_size,
            # TensorRT-LLM may make another number of tokens of what it encodes anew.
            prompt=None if encodes else len(request.input_token_ids),
            lags=self._started.overlaps,
            in_chunks=self._started.in_chunks,
        )
        if processor is None:
            return
        beside = {
            "guided_decoding_guide": "guided_decoding" in keywords,
            "beam_width": self._beam_width > 1,
            "request_type": encodes and "request_type" in given,
        }
        for name, is_asked in beside.items():
            if is_asked:
                raise Refused(f"`{BUDGET}` is not supported together with `{name}`; send one of them")
        keywords["logits_processor"] = processor


def check_beside_images(request: Request, given: dict[str, Any]) -> None:
    """Refuses what needs the prompt's own tokens: the model's processor makes others of it for images."""
    asked = {
        "inflight_num_prompt_log_probs": request.output_config.num_prompt_log_probs is not None,
        "return_context_logits": request.output_config.return_context_logits,
        "request_type": "request_type" in given,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise Refused(f"`{name}` is not supported together with `{IMAGES}`; send one of them")


def _is_one_greedy_token(request: Request) -> bool:
    """Whether a request asks for the most probable token and no more, which is the best of any beams."""
    sampling = request.sampling_config
    return request.max_tokens == 1 and sampling.top_k == 1 and sampling.num_return_sequences <= 1


def _set_words(params: Any, name: str, words: list[list[int]]) -> None:
    """Words of several tokens, which have only a private place without a tokenizer.

    TensorRT-LLM looks there only where there are texts too; one each, because a match is reported by its
    text.
    """
    if not words:
        return
    if not (hasattr(params, name) and hasattr(params, f"_{name}_word_ids")):
        raise Refused("this TensorRT-LLM does not support stop or bad words of several tokens as ids")
    setattr(params, name, [f"{name} word {number}" for number in range(len(words))])
    setattr(params, f"_{name}_word_ids", words)


def _split(words: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Words of one token, and the others."""
    return [word[0] for word in words if len(word) == 1], [word for word in words if len(word) > 1]
