"""`tensorrt_llm`: an Inflight executor behind the core model's tensors.

Owns which Triton request a row belongs to, and that each gets its responses and one final flag. Triton's
thread enqueues, one thread awaits the executor and sends, one looks for clients that left, one reports
statistics. The worker's own code (`inflight._native.CoreRequests`) parses requests and answers rows: one
crossing per request and one per iteration.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from inflight import executors
from inflight._native import CoreRequests, Refusal, RowResponse
from inflight.executors.base import ResponseBatch
from inflight.triton.models.metrics import Gauges, Lengths
from inflight.triton.models.python_backend import BadRequest, Config, Inputs, Reply, error, pb_utils
from inflight.triton.models.tensors import DTYPES, pack, unpack
from inflight.triton.models.text import vocab_size
from inflight.triton.repository import executor_options
from inflight.triton.repository.tables import CORE
from inflight.triton.server.plan import SUPERVISED

#: How long one request may take where Triton wants its answer in return (a model that is not decoupled).
ANSWER_TIMEOUT_S = 3600.0
#: How long unloading waits for the rows of what it cancelled.
FINALIZE_S = 10.0
#: The length of a gRPC message is a signed 32-bit number.
MAX_OUTPUT_BYTES = 2**31 - 1
#: What can be an output; a config may declare more, which nothing fills.
OUTPUTS = frozenset(output.name for output in CORE.outputs)


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
        self._period_s = self._config.period_s("cancellation_check_period_ms")
        self._stats_period_s = self._config.period_s("stats_check_period_ms")
        self._ended_rank = False
        try:
            self._executor = self._create()
        except SystemExit as end:
            # A rank above 0: it has computed for rank 0 until that ended, and has nothing to serve.
            if end.code or SUPERVISED not in os.environ:
                raise RuntimeError("rank 0 has ended, and this rank with it") from end
            # Triton must not fail before what started it ends it: mpirun would kill rank 0, which may not
            # be done.
            self._ended_rank = True
            return
        self._info = self._executor.info()
        self._outputs = self._config.outputs
        for name, declared in self._outputs.items():
            if declared.removeprefix("TYPE_") not in DTYPES and name in self._info.capabilities:
                raise ValueError(f"the output `{name}` is `{declared}`, which cannot be sent; use TYPE_FP32")
        # Triton bounds a request's rows, and not the executor's batch.
        self._requests = CoreRequests(
            replace(self._info, max_batch_size=self._config.max_batch_size),
            max_message_bytes=MAX_OUTPUT_BYTES,
            exclude_input_in_output=self._config.flag("exclude_input_in_output", False),
        )
        #: Guards what follows, and lets one thread at a time hand the executor something.
        self._work = threading.Condition()
        self._rows: dict[int, Group] = {}
        #: Client id -> tokens of its prompt, and those that were generated so far.
        self._tokens: dict[int, list[int]] = {}
        self._failure: str | None = None
        self._stopping = False
        targets = [self._run, self._watch]
        try:
            self._gauges = Gauges(args["model_name"], args["model_version"])
            targets.append(self._report)
        except Exception as problem:
            pb_utils.Logger.log_warn(f"Triton does not accept metrics of this model: {problem}")
        try:
            self._lengths: Lengths | None = Lengths(args["model_name"], args["model_version"])
        except Exception as problem:
            self._lengths = None
            pb_utils.Logger.log_warn(f"Triton does not accept histograms of this model: {problem}")
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
            raise ValueError("the parameter `gpt_model_path` is not set; set it to what the executor loads")
        name = config.text("executor", "reference")
        chosen = executor_options.choose(
            name,
            config.parameters,
            config.max_queue_size,
            executor_options.runtime(name, directory),
            config.instance,
        )
        if chosen.problems:
            raise ValueError("; ".join(chosen.problems))
        given = ", ".join(f"{key}={value}" for key, value in chosen.values.items())
        pb_utils.Logger.log_info(f"the executor `{name}` starts with {given or 'its own defaults'}")
        vocabulary = None
        if name not in executors.NEED_WEIGHTS:
            vocabulary = vocab_size(config.text("tokenizer_dir"))
        return executors.create(
            name,
            executors.ExecutorOptions(
                model_dir=Path(directory),
                device=config.text("device", "auto"),
                vocab_size=vocabulary,
                values=chosen.values,
            ),
        )

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        if self._ended_rank:
            raise RuntimeError("rank 0 has ended, and this rank with it")
        groups = [self._take(request) for request in requests]
        if self._config.decoupled:
            return None
        for group in groups:
            if not group.reply.wait(ANSWER_TIMEOUT_S):
                group.reply.end(pb_utils.InferenceResponse(error=error("the executor did not answer", 14)))
        return [group.reply.last for group in groups]

    def finalize(self) -> None:
        if self._ended_rank:
            return
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
            self._start(group, request)
        except BadRequest as problem:
            group.reply.end(pb_utils.InferenceResponse(error=error(str(problem), problem.status)))
        except Exception as problem:
            # The others of this batch continue; what is broken for all shows in each.
            pb_utils.Logger.log_error(f"a request failed: {problem!r}")
            group.reply.end(pb_utils.InferenceResponse(error=error(str(problem), 13)))
        return group

    def _start(self, group: Group, request: Any) -> None:
        inputs = Inputs(request, self._config.input_names)
        parsed = self._requests.parse(
            group.id,
            [pack(name, array) for name, array in inputs.arrays.items()],
            [name for name in request.requested_output_names() if name in OUTPUTS],
            json.loads(request.parameters() or "{}"),
        )
        if isinstance(parsed, Refusal):
            raise BadRequest(parsed.text, parsed.status)
        if parsed.is_stop:
            self._stop(group)
            return
        ids = [one.client_id for one in parsed.requests]
        try:
            if not self._config.decoupled and (parsed.streaming or len(ids) != 1 or parsed.sequences != 1):
                raise BadRequest("streaming, batches and several sequences need `decoupled_mode` to be true")
            with self._work:
                if self._failure is not None:
                    raise BadRequest(self._failure, 14)
                # Under the lock: the awaiting thread must find the rows before their first response.
                self._executor.enqueue(parsed.requests)
                group.live = set(ids)
                self._rows |= dict.fromkeys(ids, group)
                self._tokens |= {one.client_id: [len(one.input_token_ids), 0] for one in parsed.requests}
                self._work.notify_all()
        except Exception:
            self._requests.forget(ids)
            raise

    def _stop(self, group: Group) -> None:
        """Cancels what runs under the same id; an unknown id may have ended and is not an error."""
        with self._work:
            ids = [id for id, one in self._rows.items() if one.id == group.id]
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
                groups = dict.fromkeys(self._rows.values())
                self._requests.forget(list(self._rows))
                self._rows.clear()
                self._tokens.clear()
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
                groups = dict.fromkeys(group for group in self._rows.values() if not group.cancelled)
            gone = [group for group in groups if group.reply.is_abandoned()]
            with self._work:
                for group in gone:
                    group.cancelled = True
                    self._executor.cancel(list(group.live))

    def _report(self) -> None:
        """Hands Triton the executor's statistics."""
        latest: Mapping[str, Any] | None = None
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
        found = []
        answers = self._requests.respond(batch)
        with self._work:
            self._count(batch)
            for answer in answers:
                group = self._rows.get(answer.client_id)
                if group is None:
                    continue
                if answer.is_final:
                    del self._rows[answer.client_id]
                    group.live.discard(answer.client_id)
                    self._end(answer)
                found.append((answer, group, not group.live))
        for answer, group, is_last in found:
            response = self._response(answer)
            if is_last:
                group.reply.end(response)
                if group.cancelled:
                    pb_utils.Logger.log_info(f"request `{group.id}` is cancelled: its client left")
            elif response is not None:
                group.reply.send(response)

    def _count(self, batch: ResponseBatch) -> None:
        """Adds the tokens of each row to its request's. Called with the lock."""
        counts = np.diff(np.frombuffer(batch.token_offsets, "<u4"))
        for client_id, count in zip(np.frombuffer(batch.client_ids, "<u8"), counts, strict=True):
            if int(client_id) in self._tokens:
                self._tokens[int(client_id)][1] += int(count)

    def _end(self, answer: RowResponse) -> None:
        """Reports the lengths of a request that ended, unless with an error. Called with the lock."""
        prompt, generated = self._tokens.pop(answer.client_id, (0, 0))
        if self._lengths is not None and answer.refusal is None and prompt:
            self._lengths.ended(prompt, generated)

    def _response(self, answer: RowResponse) -> Any:
        """What Triton sends for a row; `None` while beams are gathered."""
        if answer.refusal is not None:
            return pb_utils.InferenceResponse(error=error(answer.refusal.text, answer.refusal.status))
        if answer.outputs is None:
            return None
        try:
            return pb_utils.InferenceResponse(unpack(answer.outputs, self._outputs))
        except Exception as problem:
            # A row that cannot be sent is one request's loss.
            pb_utils.Logger.log_error(f"a response failed: {problem!r}")
            return pb_utils.InferenceResponse(error=error(str(problem), 13))
