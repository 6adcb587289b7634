"""What the doubles' classes do, over the engine of `simulator`."""

from __future__ import annotations

import asyncio
import json
import os
import queue
from datetime import timedelta
from typing import Any

import numpy as np

from trtllm.simulator import MODULES, REFUSE, VOCAB, Job, Simulator, record, record_engine


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
        for response in responses:
            if not response.has_error():
                response.result = pack(response.result)
        if os.environ.get("TLLM_WORKER_USE_SINGLE_PROCESS") == "1":
            # In the first where 1.0 has it, if a test has put it there.
            for name in ("worker", "base_worker"):
                module: Any = MODULES.get(f"tensorrt_llm.executor.{name}")
                if hasattr(module, "AwaitResponseHelper"):
                    module.AwaitResponseHelper(worker=self).responses_handler(responses)
                    return
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
        words = stop_words(sampling_params)
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
        result._sim_params = sampling_params
        self._sim_results[identity] = result
        wanted = {
            "exclude_input_from_output": True,
            "return_log_probs": given["logprobs"] is not None,
            "return_generation_logits": given["return_generation_logits"],
        }
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
                beams=given["best_of"] if given["use_beam_search"] else 1,
                sequences=1 if given["use_beam_search"] else given["n"],
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
    """`executor.base_worker.AwaitResponseHelper`."""

    values: dict[str, Any]

    def responses_handler(self, responses: Any) -> Any:
        self.values["worker"]._sim_spread(responses)


class RequestOutput:
    """`llmapi.RequestOutput`: the same object after each response, its outputs cumulative."""

    values: dict[str, Any]
    _sim_llm: Any
    _sim_identity: int
    _sim_queue: Any
    _sim_params: Any

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
        if isinstance(result._result, bytes):
            result.deserialize()
        self.values["cached_tokens"] = result.cached_tokens
        if self._sim_params.use_beam_search:
            for beam in range(len(self.values["outputs"])):
                self._sim_sequence(result, beam, beam)
        else:
            self._sim_sequence(result, result.sequence_index, 0)
        self.values["finished"] = result.is_final
        return self

    def _sim_sequence(self, result: Any, index: int, beam: int) -> None:
        output = self.values["outputs"][index]
        new = result.output_token_ids[beam]
        if self._sim_params.use_beam_search:
            # Rewritten as a whole.
            output.values.update(token_ids=[], logprobs=[])
        output.values["token_ids"].extend(new)
        if self._sim_params.values["logprobs"] is not None:
            output.values["logprobs"].extend(
                {token: Logprob(-token / 64), (token + 1) % VOCAB: Logprob(-9.0)} for token in new
            )
        if result.generation_logits is not None:
            held = result.generation_logits.array[beam, : len(output.token_ids)]
            output.values["generation_logits"] = MODULES["torch"].Tensor(held, "float32")
        reason = result.finish_reasons[beam].name
        if reason == "CANCELLED":
            output.values["finish_reason"] = "cancelled"
        elif result.is_final:
            # Of several sequences, only the one that ends the request is told why.
            output.values["finish_reason"] = FINISH[reason]
            output.values["stop_reason"] = stop_reason(self._sim_params, output.token_ids)


FINISH = {"END_ID": "stop", "STOP_WORDS": "stop", "LENGTH": "length", "NOT_FINISHED": "not_finished"}


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


#: Results on their way out of the engine's loop, by their bytes.
PACKED: dict[bytes, Any] = {}
#: Prompt tokens that the cache had of every request.
CACHED = 2


def pack(result: Any) -> Any:
    """A result as PyTorch's engine gives it: bytes that have to be opened, and what stays in Python."""
    packed = f"result {len(PACKED)}".encode()
    PACKED[packed] = result
    holder = MODULES["tensorrt_llm._torch.pyexecutor.llm_request"].LlmResult
    return holder(packed, py_result=result, is_final=result.is_final)


def deserialize_result(x: bytes) -> Any:
    """`bindings.executor.deserialize_result`."""
    assert isinstance(x, bytes), "the bindings take bytes"
    return PACKED[x]


class LlmResult:
    """`_torch.pyexecutor.llm_request.LlmResult`: has a result's fields once it is open."""

    values: dict[str, Any]

    def _sim_begin(self) -> None:
        values = self.values
        values.update(_result=values.pop("result"), _py_result=values.pop("py_result"), cached_tokens=CACHED)

    def __getattr__(self, name: str) -> Any:
        if name in ("context_logits", "generation_logits", "log_probs", "cum_log_probs"):
            return getattr(self.values["_py_result"], name)
        return getattr(self.values["_result"], name)

    def deserialize(self) -> None:
        self.values["_result"] = deserialize_result(self.values["_result"])


FUNCTIONS = {"tensorrt_llm.bindings.executor.deserialize_result": deserialize_result}
BEHAVIOUR: dict[str, type] = {
    "tensorrt_llm._torch.pyexecutor.llm_request.LlmResult": LlmResult,
    "tensorrt_llm.bindings.executor.Executor": Executor,
    "tensorrt_llm.bindings.executor.IterationStats": IterationStats,
    "tensorrt_llm.bindings.executor.Response": Response,
    "tensorrt_llm.bindings.executor.SpeculativeDecodingFastLogitsInfo": SpeculativeDecodingFastLogitsInfo,
    "tensorrt_llm.llmapi.LLM": LLM,
    "tensorrt_llm.llmapi.RequestOutput": RequestOutput,
    "tensorrt_llm.executor.base_worker.AwaitResponseHelper": AwaitResponseHelper,
}
