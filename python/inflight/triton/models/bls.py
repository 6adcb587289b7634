"""`tensorrt_llm_bls`: text in, text out, around the core model. Owns which Triton request asks the core model
what, and ends both together.

Text is made by the worker's own code (`inflight._native.TextModels`), and not by the two neighbours: a
stream's pieces put together are the whole text, and stop words are found wherever tokens begin and end.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from inflight._native import Generation, Refusal
from inflight.triton.models import text
from inflight.triton.models.python_backend import BadRequest, Config, Inputs, Reply, error, pb_utils, tensor
from inflight.triton.models.tensors import pack, unpack_all
from inflight.triton.repository.parameters import REFUSED

#: Outputs of the core model that text is made from, or that it changes.
READ = ("output_ids", "sequence_length", "batch_index", "sequence_index", "num_output_tokens")
#: Requests at once; each waits in a separate thread.
_THREADS = 64
#: Requests that wait for a thread at most; the core model has its own queue.
_WAITING = 4096
#: How often clients that left are looked for: as often as the core model does.
_WATCH_S = 0.1


class CoreError(Exception):
    """The core model's refusal, which is this model's."""

    def __init__(self, found: Any) -> None:
        super().__init__(found.message())
        self.error = found


class TritonPythonModel:
    """Triton's name for a model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._config = Config(args)
        self._config.refuse(*REFUSED["tensorrt_llm_bls"])
        self._core = self._config.text("tensorrt_llm_model_name", "tensorrt_llm")
        self._models = text.load(
            self._config,
            skip_special_tokens=self._config.flag("skip_special_tokens", True),
            exclude_input_in_output=self._config.flag("exclude_input_in_output", False),
            accumulate_tokens=self._config.flag("accumulate_tokens", False),
        )
        self._pool = ThreadPoolExecutor(_THREADS, "bls")
        self._places = threading.BoundedSemaphore(_THREADS + _WAITING)
        #: What runs, by the id that the core model knows it by.
        self._replies: dict[str, Reply] = {}
        #: Those of them whose client left.
        self._left: set[str] = set()
        self._changed = threading.Condition()
        self._stopping = False
        self._watcher = threading.Thread(target=self._watch, name="bls-watch", daemon=True)
        self._watcher.start()

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        if self._config.decoupled:
            for request in requests:
                reply = Reply(request, True)
                if self._places.acquire(blocking=False):
                    self._pool.submit(self._serve, request, reply)
                else:
                    refusal = BadRequest(f"{_WAITING} requests are waiting already; retry later", 14)
                    reply.end(self._failed(refusal))
            return None
        return [self._single(request) for request in requests]

    def finalize(self) -> None:
        self._pool.shutdown()
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._watcher.join()

    def _serve(self, request: Any, reply: Reply) -> None:
        core_id, request_id = str(uuid.uuid4()), request.request_id()
        with self._changed:
            self._replies[core_id] = reply
            self._changed.notify()
        try:
            for response in self._answers(request, core_id):
                reply.send(response)
            reply.end()
        except Exception as problem:
            reply.end(self._failed(problem))
        with self._changed:
            self._replies.pop(core_id)
            left = core_id in self._left
            self._left.discard(core_id)
        self._places.release()
        if left:
            pb_utils.Logger.log_info(f"request `{request_id}` is cancelled: its client left")

    def _single(self, request: Any) -> Any:
        try:
            answers = list(self._answers(request, str(uuid.uuid4())))
            if len(answers) != 1:
                raise BadRequest("several responses need `decoupled_mode` to be true")
        except Exception as problem:
            return self._failed(problem)
        return answers[0]

    @staticmethod
    def _failed(problem: Exception) -> Any:
        if isinstance(problem, CoreError):
            return pb_utils.InferenceResponse(error=problem.error)
        if isinstance(problem, ValueError):
            status = problem.status if isinstance(problem, BadRequest) else 3
            return pb_utils.InferenceResponse(error=error(str(problem), status))
        pb_utils.Logger.log_error(f"a request failed: {problem!r}")
        return pb_utils.InferenceResponse(error=error(str(problem), 13))

    def _watch(self) -> None:
        """Ends in the core model what nobody waits for any more."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._replies or self._stopping)
                self._changed.wait_for(lambda: self._stopping, _WATCH_S)
                if self._stopping:
                    return
                replies = list(self._replies.items())
            for core_id, reply in replies:
                if core_id in self._left or reply.is_abandoned():
                    with self._changed:
                        if core_id in self._replies:
                            self._left.add(core_id)
                    # Until it has ended: the core model may not have it yet.
                    self._stop(core_id)

    def _answers(self, request: Any, core_id: str) -> Iterable[Any]:
        inputs = Inputs(request, self._config.input_names)
        wanted = frozenset(request.requested_output_names())
        asked = self._models.generation(
            [pack(name, array) for name, array in inputs.arrays.items()],
            [name for name in self._config.outputs if name in wanted],
        )
        if isinstance(asked, Refusal):
            raise BadRequest(asked.text, asked.status)
        stopped = False
        for response in self._ask(asked, core_id, request.parameters()):
            if response.has_error():
                raise CoreError(response.error())
            outputs = {each.name(): each for each in response.output_tensors()}
            # Large tensors stay where they are.
            answer = asked.push([pack(name, outputs[name].as_numpy()) for name in READ if name in outputs])
            if answer is not None and "output_ids" in outputs:
                made = unpack_all(answer)
                given = {each.name() for each in made}
                passed = [outputs[name] for name in outputs if name in wanted and name not in given]
                yield pb_utils.InferenceResponse(made + passed)
            if asked.is_stopped and not stopped:
                stopped = True
                self._stop(core_id)
        for rest in asked.finish():
            yield pb_utils.InferenceResponse(unpack_all(rest))

    def _ask(self, asked: Generation, core_id: str, parameters: str) -> Any:
        made = pb_utils.InferenceRequest(
            request_id=core_id,
            model_name=self._core,
            # Of Inflight's own, which NVIDIA's backend lacks.
            requested_output_names=[name for name in asked.outputs if not name.startswith("inflight_")],
            inputs=unpack_all(asked.inputs),
            parameters=json.loads(parameters or "{}"),
        )
        if self._config.decoupled:
            return made.exec(decoupled=True)
        return [made.exec()]

    def _stop(self, core_id: str) -> None:
        """Ends the core model's request, if it has it; its answer comes through the responses as usual."""
        dummies = [
            tensor(name, [[0]], np.int32) for name in ("input_ids", "input_lengths", "request_output_len")
        ]
        asked = pb_utils.InferenceRequest(
            request_id=core_id,
            model_name=self._core,
            requested_output_names=["output_ids"],
            inputs=[*dummies, tensor("stop", [[True]], np.bool_)],
        )
        try:
            for _ in asked.exec(decoupled=True):
                pass
        except Exception as problem:
            pb_utils.Logger.log_error(f"a request could not be stopped: {problem!r}")
