"""`tensorrt_llm`: an Inflight executor behind the core model's tensors.

Owns which Triton request a row belongs to, and that each gets its responses and one final flag. One
thread awaits the executor and sends; Triton's thread enqueues. What the tensors mean is `requests`'s.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from inflight import executors
from inflight.executors.base import Request, ResponseBatch
from inflight.repository.backend import requests as build_requests
from inflight.repository.backend.triton import FINAL, BadRequest, Config, Inputs, error, pb_utils, tensor

#: How long one request may take where Triton wants its answer in return (a model that is not decoupled).
ANSWER_TIMEOUT_S = 3600.0


@dataclass(slots=True)
class Group:
    """A Triton request: a row or more of a batch, all of which end."""

    request_id: str
    #: `None` where the answer is returned and not sent.
    sender: Any
    wanted: frozenset[str]
    batch_size: int
    streaming: bool
    with_prompt: bool
    num_tokens: frozenset[str]
    live: set[int] = field(default_factory=set)
    answer: Any = None
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Row:
    """One executor request of a group."""

    group: Group
    batch_index: int
    request: Request
    #: Cumulative log probability by sequence.
    cum_log_probs: dict[int, float] = field(default_factory=dict)


class TritonPythonModel:
    """Triton's name for a model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._config = Config(args)
        directory = self._config.text("gpt_model_path")
        if not directory:
            raise ValueError("the parameter `gpt_model_path` is not set; give what the executor loads")
        self._exclude_input = self._config.flag("exclude_input_in_output", False)
        self._period_s = max(int(self._config.text("cancellation_check_period_ms", "100")), 1) / 1000
        self._executor = executors.create(
            self._config.text("executor", "reference"),
            executors.ExecutorOptions(model_dir=Path(directory), device="auto"),
        )
        self._info = self._executor.info()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._rows: dict[int, Row] = {}
        self._failure: str | None = None
        self._stopping = False
        self._work = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
        self._thread.start()

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        groups = [self._take(request) for request in requests]
        if self._config.decoupled:
            return None
        for group in groups:
            if not group.done.wait(ANSWER_TIMEOUT_S):
                group.answer = pb_utils.InferenceResponse(error=error("the executor gave no answer", 14))
        return [group.answer for group in groups]

    def finalize(self) -> None:
        with self._work:
            self._stopping = True
            self._work.notify()
        self._thread.join(10)
        self._executor.shutdown()

    def _take(self, request: Any) -> Group:
        sender = request.get_response_sender() if self._config.decoupled else None
        group = Group(
            request.request_id(),
            sender,
            frozenset(request.requested_output_names()),
            1,
            False,
            False,
            frozenset(),
        )
        try:
            inputs = Inputs(request, self._config.input_names)
            if inputs.scalar("stop", default=False):
                self._stop(group)
                return group
            self._start(group, inputs)
        except ValueError as problem:
            self._end(group, pb_utils.InferenceResponse(error=error(str(problem))))
        return group

    def _start(self, group: Group, inputs: Inputs) -> None:
        group.batch_size = len(inputs.arrays["input_lengths"])
        group.streaming = bool(inputs.scalar("streaming", default=False))
        exclude = inputs.scalar("exclude_input_in_output", default=self._exclude_input)
        group.with_prompt = not group.streaming and not exclude
        group.num_tokens = frozenset(
            name
            for name in ("num_input_tokens", "num_output_tokens")
            if inputs.scalar(f"return_{name}", default=False)
        )
        made = [
            build_requests.build(inputs, row, next(self._ids), group.streaming, self._info)
            for row in range(group.batch_size)
        ]
        if group.sender is None:
            sequences = max((request.sampling_config.num_return_sequences for request in made), default=1)
            if group.streaming or len(made) != 1 or sequences != 1:
                raise BadRequest("streaming, batches and several sequences need `decoupled_mode` to be true")
        with self._work:
            if self._failure is not None:
                raise BadRequest(self._failure)
            group.live = {request.client_id for request in made}
            for row, request in enumerate(made):
                self._rows[request.client_id] = Row(group, row, request)
            # Under the lock: the awaiting thread must find the rows before their first response.
            self._executor.enqueue(made)
            self._work.notify()

    def _stop(self, group: Group) -> None:
        """Cancels what runs under the same id; an unknown id may have ended and is no error."""
        if not group.request_id:
            raise BadRequest("a request with `stop` needs the id of the request to end")
        with self._lock:
            ids = [id for id, row in self._rows.items() if row.group.request_id == group.request_id]
        if ids:
            self._executor.cancel(ids)
        self._end(group, None if group.sender is not None else pb_utils.InferenceResponse([]))

    def _run(self) -> None:
        try:
            while True:
                with self._work:
                    while not self._rows and not self._stopping:
                        self._work.wait()
                    if self._stopping:
                        return
                self._distribute(self._executor.await_responses(self._period_s))
                self._cancel_abandoned()
        except Exception as problem:
            pb_utils.Logger.log_error(f"the executor failed: {problem!r}")
            with self._lock:
                self._failure = f"the executor failed: {problem}"
                groups = {id(row.group): row.group for row in self._rows.values()}
                self._rows.clear()
            for group in groups.values():
                self._end(group, pb_utils.InferenceResponse(error=error(self._failure, 13)))

    def _cancel_abandoned(self) -> None:
        with self._lock:
            rows = list(self._rows.items())
        gone = [id for id, row in rows if row.group.sender is not None and row.group.sender.is_cancelled()]
        if gone:
            self._executor.cancel(gone)

    def _distribute(self, batch: ResponseBatch) -> None:
        ids = np.frombuffer(batch.client_ids, np.uint64).tolist()
        if not ids:
            return
        sequences = np.frombuffer(batch.sequence_index, np.int32).tolist()
        offsets = np.frombuffer(batch.token_offsets, np.uint32).tolist()
        tokens = np.frombuffer(batch.token_ids, np.int32)
        finals = np.frombuffer(batch.finals, np.uint8).tolist()
        errors = {row: (status, text) for row, status, text in batch.errors}
        log_probs = self._log_probs(batch, offsets)
        for place, client_id in enumerate(ids):
            with self._lock:
                row = self._rows.pop(client_id, None) if finals[place] else self._rows.get(client_id)
            if row is None:
                continue
            if finals[place]:
                row.group.live.discard(client_id)
            if place in errors:
                status, text = errors[place]
                response = pb_utils.InferenceResponse(error=error(text, status))
            else:
                new = tokens[offsets[place] : offsets[place + 1]]
                response = self._response(row, sequences[place], new, log_probs.get(place))
            self._send(row.group, response)

    @staticmethod
    def _log_probs(batch: ResponseBatch, offsets: list[int]) -> dict[int, np.ndarray[Any, Any]]:
        values, found, at = np.frombuffer(batch.log_probs, np.float32), {}, 0
        for row in np.frombuffer(batch.log_prob_rows, np.uint32).tolist():
            count = offsets[row + 1] - offsets[row]
            found[row] = values[at : at + count]
            at += count
        return found

    def _response(
        self, row: Row, sequence: int, new: np.ndarray[Any, Any], log_probs: np.ndarray[Any, Any] | None
    ) -> Any:
        group = row.group
        prompt = row.request.input_token_ids if group.with_prompt else []
        ids = np.concatenate([np.asarray(prompt, np.int32), new])
        outputs: dict[str, tuple[Any, Any]] = {
            "output_ids": (ids[None, None], np.int32),
            "sequence_length": ([[len(ids)]], np.int32),
        }
        if log_probs is not None:
            total = row.cum_log_probs.get(sequence, 0.0) + float(log_probs.sum())
            row.cum_log_probs[sequence] = total
            outputs["cum_log_probs"] = ([[total]], np.float32)
            outputs["output_log_probs"] = (log_probs[None, None], np.float32)
        if group.batch_size > 1:
            outputs["batch_index"] = ([[row.batch_index]], np.int32)
        if row.request.sampling_config.num_return_sequences > 1:
            outputs["sequence_index"] = ([[sequence]], np.int32)
        counts = {"num_input_tokens": len(row.request.input_token_ids), "num_output_tokens": len(new)}
        for name in group.num_tokens:
            outputs[name] = ([[counts[name]]], np.int32)
        made = [tensor(name, *value) for name, value in outputs.items() if name in group.wanted]
        return pb_utils.InferenceResponse(made)

    def _send(self, group: Group, response: Any) -> None:
        if not group.live:
            self._end(group, response)
        elif group.sender is not None:
            group.sender.send(response)

    @staticmethod
    def _end(group: Group, response: Any) -> None:
        """The last response, with the final flag on it."""
        group.answer = response
        if group.sender is not None:
            if response is None:
                group.sender.send(flags=FINAL)
            else:
                group.sender.send(response, flags=FINAL)
        group.done.set()
