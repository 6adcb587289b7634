"""TensorRT-LLM's `llmapi` model, played over the core model beside it: same tensors, same answers.

Owns what that model does otherwise than the five: the checkpoint comes from `model.yaml`, no batch dimension,
the text so far with every streamed step, reasons in words, the prompt before an answer in one piece. Knows
nothing of the gateway under test.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from inflight._native import Tokenizer
from inflight.executors.base import FinishReason
from inflight.launch.model import find_model
from inflight.model.llmapi import read
from inflight.triton.models.python_backend import BadRequest, Config, Reply, error, pb_utils, tensor

#: Input -> the core model's, and its type.
SAMPLING = {
    "sampling_param_max_tokens": ("request_output_len", np.int32),
    "sampling_param_temperature": ("temperature", np.float32),
    "sampling_param_top_k": ("runtime_top_k", np.int32),
    "sampling_param_top_p": ("runtime_top_p", np.float32),
    "sampling_param_frequency_penalty": ("frequency_penalty", np.float32),
    "sampling_param_presence_penalty": ("presence_penalty", np.float32),
    "sampling_param_seed": ("seed", np.uint64),
    "streaming": ("streaming", np.bool_),
}
READ = {"text_input", "sampling_param_exclude_input_from_output", "return_finish_reason", *SAMPLING}
#: What TensorRT-LLM calls the reasons; Python's word for none of them comes before the end.
REASONS = {
    FinishReason.NOT_FINISHED: "None",
    FinishReason.END_ID: "stop",
    FinishReason.STOP_WORDS: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TIMED_OUT: "timeout",
    FinishReason.CANCELLED: "cancelled",
}
#: NVIDIA's names the checkpoint in it, and Triton's settings.
FILE = Path(__file__).parent / "model.yaml"
#: Requests at once; each waits in a thread of its own.
THREADS = 64


class TritonPythonModel:
    """Triton's name for a model."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Where Triton completes configs: what `triton_config` says."""
        triton = read(FILE).triton
        config.set_model_transaction_policy({"decoupled": bool(triton["decoupled"])})
        config.set_max_batch_size(int(triton["max_batch_size"]))
        return config

    def initialize(self, args: Mapping[str, str]) -> None:
        self._config = Config(args)
        found = find_model(read(FILE).model, None, weights=False)
        self._tokenizer = Tokenizer(found.assets())
        self._pool = ThreadPoolExecutor(THREADS, "llmapi")

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            self._pool.submit(self._serve, request, Reply(request, True))

    def finalize(self) -> None:
        self._pool.shutdown()

    def _serve(self, request: Any, reply: Reply) -> None:
        try:
            for response, last in self._answers(request, reply):
                if last:
                    # The flag is on the last response itself.
                    return reply.end(response)
                reply.send(response)
            reply.end()
        except Exception as problem:
            reply.end(pb_utils.InferenceResponse(error=error(str(problem), 13)))

    def _answers(self, request: Any, reply: Reply) -> Iterable[tuple[Any, bool]]:
        """The responses, each with whether it is the last."""
        inputs = self._inputs(request)
        prompt = bytes(inputs["text_input"][0]).decode()
        streaming, exclude, tells_reason = (
            bool(inputs[name][0]) if name in inputs else False
            for name in ("streaming", "sampling_param_exclude_input_from_output", "return_finish_reason")
        )
        before = "" if streaming or exclude else prompt
        ids: list[int] = []
        core_id = str(uuid.uuid4())
        left = False
        for response in self._ask(inputs, prompt, core_id):
            if response.has_error():
                raise BadRequest(response.error().message(), 13)
            if left:
                # Triton waits at its end for a model whose responses were not all read.
                continue
            if reply.is_abandoned():
                pb_utils.Logger.log_info(f"request `{request.request_id()}` is cancelled: its client left")
                self._stop(core_id)
                left = True
                continue
            outputs = {each.name(): each.as_numpy().reshape(-1) for each in response.output_tensors()}
            ids += outputs["output_ids"][: outputs["sequence_length"][0]].tolist()
            made = [strings("text_output", before + self._tokenizer.decode(ids, True))]
            reason = FinishReason(int(outputs["inflight_finish_reason"][0]))
            if tells_reason:
                made.append(strings("finish_reason", REASONS[reason]))
            yield pb_utils.InferenceResponse(made), reason != FinishReason.NOT_FINISHED

    def _inputs(self, request: Any) -> dict[str, np.ndarray[Any, Any]]:
        inputs = {}
        for name in self._config.input_names:
            found = pb_utils.get_input_tensor_by_name(request, name)
            if found is None:
                continue
            if name not in READ:
                raise BadRequest(f"`{name}` is not played")
            array = found.as_numpy()
            if array.ndim != 1:
                raise BadRequest(f"`{name}` has the shape `{list(array.shape)}`, and not one dimension")
            inputs[name] = array
        return inputs

    def _ask(self, inputs: Mapping[str, np.ndarray[Any, Any]], prompt: str, core_id: str) -> Iterable[Any]:
        ids = self._tokenizer.encode(prompt)
        end, *others = self._tokenizer.eos_token_ids or [-1]
        made = [
            tensor("input_ids", [ids], np.int32),
            tensor("input_lengths", [[len(ids)]], np.int32),
            tensor("end_id", [[end]], np.int32),
            tensor("stop_words_list", [[others, list(range(1, len(others) + 1))]], np.int32),
            tensor("exclude_input_in_output", [[True]], np.bool_),
        ]
        for ours, (theirs, kind) in SAMPLING.items():
            if ours in inputs:
                made.append(tensor(theirs, [inputs[ours]], kind))
        return self._call(core_id, made, ["output_ids", "sequence_length", "inflight_finish_reason"])

    def _stop(self, core_id: str) -> None:
        names = ("input_ids", "input_lengths", "request_output_len")
        dummies = [tensor(name, [[0]], np.int32) for name in names]
        for _ in self._call(core_id, [*dummies, tensor("stop", [[True]], np.bool_)], ["output_ids"]):
            pass

    @staticmethod
    def _call(core_id: str, made: list[Any], outputs: list[str]) -> Iterable[Any]:
        asked = pb_utils.InferenceRequest(
            request_id=core_id, model_name="tensorrt_llm", requested_output_names=outputs, inputs=made
        )
        responses: Iterable[Any] = asked.exec(decoupled=True)
        return responses


def strings(name: str, text: str) -> Any:
    """A STRING output of one element."""
    return pb_utils.Tensor(name, np.array([text.encode()], dtype=np.object_))
