"""`tensorrt_llm`: an Inflight executor behind the core model's tensors.

Owns which Triton request a row belongs to, and that each gets its responses and one final flag. Triton's
thread enqueues, one thread awaits the executor and sends, one looks for clients that left, one reports
statistics. What the tensors mean is `requests`'s and `responses`'s.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inflight import executors
from inflight.executors.base import ResponseBatch
from inflight.triton.models import requests as build_requests
from inflight.triton.models.metrics import Gauges
from inflight.triton.models.python_backend import BadRequest, Config, Inputs, Reply, error, pb_utils
from inflight.triton.models.responses import DTYPES, Asked, Columns, Responder
from inflight.triton.models.text import Text
from inflight.triton.repository import executor_options

#: How long one request may take where Triton wants its answer in return (a model that is not decoupled).
ANSWER_TIMEOUT_S = 3600.0
#: How long unloading waits for the rows of what it cancelled.
FINALIZE_S = 10.0


@dataclass(slots=True, eq=False)
class Group:
    """A Triton request: a row or more of a batch, all of which end."""

    id: str
    reply: Reply
    #: Client ids of the rows that have not ended.
    live: set[int] = field(default_factory=set)
    cancelled: bool = False


class TritonPythonModel:
    """Triton's name for a model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._config = Config(args)
        self._exclude_input = self._config.flag("exclude_input_in_output", False)
        self._period_s = self._config.period_s("cancellation_check_period_ms")
        self._stats_period_s = self._config.period_s("stats_check_period_ms")
        self._executor = self._create()
        self._info = self._executor.info()
        for name, declared in self._config.outputs.items():
            if declared.removeprefix("TYPE_") not in DTYPES and name in self._info.capabilities:
                raise ValueError(f"the output `{name}` is `{declared}`, which cannot be sent; use TYPE_FP32")
        self._ids = itertools.count(1)
        #: Guards what follows, and lets one thread at a time hand the executor something.
        self._work = threading.Condition()
        self._rows: dict[int, tuple[Group, Responder]] = {}
        self._failure: str | None = None
        self._stopping = False
        targets = [self._run, self._watch]
        try:
            self._gauges = Gauges(args["model_name"], args["model_version"])
            targets.append(self._report)
        except Exception as problem:
            pb_utils.Logger.log_warn(f"Triton takes no metrics of this model: {problem}")
        self._threads = [
            threading.Thread(target=target, name=target.__name__.strip("_"), daemon=True)
            for target in targets
        ]
        for thread in self._threads:
            thread.start()

    def _create(self) -> Any:
        """The executor with its options. Raises `ValueError` naming every parameter that it would ignore."""
        config = self._config
        directory = config.text("gpt_model_path")
        if not directory:
            raise ValueError("the parameter `gpt_model_path` is not set; give what the executor loads")
        name = config.text("executor", "reference")
        chosen = executor_options.choose(
            name, config.parameters, config.max_queue_size, executor_options.runtime(name, directory)
        )
        if chosen.problems:
            raise ValueError("; ".join(chosen.problems))
        given = ", ".join(f"{key}={value}" for key, value in chosen.values.items())
        pb_utils.Logger.log_info(f"the executor `{name}` starts with {given or 'its own defaults'}")
        vocab_size = None
        if name not in executors.NEED_WEIGHTS:
            vocab_size = Text(config.text("tokenizer_dir")).vocab_size
        return executors.create(
            name,
            executors.ExecutorOptions(
                model_dir=Path(directory),
                device=config.text("device", "auto"),
                vocab_size=vocab_size,
                values=chosen.values,
            ),
        )

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        groups = [self._take(request) for request in requests]
        if self._config.decoupled:
            return None
        for group in groups:
            if not group.reply.wait(ANSWER_TIMEOUT_S):
                group.reply.end(pb_utils.InferenceResponse(error=error("the executor gave no answer", 14)))
        return [group.reply.last for group in groups]

    def finalize(self) -> None:
        with self._work:
            self._stopping = True
            if self._failure is None:
                self._executor.cancel(list(self._rows))
            self._work.notify_all()
        for thread in self._threads:
            thread.join(FINALIZE_S)
        self._executor.shutdown()

    def _take(self, request: Any) -> Group:
        group = Group(request.request_id(), Reply(request, self._config.decoupled))
        try:
            inputs = Inputs(request, self._config.input_names)
            if inputs.scalar("stop", default=False):
                self._stop(group)
            else:
                self._start(group, request, inputs)
        except BadRequest as problem:
            group.reply.end(pb_utils.InferenceResponse(error=error(str(problem), problem.status)))
        except Exception as problem:
            # The others of this batch go on; what is broken for all shows in each.
            pb_utils.Logger.log_error(f"a request failed: {problem!r}")
            group.reply.end(pb_utils.InferenceResponse(error=error(str(problem), 13)))
        return group

    def _start(self, group: Group, request: Any, inputs: Inputs) -> None:
        batch_size = len(inputs.required("input_lengths"))
        parameters = json.loads(request.parameters() or "{}")
        made = [
            build_requests.build(inputs, row, next(self._ids), self._info, parameters)
            for row in range(batch_size)
        ]
        streaming = any(one.streaming for one in made)
        sequences = max((one.sampling_config.num_return_sequences for one in made), default=1)
        if not self._config.decoupled and (streaming or len(made) != 1 or sequences != 1):
            raise BadRequest("streaming, batches and several sequences need `decoupled_mode` to be true")
        exclude = inputs.scalar("exclude_input_in_output", default=self._exclude_input)
        asked = Asked(
            outputs=frozenset(request.requested_output_names()),
            batch_size=batch_size,
            sequences=sequences,
            with_prompt=not streaming and not exclude,
            context_only=parameters.get("request_type") == "context_only",
            counts=frozenset(
                name
                for name in ("num_input_tokens", "num_output_tokens")
                if inputs.scalar(f"return_{name}", default=False)
            ),
            types=self._config.outputs,
        )
        with self._work:
            if self._failure is not None:
                raise BadRequest(self._failure, 14)
            # Under the lock: the awaiting thread must find the rows before their first response.
            self._executor.enqueue(made)
            group.live = {one.client_id for one in made}
            for row, one in enumerate(made):
                self._rows[one.client_id] = (group, Responder(asked, row, one))
            self._work.notify_all()

    def _stop(self, group: Group) -> None:
        """Cancels what runs under the same id; an unknown id may have ended and is no error."""
        if not group.id:
            raise BadRequest("a request with `stop` needs the id of the request to end")
        with self._work:
            ids = [id for id, (one, _) in self._rows.items() if one.id == group.id]
            if ids:
                self._executor.cancel(ids)
        group.reply.end(None if self._config.decoupled else pb_utils.InferenceResponse([]))

    def _run(self) -> None:
        """Awaits the executor and sends what it gives."""
        try:
            while True:
                with self._work:
                    self._work.wait_for(lambda: self._rows or self._stopping)
                    if not self._rows:
                        return
                self._distribute(self._executor.await_responses(self._period_s))
        except Exception as problem:
            pb_utils.Logger.log_error(f"the executor failed: {problem!r}")
            with self._work:
                self._failure = f"the executor failed: {problem}"
                groups = dict.fromkeys(group for group, _ in self._rows.values())
                self._rows.clear()
            for group in groups:
                group.reply.end(pb_utils.InferenceResponse(error=error(self._failure, 14)))

    def _watch(self) -> None:
        """Cancels what nobody waits for any more."""
        while True:
            with self._work:
                self._work.wait_for(lambda: self._rows or self._stopping)
                self._work.wait_for(lambda: self._stopping, self._period_s)
                if self._stopping:
                    return
                groups = dict.fromkeys(group for group, _ in self._rows.values() if not group.cancelled)
            gone = [group for group in groups if group.reply.is_abandoned()]
            with self._work:
                for group in gone:
                    group.cancelled = True
                    self._executor.cancel(list(group.live))

    def _report(self) -> None:
        """Hands Triton the executor's statistics."""
        latest: Mapping[str, Any] = {}
        while True:
            with self._work:
                if self._work.wait_for(lambda: self._stopping, self._stats_period_s) or self._failure:
                    return
                active = len(self._rows)
            try:
                latest = (self._executor.stats() or [latest])[-1]
                self._gauges.report(latest, active)
            except Exception as problem:
                pb_utils.Logger.log_error(f"statistics are no longer reported: {problem!r}")
                return

    def _distribute(self, batch: ResponseBatch) -> None:
        columns = Columns(batch)
        found = []
        with self._work:
            for place, client_id in enumerate(columns.ids):
                row = self._rows.get(client_id)
                if row is None:
                    continue
                if columns.finals[place]:
                    del self._rows[client_id]
                    row[0].live.discard(client_id)
                found.append((place, *row, not row[0].live))
        for place, group, responder, is_last in found:
            if place in columns.errors:
                status, text = columns.errors[place]
                response = pb_utils.InferenceResponse(error=error(text, status))
            else:
                response = self._respond(responder, columns, place)
            if is_last:
                group.reply.end(response)
                if group.cancelled:
                    pb_utils.Logger.log_info(f"request `{group.id}` is cancelled: its client left")
            elif response is not None:
                group.reply.send(response)

    @staticmethod
    def _respond(responder: Responder, columns: Columns, place: int) -> Any:
        try:
            return responder.respond(columns, place)
        except Exception as problem:
            # A row that cannot be sent is one request's loss.
            pb_utils.Logger.log_error(f"a response failed: {problem!r}")
            return pb_utils.InferenceResponse(error=error(str(problem), 13))
