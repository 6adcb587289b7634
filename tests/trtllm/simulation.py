"""What the doubles do: an engine with a thread that makes one token per sequence and iteration, in the
order and timing of TensorRT-LLM's. A sequence counts up from its prompt's last token.

Prompts that begin with a number below make the engine misbehave.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np

#: First prompt tokens: an error of this request; a broken engine; no answer ever; a refusal at enqueue; the
#: death of a rank, after which the others answer nothing and take nothing.
ERROR, CRASH, SILENCE, REFUSE, DEATH = 90, 91, 92, 93, 94
VOCAB = 96
STEP_S = 0.002

#: Filled by `connect`.
API: Any = None
MODULES: dict[str, Any] = {}
#: Requests that engines got, and engines, newest last; for tests in the same process.
REQUESTS: list[Any] = []
ENGINES: list[Any] = []


def connect(modules: dict[str, Any]) -> None:
    global API
    API = modules["tensorrt_llm.bindings.executor"]
    MODULES.clear()
    MODULES.update(modules)
    REQUESTS.clear()
    ENGINES.clear()


class Sequence:
    """One sequence of a request."""

    def __init__(self, job: Job, index: int) -> None:
        self.job, self.index = job, index
        self.tokens: list[int] = []
        self.reason = ""

    def step(self) -> int | None:
        """The next token; None where the sequence ends without one."""
        previous = self.tokens[-1] if self.tokens else self.job.prompt[-1] + self.index
        token = (previous + 1) % VOCAB
        if token == self.job.end_id:
            self.reason = "END_ID"
            return None
        self.tokens.append(token)
        if any(self.tokens[-len(word) :] == word for word in self.job.stop_words):
            self.reason = "STOP_WORDS"
        elif len(self.tokens) >= self.job.max_tokens:
            self.reason = "LENGTH"
        return token


class Job:
    """A request in the engine."""

    def __init__(
        self, identity: int, prompt: list[int], max_tokens: int, streaming: bool, **more: Any
    ) -> None:
        self.identity, self.prompt, self.max_tokens, self.streaming = identity, prompt, max_tokens, streaming
        self.end_id, self.stop_words = more.get("end_id"), more.get("stop_words") or []
        self.client_id, self.output = more.get("client_id"), more.get("output") or {}
        self.beams = more.get("beams", 1)
        self.context_only = more.get("context_only", False)
        self.sequences = [Sequence(self, index) for index in range(more.get("sequences", 1))]
        self.cancelled = False


class Simulator:
    """The engine's thread: `ready` gets lists of responses, one list an iteration."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.changed = threading.Condition()
        self.ready: list[Any] = []
        self.broken = False
        self.stopped = False
        self.next_id = 1
        self.iterations = 0
        self.stats: list[Any] = []
        self.deliver: Any = None
        threading.Thread(target=self.run, daemon=True).start()

    def add(self, job: Job) -> None:
        with self.changed:
            self.jobs[job.identity] = job
            self.changed.notify_all()

    def cancel(self, identity: int) -> None:
        with self.changed:
            if identity in self.jobs:
                self.jobs[identity].cancelled = True

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.jobs or self.stopped)
                if self.stopped:
                    return
                responses = [response for job in list(self.jobs.values()) for response in self.step(job)]
                self.iterations += 1
                self.stats.append(self.describe())
                if self.deliver is None:
                    self.ready.extend(responses)
                    self.changed.notify_all()
            if self.deliver is not None and responses:
                self.deliver(responses)
            threading.Event().wait(STEP_S)

    def step(self, job: Job) -> Iterator[Any]:
        if job.prompt[0] == SILENCE:
            return
        if job.prompt[0] == DEATH:
            self.stopped = True
            self.changed.notify_all()
            return
        if job.prompt[0] == CRASH:
            self.broken = True
            self.changed.notify_all()
            return
        if job.prompt[0] == ERROR:
            del self.jobs[job.identity]
            yield API.Response(
                request_id=job.identity, error_msg="LoRA task 7 not found in cache.", client_id=job.client_id
            )
            return
        running = [sequence for sequence in job.sequences if not sequence.reason]
        for place, sequence in enumerate(running):
            token = None if job.cancelled else sequence.step()
            if job.context_only and not job.cancelled:
                sequence.reason = "NOT_FINISHED"
            if job.cancelled:
                sequence.reason = "CANCELLED"
            if job.streaming:
                tokens = [] if token is None else [token]
            elif sequence.reason:
                tokens = sequence.tokens
            else:
                continue
            final = place == len(running) - 1 and all(one.reason for one in job.sequences)
            if final:
                del self.jobs[job.identity]
            result = API.Response(
                request_id=job.identity,
                result=self.result(job, sequence, tokens, final),
                client_id=job.client_id,
            )
            yield result

    def result(self, job: Job, sequence: Sequence, tokens: list[int], final: bool) -> Any:
        result = API.Result()
        result.is_final = final
        result.is_sequence_final = bool(sequence.reason)
        result.sequence_index = sequence.index
        whole = tokens if job.output.get("exclude_input_from_output") else [*job.prompt, *tokens]
        result.output_token_ids = [list(whole) for _ in range(job.beams)]
        reason = getattr(API.FinishReason, sequence.reason or "NOT_FINISHED")
        result.finish_reasons = [reason] * job.beams
        if job.output.get("return_log_probs"):
            # All so far, as the engines do.
            result.log_probs = [[-token / 64 for token in sequence.tokens]] * job.beams
            result.cum_log_probs = [sum(-token / 64 for token in sequence.tokens)] * job.beams
        tensor = MODULES["torch"].Tensor
        if job.output.get("return_generation_logits") and tokens:
            result.generation_logits = tensor(logits(tokens)[None], "float32")
        if job.output.get("return_context_logits"):
            shifted = [*job.prompt[1:], (job.prompt[-1] + 1) % VOCAB]
            result.context_logits = tensor(logits(shifted), "float32")
        if job.output.get("return_perf_metrics") and final:
            result.request_perf_metrics = perf_metrics()
        if job.context_only:
            result.context_phase_params = API.ContextPhaseParams(
                [tokens[0]], job.identity, b"\x00state", None
            )
        return result

    def describe(self) -> Any:
        stats = API.IterationStats()
        stats.iter = self.iterations
        stats.num_active_requests = len(self.jobs)
        stats.max_num_active_requests = 8
        return stats


def logits(tokens: list[int]) -> Any:
    """Rows whose best token is the given one, the next best the one after it."""
    rows = np.zeros((len(tokens), VOCAB), dtype=np.float32)
    for row, token in enumerate(tokens):
        rows[row, token] = 4.0
        rows[row, (token + 1) % VOCAB] = 2.0
    return rows


def perf_metrics() -> Any:
    metrics = API.RequestPerfMetrics()
    timing, cache = API.TimingMetrics(), API.KvCacheMetrics()
    for place, name in enumerate(
        ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time")
    ):
        setattr(timing, name, timedelta(microseconds=place + 1))
    cache.num_total_allocated_blocks, cache.num_new_allocated_blocks, cache.num_reused_blocks = 5, 4, 1
    metrics.timing_metrics, metrics.kv_cache_metrics = timing, cache
    return metrics


def record(request: Any) -> None:
    """Keeps a request, and writes it where a test of another process reads it."""
    REQUESTS.append(request)
    held = request.items() if isinstance(request, dict) else request.dump().items()
    write("DOUBLES_LOG", {name: getattr(value, "dump", lambda v=value: v)() for name, value in held})


def record_engine(engine: Any) -> None:
    """The same for an engine and what it was made with."""
    ENGINES.append(engine)
    write("DOUBLES_MADE", engine.dump())


def write(variable: str, values: dict[str, Any]) -> None:
    """Appends a line of JSON to the file that the environment names."""
    log = os.environ.get(variable)
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps(values, default=str) + "\n")


class Executor:
    """`bindings.executor.Executor`."""

    def _sim_begin(self) -> None:
        self._sim = Simulator()
        record_engine(self)

    def enqueue_request(self, request: Any) -> int:
        return self.enqueue_requests([request])[0]  # type: ignore[no-any-return]

    def enqueue_requests(self, requests: Any) -> list[Any]:
        ids = []
        for request in requests:
            record(request)
            given = request.values
            if given["input_token_ids"][:1] == [REFUSE]:
                raise RuntimeError("Prompt length exceeds maximum input length")
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


class IterationStats:
    """`bindings.executor.IterationStats`."""

    values: dict[str, Any]

    def to_json_str(self) -> str:
        names = {"iter": "iter", "num_active_requests": "numActiveRequests"}
        names["max_num_active_requests"] = "maxNumActiveRequests"
        return json.dumps({json_name: self.values.get(name, 0) for name, json_name in names.items()})


class LLM:
    """`tensorrt_llm.LLM`."""

    def _sim_begin(self) -> None:
        self._sim = Simulator()
        self._sim_results: dict[int, Any] = {}
        record_engine(self)
        self._sim.deliver = self._sim_deliver

    def _sim_deliver(self, responses: list[Any]) -> None:
        if os.environ.get("TLLM_WORKER_USE_SINGLE_PROCESS") == "1":
            helper = MODULES["tensorrt_llm.executor.worker"].AwaitResponseHelper(worker=self)
            helper.responses_handler(responses)
        else:
            self._sim_spread(responses)

    def _sim_spread(self, responses: list[Any]) -> None:
        for response in responses:
            result = self._sim_results[response.client_id]
            if result._sim_loop is not None:
                result._sim_loop.call_soon_threadsafe(result._sim_queue.put_nowait, response)
            else:
                result._sim_queue.put(response)

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
        cache_salt: Any = None,  # noqa: ARG002
    ) -> Any:
        given = sampling_params.values
        call = {
            "inputs": list(inputs),
            "streaming": streaming,
            "sampling_params": sampling_params,
            "kv_cache_retention_config": kv_cache_retention_config,
            "disaggregated_params": disaggregated_params,
            "lora_request": lora_request,
        }
        record(call)
        if self._sim.broken:
            raise RuntimeError("LLM is shut down")
        if inputs[0] == REFUSE:
            raise ValueError("The prompt is too long")
        if given["end_id"] is None:
            raise ValueError("end_id is needed without a tokenizer")
        if (
            given["n"] > 1
            and not os.environ.get("TLLM_ALLOW_N_GREEDY_DECODING")
            and not (given["temperature"] or given["top_p"] or given["top_k"])
        ):
            raise ValueError("Greedy decoding in the LLM API does not allow multiple returns.")
        identity = self._sim.next_id
        self._sim.next_id += 1
        words = [[token] for token in given["stop_token_ids"] or []] + (given.get("_stop_word_ids") or [])
        result = MODULES["tensorrt_llm"].llmapi.RequestOutput()
        try:
            result._sim_loop = asyncio.get_running_loop()
        except RuntimeError:
            result._sim_loop = None
        result._sim_queue = queue.SimpleQueue() if result._sim_loop is None else asyncio.Queue()
        result._sim_llm, result._sim_identity = self, identity
        outputs = []
        for index in range(given["n"]):
            output = MODULES["tensorrt_llm"].llmapi.CompletionOutput(index=index, token_ids=[], logprobs=[])
            outputs.append(output)
        result.values.update(request_id=identity, outputs=outputs, finished=False, cached_tokens=0)
        result._sim_given = given
        self._sim_results[identity] = result
        wanted = {"exclude_input_from_output": True, "return_log_probs": given["logprobs"] is not None}
        phase = (
            disaggregated_params is not None and disaggregated_params.values["request_type"] == "context_only"
        )
        self._sim.add(
            Job(
                identity,
                list(inputs),
                given["max_tokens"],
                streaming,
                end_id=-1 if given["ignore_eos"] else given["end_id"],
                stop_words=words,
                client_id=identity,
                output=wanted,
                sequences=given["n"],
                context_only=phase,
            )
        )
        return result

    def get_stats(self, timeout: float | None = 2) -> list[dict[str, Any]]:  # noqa: ARG002
        with self._sim.changed:
            taken, self._sim.stats = self._sim.stats, []
        return [json.loads(stats.to_json_str()) for stats in taken]

    def _check_health(self) -> bool:
        return not (self._sim.broken or self._sim.stopped)

    def shutdown(self) -> None:
        self._sim.stop()


class AwaitResponseHelper:
    """`executor.worker.AwaitResponseHelper`."""

    values: dict[str, Any]

    def responses_handler(self, responses: Any) -> Any:
        self.values["worker"]._sim_spread(responses)


class RequestOutput:
    """`llmapi.RequestOutput`: the same object after each response, its outputs cumulative."""

    values: dict[str, Any]
    _sim_llm: Any
    _sim_identity: int
    _sim_queue: Any
    _sim_given: dict[str, Any]

    def abort(self) -> None:
        self._sim_llm._sim.cancel(self._sim_identity)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        if self.values["finished"]:
            raise StopAsyncIteration
        response = await self._sim_queue.get()
        if response.has_error():
            raise MODULES["tensorrt_llm.executor.utils"].RequestError(response.error_msg)
        result = response.result
        output = self.values["outputs"][result.sequence_index]
        new = result.output_token_ids[0]
        output.values["token_ids"].extend(new)
        if self._sim_given["logprobs"] is not None:
            output.values["logprobs"].extend(
                {token: Logprob(-token / 64), (token + 1) % VOCAB: Logprob(-9.0)} for token in new
            )
        reason = result.finish_reasons[0].name
        words = {"END_ID": "stop", "STOP_WORDS": "stop", "LENGTH": "length", "CANCELLED": "cancelled"}
        if reason in words:
            output.values["finish_reason"] = words[reason]
            output.values["stop_reason"] = new[-1] if reason == "STOP_WORDS" else None
        self.values["finished"] = result.is_final
        return self


class Logprob:
    """One alternative, as results hold them."""

    def __init__(self, logprob: float) -> None:
        self.logprob, self.rank = logprob, None


class Response:
    """`bindings.executor.Response`: reading the result of an errored one throws."""

    values: dict[str, Any]

    def has_error(self) -> bool:
        return self.values.get("error_msg") is not None


BEHAVIOUR: dict[str, type] = {
    "tensorrt_llm.bindings.executor.Executor": Executor,
    "tensorrt_llm.bindings.executor.IterationStats": IterationStats,
    "tensorrt_llm.bindings.executor.Response": Response,
    "tensorrt_llm.llmapi.LLM": LLM,
    "tensorrt_llm.llmapi.RequestOutput": RequestOutput,
    "tensorrt_llm.executor.worker.AwaitResponseHelper": AwaitResponseHelper,
}
