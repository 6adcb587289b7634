"""Embedding models: the executor protocol over `LLM.encode`, TensorRT-LLM's path without a KV cache (1.3).

Owns the queue and the thread that encodes: `encode` is synchronous, runs in this process, and bears one call
at a time. Which checkpoints may be served so is `encoder_start`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from inflight.executors.base import (
    FinishReason,
    IterationStats,
    ModelInfo,
    Request,
    ResponseBatch,
    StatusCode,
)
from inflight.executors.columns import Columns
from inflight.executors.tensorrt_llm.convert import Refused, text
from inflight.executors.tensorrt_llm.health import EngineFailed, Liveness, check_error, describe
from inflight.executors.tensorrt_llm.results import Unusable, as_float32, float_output

LOG = logging.getLogger("inflight.tensorrt_llm")

POOLING, EMBEDDING = "inflight_pooling", "inflight_embedding"
#: The pooling of a request that names none; the model itself pools, as it was trained to.
_USUAL = "last"
_SLICE_S = 0.25
#: How long the LLM and the thread may each take to end.
_SHUTDOWN_TIMEOUT_S = 10.0


def vectors_of(llm: Any, prompts: list[list[int]]) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """What the model makes of each prompt, of any shape. Raises whatever TensorRT-LLM raises."""
    return [as_float32(one.logits) for one in llm.encode(prompts)]


class EncodeExecutor:
    """Implements `inflight.executors.base.Executor`; made by `encoder_start.make_encoder`."""

    def __init__(self, llm: Any, info: ModelInfo, width: int) -> None:
        """`width`: values of an embedding."""
        self._llm = llm
        self._info = info
        self._width = width
        self._ready = threading.Condition()
        self._queue: deque[Request] = deque()
        self._rows = Columns()
        self._failure: EngineFailed | None = None
        self._closed = self._encodes = self._proven = False
        self._liveness = Liveness(llm._check_health)
        self._thread = threading.Thread(target=self._run, name="tensorrt-llm-encode", daemon=True)
        self._thread.start()

    def info(self) -> ModelInfo:
        """What is served, with its limits."""
        return self._info

    def enqueue(self, requests: Sequence[Request]) -> None:
        """Takes requests; a refusal of one is its errored, final row."""
        with self._ready:
            for request in requests:
                try:
                    self._check(request)
                except Refused as error:
                    self._rows.fail(request.client_id, StatusCode.INVALID_ARGUMENT, str(error))
                else:
                    self._queue.append(request)
            self._ready.notify_all()

    def _check(self, request: Request) -> None:
        """Refuses what is not one embedding. The worker's own first request asks for one token, and is
        answered without any: that the model takes it is what shall be shown."""
        pooling = None
        for tensor in request.tensors:
            if tensor.name != POOLING:
                raise Refused(f"the input `{tensor.name}` is not supported by a model that makes embeddings")
            pooling = text(tensor)
        if pooling is None and self._proven:
            raise Refused("this model makes embeddings and generates no text; ask `/v1/embeddings`")
        if pooling not in (None, _USUAL):
            raise Refused(
                f"`{POOLING}` is `{pooling}`, and TensorRT-LLM's model pools by itself; leave it out"
            )
        most = min(self._info.max_input_len, self._info.max_num_tokens)
        if len(request.input_token_ids) > most:
            raise Refused(f"the prompt has {len(request.input_token_ids)} tokens; the model takes {most}")
        self._proven = True

    def cancel(self, client_ids: Sequence[int]) -> None:
        """Takes requests out of the queue; one that is being encoded is answered."""
        named = frozenset(client_ids)
        with self._ready:
            for request in [one for one in self._queue if one.client_id in named]:
                self._queue.remove(request)
                self._rows.add(request.client_id, (), FinishReason.CANCELLED, final=True)
            self._ready.notify_all()

    def await_responses(self, timeout_s: float) -> ResponseBatch:
        """Everything since the last call."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            with self._ready:
                self._ready.wait_for(lambda: self._rows or self._failure or self._closed, min(left, _SLICE_S))
                rows = self._rows
                if rows:
                    self._rows = Columns()
            if rows or self._closed:
                return rows.pack()
            if self._failure is not None:
                raise self._failure
            if self._encodes:
                self._liveness.check()
            if left <= 0:
                return rows.pack()

    def stats(self) -> Sequence[IterationStats]:
        """None: TensorRT-LLM counts no iterations here."""
        return ()

    def shutdown(self) -> None:
        """Ends the thread and the LLM within a bounded time; what is queued gets no rows."""
        with self._ready:
            if self._closed:
                return
            self._closed = True
            self._queue.clear()
            self._ready.notify_all()
        self._thread.join(_SHUTDOWN_TIMEOUT_S)
        ending = threading.Thread(target=self._shut_down, name="tensorrt-llm-shutdown", daemon=True)
        ending.start()
        ending.join(_SHUTDOWN_TIMEOUT_S)
        if ending.is_alive():
            LOG.warning("TensorRT-LLM did not shut down within %g s", _SHUTDOWN_TIMEOUT_S)

    def _shut_down(self) -> None:
        try:
            self._llm.shutdown()
        except Exception as error:
            LOG.warning("TensorRT-LLM failed while shutting down: %s", describe(error))

    def _run(self) -> None:
        while True:
            with self._ready:
                self._encodes = False
                self._ready.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                batch = self._take()
                self._encodes = True
            try:
                vectors = self._encode(batch)
            except EngineFailed as failure:
                with self._ready:
                    self._failure = failure
                    self._ready.notify_all()
                return
            with self._ready:
                for request, vector in zip(batch, vectors, strict=True):
                    self._answer(request, vector)
                self._ready.notify_all()

    def _take(self) -> list[Request]:
        """What is queued, as much as one pass takes; others come with the next."""
        batch: list[Request] = []
        tokens = 0
        while self._queue and len(batch) < self._info.max_batch_size:
            tokens += len(self._queue[0].input_token_ids)
            if batch and tokens > self._info.max_num_tokens:
                break
            batch.append(self._queue.popleft())
        return batch

    def _encode(self, batch: list[Request]) -> list[Any]:
        """An embedding for each, or why there is none. Errors: `EngineFailed`."""
        try:
            found = vectors_of(self._llm, [list(one.input_token_ids) for one in batch])
            if len(found) != len(batch):
                raise Unusable(f"TensorRT-LLM encoded {len(found)} of {len(batch)} prompts")
        except Exception as error:
            failed = describe(error)
            check_error(failed)
            return [failed] * len(batch)
        return found

    def _answer(self, request: Request, vector: Any) -> None:
        """The row of a request. `vector`: what the model made, or why it did not."""
        if not isinstance(vector, str) and (vector.shape != (self._width,) or not np.isfinite(vector).all()):
            vector = f"the model made no embedding of {self._width} numbers"
        if isinstance(vector, str):
            self._rows.fail(request.client_id, StatusCode.INTERNAL, vector)
            return
        row = self._rows.add(request.client_id, (), FinishReason.END_ID, final=True)
        if request.tensors:
            length = float(np.linalg.norm(vector))
            self._rows.tensor(row, float_output(EMBEDDING, vector / length if length else vector))
