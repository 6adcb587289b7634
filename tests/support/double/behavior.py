"""What the double's classes for serving do, over its engine, as upstream does it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import queue
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from support.double import adapters, grammar
from support.double.engine import (
    CACHED,
    MODULES,
    REFUSE,
    VOCAB,
    Engine,
    Job,
    drawing,
    largest,
    logits,
    record,
    record_engine,
)


class Executor:
    """`bindings.executor.Executor`."""

    values: dict[str, Any]

    def _sim_begin(self) -> None:
        self._sim_reuses = check_configuration(self.values)
        self._sim_path = Path(self.values.get("decoder_model_path") or self.values["model_path"])
        built = json.loads((self._sim_path / "config.json").read_text())["build_config"]
        self._sim_longest = built.get("max_seq_len")
        self._sim = Engine()
        record_engine(self)

    def enqueue_request(self, request: Any) -> int:
        return self.enqueue_requests([request])[0]  # type: ignore[no-any-return]

    def enqueue_requests(self, requests: Any) -> list[Any]:
        ids = []
        for request in requests:
            record(request)
            given = request.values
            is_long = len(given["input_token_ids"]) > (self._sim_longest or 10**6)
            if given["input_token_ids"][:1] == [REFUSE] or is_long:
                raise RuntimeError("Prompt length exceeds maximum input length")
            tuning = given["prompt_tuning_config"]
            if tuning is not None and self._sim_reuses:
                extra = tuning.values["input_token_extra_ids"]
                if extra is None or len(extra) != len(given["input_token_ids"]):
                    raise RuntimeError("Input token extra ids must be provided when enabling kv cache reuse")
            sampling, output = request.values["sampling_config"], request.values["output_config"]
            config = sampling.values
            identity = self._sim.next_id
            self._sim.next_id += 1
            job = Job(
                identity,
                list(given["input_token_ids"]),
                given["max_tokens"],
                given["streaming"],
                end_id=given["end_id"],
                stop_words=given["stop_words"],
                client_id=given["client_id"],
                output=output.values,
                beams=config["beam_width"],
                sequences=config["num_return_sequences"] or 1 if config["beam_width"] == 1 else 1,
                context_only=getattr(given["type"], "name", "") == "REQUEST_TYPE_CONTEXT_ONLY",
                bad_guide=grammar.fault_of(given["guided_decoding_params"]),
                bad_words=given["bad_words"],
                biased=largest(given["embedding_bias"]),
                min_tokens=config["min_tokens"],
                forced=forced_by(given["guided_decoding_params"], self._sim_path),
                random=drawing(config["temperature"], config["seed"], self._sim.random),
            )
            ids.append(identity)
            self._sim.add(job)
        return ids

    def await_responses(self, timeout: timedelta | None = None) -> list[Any]:
        assert timeout is None or isinstance(timeout, timedelta), "the bindings take a timedelta"
        sim = self._sim
        with sim.changed:
            sim.changed.wait_for(
                lambda: sim.ready or sim.broken or sim.stopped,
                None if timeout is None else timeout.total_seconds(),
            )
            if sim.broken:
                raise RuntimeError(
                    "[TensorRT-LLM][ERROR] CUDA error: an illegal memory access\nat gptDecoder.cpp:1"
                )
            taken, sim.ready = sim.ready, []
            return taken

    def cancel_request(self, id: int | None = None) -> None:
        assert id is not None
        self._sim.cancel(id)

    def get_latest_iteration_stats(self) -> list[Any]:
        with self._sim.changed:
            taken, self._sim.stats = self._sim.stats, []
            return taken

    def can_enqueue_requests(self) -> bool:
        return not (self._sim.broken or self._sim.stopped)

    def shutdown(self) -> None:
        self._sim.stop()


def forced_by(params: Any, model: Path) -> list[int] | None:
    """The tokens that a request's guide leaves, of the bindings' `GuidedDecodingParams`."""
    given = {} if params is None else params.values
    kind = getattr(given.get("guide_type"), "name", "")
    return grammar.tokens_of(kind, given["guide"], model) if kind else None


def check_configuration(values: dict[str, Any]) -> bool:
    """What the executor asserts of its configuration and its engine when it loads; whether blocks are
    reused."""
    config = values["executor_config"].values

    def part(name: str) -> dict[str, Any]:
        held = config[name]
        return getattr(held, "values", None) or {}

    cache, parallel = part("kv_cache_config"), part("parallel_config")
    is_encoder_decoder = values.get("encoder_model_path") is not None
    if is_encoder_decoder and cache.get("cross_kv_cache_fraction") is None:
        raise RuntimeError("Must set crossKvCacheFraction for encoder-decoder model")
    path = Path(values.get("decoder_model_path") or values["model_path"])
    built = json.loads((path / "config.json").read_text())["build_config"]
    paged = (built.get("plugin_config") or {}).get("use_paged_context_fmha", True)
    if config["enable_chunked_context"] is True and not paged:
        raise RuntimeError("Chunked context is not supported for this configuration")
    orchestrator = getattr(parallel.get("orchestrator_config"), "values", None)
    if orchestrator is not None:
        spawns, participants = orchestrator["spawn_processes"], parallel["participant_ids"]
        if spawns is not False and participants is not None:
            raise RuntimeError("Participant ids should not be set when using ORCHESTRATOR mode with spawn")
        if spawns is False and (not participants or 0 in participants):
            raise RuntimeError("Participant ids must be set, without 0, when not spawning processes")
    return cache.get("enable_block_reuse") is not False and paged and not built.get("gather_context_logits")


class IterationStats:
    """`bindings.executor.IterationStats`."""

    values: dict[str, Any]

    def to_json_str(self) -> str:
        names = {"iter": "iter", "num_active_requests": "numActiveRequests"}
        names["max_num_active_requests"] = "maxNumActiveRequests"
        return json.dumps({json_name: self.values.get(name, 0) for name, json_name in names.items()})


class Rank:
    """A worker process of the LLM, as the future that ends with it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def done(self) -> bool:
        return self._engine.broken or self._engine.stopped


class Proxy:
    """As much of `GenerationExecutorProxy` as the adapter looks at."""

    def __init__(self, engine: Engine) -> None:
        self.mpi_futures = [Rank(engine)]


class IterationResult:
    """`executor.result.IterationResult`: its queue belongs to the loop on which it was made, if to any."""

    def _sim_begin(self) -> None:
        self._sim_done, self._sim_timeout = False, 2.0
        self._sim_next: Any = None
        try:
            self._sim_loop: Any = asyncio.get_running_loop()
        except RuntimeError:
            self._sim_loop = None

    def set_timeout(self, timeout: float) -> None:
        self._sim_timeout = timeout

    def mark_undone(self) -> None:
        self._sim_done = False

    def get_results(self) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        while not self._sim_done:
            data = self._sim_next()
            if data is None and self._sim_loop is None:
                self._sim_done = True
                break
            # A loop's queue gives None where it stays empty: a TypeError.
            results.append(json.loads(data))
        return results

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        if self._sim_done:
            raise StopAsyncIteration
        assert self._sim_loop is asyncio.get_running_loop(), "made on another loop, or on none"
        assert self._sim_timeout > 0, "without a time to wait nothing is taken"
        deadline = self._sim_loop.time() + self._sim_timeout
        while (data := self._sim_next()) is None:
            if self._sim_loop.time() >= deadline:
                self._sim_done = True
                raise StopAsyncIteration
            await asyncio.sleep(0.001)
        return json.loads(data)


#: Architectures with an input processor of their own.
SEEING = {"Qwen2_5_VLForConditionalGeneration"}


class Tokenizer:
    """Spells a token as its number."""

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


class SeeingProcessor:
    """Any registered input processor."""


def check_prompt(inputs: dict[str, Any]) -> dict[str, Any]:
    """A `TokensPrompt` whose images are what the processors take."""
    from support.double.classes import SYMBOLS

    if set(inputs) == {"prompt"}:
        return inputs
    names = {param["name"] for param in SYMBOLS["tensorrt_llm.inputs.TokensPrompt"]["params"]}
    assert set(inputs) <= names, f"a prompt has no {set(inputs) - names}"
    images = inputs["multi_modal_data"]["image"]
    assert images, "a modality without data"
    assert all(image.mode == "RGB" for image in images)
    return inputs


async def nothing() -> Any:
    """What the LLM gives before its first request."""
    for stats in list[Any]():
        yield stats


class LLM:
    """`tensorrt_llm.LLM`."""

    values: dict[str, Any]
    #: What a later line's method got besides.
    _sim_more: dict[str, Any] = {}  # noqa: RUF012 -- replaced, not changed

    def _sim_begin(self) -> None:
        self._sim = Engine()
        self._sim_results: dict[int, Any] = {}
        self._sim_iterations: Any = None
        self._sim_shut = False
        self._sim_thread: int | None = None
        self._sim_salts: set[str | None] = set()
        record_engine(self)
        self._sim.deliver = self._sim_deliver
        cache = self.values.get("kv_cache_config") or {}
        if cache.get("enable_block_reuse", True):
            self._sim.max_events = cache.get("event_buffer_max_size") or 0
        self._sim_events: Any = None
        self.values["input_processor"] = self._sim_make_processor()
        self.values["tokenizer"] = None if self.values.get("skip_tokenizer_init") else Tokenizer()

    @property
    def _executor(self) -> Proxy:
        return Proxy(self._sim)

    def _sim_deliver(self, responses: list[Any]) -> None:
        for response in responses:
            result = self._sim_results[response.client_id]
            if result._sim_loop is not None:
                # The loop may have ended with requests that were not waited for.
                with contextlib.suppress(RuntimeError):
                    result._sim_loop.call_soon_threadsafe(result._sim_queue.put_nowait, response)
            else:
                result._sim_queue.put(response)

    def _sim_next_stats(self) -> str | None:
        with self._sim.changed:
            stats = self._sim.stats
            return stats.pop(0).to_json_str() if stats else None

    def _sim_make_processor(self) -> Any:
        config = json.loads((Path(self.values["model"]) / "config.json").read_text())
        if SEEING & set(config["architectures"]):
            return SeeingProcessor()
        registry = MODULES["tensorrt_llm.inputs.registry"]
        return registry.DefaultInputProcessor(None, None, None)

    def _sim_has_mrope(self, inputs: Any, sampling: dict[str, Any]) -> bool | None:
        """Whether the request's positions come from the input processor, which sees no bare token ids."""
        config = json.loads((Path(self.values["model"]) / "config.json").read_text())
        if "mrope_section" not in (config.get("rope_scaling") or {}):
            return None
        if isinstance(inputs, dict) and "prompt" in inputs:
            assert sampling["add_special_tokens"] is False, "the text has them already"
        return isinstance(inputs, dict)

    def _sim_encode(self, inputs: Any) -> list[int]:
        if not isinstance(inputs, dict):
            return list(inputs)
        if "prompt" in inputs:
            return [int(token) for token in inputs["prompt"].split()]
        return list(inputs["prompt_token_ids"])

    def _sim_longest(self) -> int:
        """`max_seq_len`, which is lowered to what the KV cache holds once the model is loaded."""
        cache = self.values.get("kv_cache_config") or {}
        return min(self.values.get("max_seq_len") or 10**6, cache.get("max_tokens") or 10**6)

    def _sim_has_room(self, prompt: list[int]) -> bool:
        """Whether a sequence of the model's longest has room for a token after the prompt."""
        config = json.loads((Path(self.values["model"]) / "config.json").read_text())
        longest: int = (config.get("text_config") or config).get("max_position_embeddings", 10**6)
        return len(prompt) < min(self._sim_longest(), longest)

    def _sim_chunks(self, prompt: list[int]) -> int:
        """Iterations that compute the prompt."""
        if not self.values.get("enable_chunked_prefill"):
            return 1
        return -(-len(prompt) // (self.values.get("max_num_tokens") or 8192))

    def _sim_is_full_sampler(self) -> bool:
        """Whether the sampler applies bad words and seeds: TorchSampler of 1.2 ignores them."""
        kind = str(self.values.get("sampler_type"))
        return kind == "TRTLLMSampler" or (kind == "auto" and (self.values.get("max_beam_width") or 1) > 1)

    def _sim_bad_words(self, given: dict[str, Any]) -> list[list[int]]:
        return [[token] for token in given["bad_token_ids"] or []] if self._sim_is_full_sampler() else []

    def _sim_find_cached(self, salt: str | None) -> int:
        """Tokens of the prompt that the cache has: none of another salt's."""
        config = self.values.get("kv_cache_config") or {}
        is_new = salt is not None and salt not in self._sim_salts
        self._sim_salts.add(salt)
        return CACHED if config.get("enable_block_reuse", True) and not is_new else 0

    def generate_async(
        self,
        inputs: Any,
        sampling_params: Any = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,  # noqa: ARG002
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        trace_headers: Any = None,  # noqa: ARG002
        _postproc_params: Any = None,
        scheduling_params: Any = None,  # noqa: ARG002
        cache_salt: Any = None,
    ) -> Any:
        given = sampling_params.values
        has_mrope = self._sim_has_mrope(inputs, given)
        prompt = self._sim_encode(inputs)
        call = {
            "inputs": check_prompt(inputs) if isinstance(inputs, dict) else prompt,
            "streaming": streaming,
            "sampling_params": sampling_params,
            "kv_cache_retention_config": kv_cache_retention_config,
            "disaggregated_params": disaggregated_params,
            "lora_request": lora_request,
            "cache_salt": cache_salt,
        } | self._sim_more
        record(call)
        thread = threading.get_ident()
        assert self._sim_thread in (None, thread), "client ids are counted without a lock"
        self._sim_thread = thread
        if self._sim_shut:
            raise RuntimeError("LLM is shut down")
        if self._sim_iterations is None:
            self._sim_iterations = MODULES["tensorrt_llm.executor.result"].IterationResult()
            self._sim_iterations._sim_next = self._sim_next_stats
            self._sim_events = MODULES["tensorrt_llm.executor.result"].IterationResult()
            self._sim_events._sim_next = self._sim_next_event
        else:
            self._sim_iterations.mark_undone()
            self._sim_events.mark_undone()
        if prompt[0] == REFUSE:
            raise ValueError("The prompt is too long")
        if isinstance(inputs, dict) and self.values.get("skip_tokenizer_init"):
            raise AttributeError("'NoneType' object has no attribute 'decode'")
        if lora_request is not None and not adapters.loads(
            lora_request.lora_path, self.values["lora_config"]
        ):
            # Before anything is caught: the process ends.
            self._sim.die()
        if given["end_id"] is None:
            raise ValueError("end_id is needed without a tokenizer")
        if (
            given["n"] > 1
            and not os.environ.get("TLLM_ALLOW_N_GREEDY_DECODING")
            and not (given["temperature"] or given["top_p"] or given["top_k"])
        ):
            raise ValueError("Greedy decoding in the LLM API does not allow multiple returns.")
        kind = None if disaggregated_params is None else disaggregated_params.values["request_type"]
        if kind == "context_only" and not self.values.get("disable_overlap_scheduler"):
            raise ValueError("Context only requests are not supported when overlap is enabled.")
        beams = given["best_of"] if given["use_beam_search"] else 1
        if beams != (self.values.get("max_beam_width") or 1):
            # An assertion in the engine's loop, which ends it.
            self._sim.broken = True
        identity = self._sim.next_id
        self._sim.next_id += 1
        words = stop_words(sampling_params)
        kind_of_guide, guide = guide_of(given["guided_decoding"])
        fits = self._sim_longest() - len(prompt)
        result = MODULES["tensorrt_llm"].llmapi.RequestOutput()
        try:
            result._sim_loop = asyncio.get_running_loop()
        except RuntimeError:
            result._sim_loop = None
        result._sim_queue = queue.SimpleQueue() if result._sim_loop is None else asyncio.Queue()
        result._sim_llm, result._sim_identity = self, identity
        outputs = []
        for index in range(beams if given["use_beam_search"] else given["n"]):
            output = MODULES["tensorrt_llm"].llmapi.CompletionOutput(index=index, token_ids=[], logprobs=[])
            outputs.append(output)
        result.values.update(request_id=identity, finished=False, cached_tokens=0)
        result._sim_outputs, result._sim_cached = outputs, self._sim_find_cached(cache_salt)
        result.values["outputs"] = outputs[: given["n"]]
        result._sim_params = sampling_params
        result._sim_is_context = kind == "context_only"
        self._sim_results[identity] = result
        wanted = {
            "exclude_input_from_output": True,
            "return_log_probs": False,
            "return_generation_logits": given["return_generation_logits"],
            "return_context_logits": given["return_context_logits"],
            "return_perf_metrics": given["return_perf_metrics"],
        }
        self._sim.add(
            Job(
                identity,
                prompt,
                # What does not fit is cut with a line in the log.
                min(given["max_tokens"], fits),
                streaming,
                end_id=-1 if given["ignore_eos"] else given["end_id"],
                stop_words=words,
                client_id=identity,
                output=wanted,
                beams=beams,
                sequences=1 if given["use_beam_search"] else given["n"],
                context_only=kind == "context_only",
                hot=given["temperature"] == HOT,
                cached=result._sim_cached,
                interval=self.values.get("stream_interval") or 1,
                has_mrope=has_mrope,
                is_late=True,
                bad_words=self._sim_bad_words(given),
                biased=largest(given["embedding_bias"]),
                min_tokens=given["min_tokens"],
                # To another process.
                processor=pickle.loads(pickle.dumps(given["logits_processor"])),
                lag=0 if self.values.get("disable_overlap_scheduler") else 1,
                chunks=self._sim_chunks(prompt),
                forced=grammar.tokens_of(kind_of_guide, guide, Path(self.values["model"])),
                random=drawing(
                    given["temperature"],
                    given["seed"] if self._sim_is_full_sampler() else None,
                    self._sim.random,
                ),
                # Both fail the one request, in the worker process and in the sampler.
                own_error=grammar.fault(kind_of_guide, guide)
                if self._sim_has_room(prompt)
                else "mMaxNewTokens > 0 does not hold",
            )
        )
        return result

    def get_stats(self, timeout: float | None = 2) -> Any:
        if self._sim_iterations is None:
            return []
        self._sim_iterations.set_timeout(timeout)
        return self._sim_iterations.get_results()

    def get_stats_async(self, timeout: float | None = 2) -> Any:
        if self._sim_iterations is None:
            return nothing()
        self._sim_iterations.set_timeout(timeout)
        return self._sim_iterations

    def _sim_next_event(self) -> str | None:
        with self._sim.changed:
            return json.dumps(self._sim.events.pop(0)) if self._sim.events else None

    def get_kv_cache_events_async(self, timeout: float | None = 2) -> Any:
        if self._sim_events is None:
            return nothing()
        self._sim_events.set_timeout(timeout)
        return self._sim_events

    def _check_health(self) -> bool:
        # Of a dead engine it knows nothing.
        return not self._sim_shut

    def shutdown(self) -> None:
        self._sim_shut = True
        self._sim.finish()


#: The temperature at which the tokens sampled are not among the most probable.
HOT = 1.0


class RequestOutput:
    """`llmapi.RequestOutput`: the same object after each response, its outputs cumulative."""

    values: dict[str, Any]
    _sim_llm: Any
    _sim_identity: int
    _sim_queue: Any
    _sim_params: Any
    _sim_is_context: bool
    _sim_outputs: list[Any]
    _sim_cached: int

    def abort(self) -> None:
        self._sim_llm._sim.abort(self._sim_identity)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        if self.values["finished"]:
            raise StopAsyncIteration
        response = await self._sim_queue.get()
        if response.has_error():
            raise MODULES["tensorrt_llm.executor.utils"].RequestError(response.error_msg)
        result = response.result
        self.values["cached_tokens"] = self._sim_cached
        if result.context_logits is not None:
            self.values["context_logits"] = result.context_logits
        if self._sim_params.use_beam_search:
            for beam in range(len(self._sim_outputs)):
                self._sim_sequence(result, beam, beam)
        else:
            self._sim_sequence(result, result.sequence_index, 0)
        self.values["finished"] = result.is_final
        return self

    def _sim_sequence(self, result: Any, index: int, beam: int) -> None:
        output = self._sim_outputs[index]
        new = result.output_token_ids[beam]
        if self._sim_params.use_beam_search:
            # Rewritten as a whole.
            output.values.update(token_ids=[], logprobs=[])
        output.values["token_ids"].extend(new)
        if self._sim_params.values["logprobs"] is not None:
            width = self._sim_params.values["logprobs"]
            hot = self._sim_params.values["temperature"] == HOT
            older = str(self._sim_llm.values.get("sampler_type")) == "TRTLLMSampler"
            output.values["logprobs"].extend(alternatives(token, 0 if older else width, hot) for token in new)
        if result.generation_logits is not None:
            held = result.generation_logits.array[beam, : len(output.token_ids)]
            output.values["generation_logits"] = MODULES["torch"].Tensor(held, "float32")
        if result.request_perf_metrics is not None:
            output.values["request_perf_metrics"] = result.request_perf_metrics
        reason = result.finish_reasons[beam].name
        if reason == "CANCELLED":
            output.values["finish_reason"] = "cancelled"
        elif result.is_final:
            # Of several sequences, only the one that ends the request is told why.
            output.values["finish_reason"] = FINISH[reason]
            output.values["stop_reason"] = stop_reason(self._sim_params, output.token_ids)
        if self._sim_is_context and result.context_phase_params is not None:
            phase = result.context_phase_params
            output.values["disaggregated_params"] = MODULES["tensorrt_llm"].llmapi.DisaggregatedParams(
                request_type="context_only",
                first_gen_tokens=phase.first_gen_tokens,
                ctx_request_id=phase.req_id,
                opaque_state=b"\x00state",
            )


FINISH = {"END_ID": "stop", "STOP_WORDS": "stop", "LENGTH": "length", "NOT_FINISHED": "not_finished"}


#: Field of `GuidedDecodingParams` -> the type of its guide.
GUIDES = {
    "json": "JSON_SCHEMA",
    "regex": "REGEX",
    "grammar": "EBNF_GRAMMAR",
    "structural_tag": "STRUCTURAL_TAG",
}


def guide_of(params: Any) -> tuple[str, str | None]:
    """The type of a request's guide and its text, of the LLM API's `GuidedDecodingParams`."""
    given = {} if params is None else params.values
    for field, kind in GUIDES.items():
        if given.get(field) is not None:
            return kind, given[field]
    return "", None


def stop_words(params: Any) -> list[list[int]]:
    """`SamplingParams._get_stop_words`: the private words count where there are texts."""
    words = [[token] for token in params.stop_token_ids or []]
    return words if params.stop is None else words + params._stop_word_ids


def stop_reason(params: Any, tokens: list[int]) -> int | str | None:
    """What the result says of the stop word that it ends with: the token, or its text."""
    reasons = [*(params.stop_token_ids or []), *(params.stop or [])]
    for reason, word in zip(reasons, stop_words(params), strict=True):
        if tokens[-len(word) :] == word:
            found: int | str = reason
            return found
    return None


def alternatives(token: int, width: int, hot: bool) -> dict[int, Logprob]:
    """The `width` most probable tokens, and the sampled one wherever it ranks."""
    [row] = logits([token], hot=hot)
    row = row[:VOCAB] - np.log(np.exp(row[:VOCAB]).sum())
    best = np.argsort(-row, kind="stable")[:width].tolist()
    return {one: Logprob(float(row[one])) for one in dict.fromkeys([*best, token])}


class Logprob:
    """One alternative, as results hold them."""

    def __init__(self, logprob: float) -> None:
        self.logprob, self.rank = logprob, None


class Response:
    """`bindings.executor.Response`: reading the result of an errored one throws."""

    values: dict[str, Any]

    def has_error(self) -> bool:
        return self.values.get("error_msg") is not None


#: Two ids, bit for bit in floats.
FAST_LOGITS = np.arange(4, dtype="<i4").view("<f4")


class SpeculativeDecodingFastLogitsInfo:
    """`bindings.executor.SpeculativeDecodingFastLogitsInfo`."""

    def to_tensor(self) -> Any:
        return MODULES["torch"].Tensor(FAST_LOGITS[None], "float32")


BEHAVIOR: dict[str, type] = {
    "tensorrt_llm.bindings.executor.Executor": Executor,
    "tensorrt_llm.bindings.executor.IterationStats": IterationStats,
    "tensorrt_llm.bindings.executor.Response": Response,
    "tensorrt_llm.bindings.executor.SpeculativeDecodingFastLogitsInfo": SpeculativeDecodingFastLogitsInfo,
    "tensorrt_llm.llmapi.LLM": LLM,
    "tensorrt_llm.llmapi.RequestOutput": RequestOutput,
    "tensorrt_llm.executor.result.IterationResult": IterationResult,
}
