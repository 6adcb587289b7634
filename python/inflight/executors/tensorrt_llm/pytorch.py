"""Checkpoints: the executor protocol over `tensorrt_llm.LLM`, the PyTorch runtime (TensorRT-LLM from 1.0 on).

Owns the LLM object and the event loop on which everything is asked of it and its results are read. What a
request becomes is `pytorch_requests`, what a result means is `pytorch_results`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

from inflight.executors.base import (
    CacheChange,
    CacheChanges,
    CacheReport,
    IterationStats,
    ModelInfo,
    Request,
    ResponseBatch,
    StatusCode,
)
from inflight.executors.columns import Columns
from inflight.executors.tensorrt_llm.cache_events import CacheEventReader
from inflight.executors.tensorrt_llm.convert import Refused
from inflight.executors.tensorrt_llm.health import EngineFailed, Liveness, check_error, describe, fatal
from inflight.executors.tensorrt_llm.pytorch_requests import SamplingBuilder
from inflight.executors.tensorrt_llm.pytorch_results import Progress
from inflight.executors.tensorrt_llm.results import Active, Unusable, status_of

LOG = logging.getLogger("inflight.tensorrt_llm")

#: How long TensorRT-LLM waits for a further iteration's statistics; it must be above 0.
_STATS_WAIT_S = 0.005
#: How long statistics are drained: an engine that iterates faster than the wait above always has more.
_STATS_DRAIN_S = 0.05
#: How long `stats` waits for the loop, which may be taking a large request.
_STATS_TIMEOUT_S = 1.0
#: Iterations, or events, that one call returns.
_MAX_STATS = 1000
#: Between two looks for events of the cache where there were none.
_EVENTS_PAUSE_S = 0.05
_SLICE_S = 0.25
#: Requests whose images are decoded at once, next to the loop and the thread that brings requests. Images of
#: a request have `inflight.executors.images.MAX_PIXELS` at most.
_DECODERS = 2
#: Requests with images that wait for that, besides.
_MAX_UNDECODED = 64
#: How long the LLM and the loop may each take to end.
_SHUTDOWN_TIMEOUT_S = 10.0


class PyTorchExecutor:
    """Implements `inflight.executors.base.Executor`; made by `pytorch_start.create_pytorch`."""

    def __init__(
        self,
        llm: Any,
        builder: SamplingBuilder,
        info: ModelInfo,
        *,
        request_error: type[Exception],
        reports_events: bool = False,
    ) -> None:
        """`request_error`: TensorRT-LLM's `RequestError`, which results raise where their request failed.
        `reports_events`: whether the LLM keeps events of its KV cache.
        """
        self._llm = llm
        self._request_error = request_error
        self._reports_events = reports_events
        self._builder = builder
        self._info = info
        self._ready = threading.Condition()
        self._rows = Columns()
        self._failure: EngineFailed | None = None
        #: Client id -> what runs: its progress, result and reader. Used on the loop only.
        self._running: dict[int, tuple[Progress, Any, asyncio.Task[None]]] = {}
        #: Client id -> the decoding of a request's images. Used on the loop only.
        self._decoding: dict[int, tuple[Active, asyncio.Task[None]]] = {}
        self._decoders = ThreadPoolExecutor(_DECODERS, "tensorrt-llm-images")
        self._closed = False
        self._stats_failed = False
        self._events_failed = False
        self._said_cut = False
        self._liveness = Liveness(self._is_alive)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tensorrt-llm-results", daemon=True
        )
        self._thread.start()

    def info(self) -> ModelInfo:
        """What is served, with its limits."""
        return self._info

    def enqueue(self, requests: Sequence[Request]) -> None:
        """Takes requests; a refusal of one is its errored, final row."""
        built: list[tuple[Active, dict[str, Any]]] = []
        for request in requests:
            active = Active(request)
            if active.has_images:
                self._loop.call_soon_threadsafe(self._start_decoding, active, request)
                continue
            call = self._build(active, request)
            if call is not None:
                built.append((active, call))
        if built:
            self._loop.call_soon_threadsafe(self._submit, built)

    def _build(self, active: Active, request: Request) -> dict[str, Any] | None:
        """The keywords of a request; None: it is refused, with an error."""
        try:
            return self._builder.build(request)
        except Refused as error:
            self._fail(active, StatusCode.INVALID_ARGUMENT, str(error))
        except (TypeError, ValueError, RuntimeError) as error:
            self._fail(active, StatusCode.INVALID_ARGUMENT, describe(error))
        return None

    def _start_decoding(self, active: Active, request: Request) -> None:
        """On the loop. Decoding takes a second or more, in which other requests must not wait."""
        if len(self._decoding) >= _DECODERS + _MAX_UNDECODED:
            text = "too many requests with images are waiting to be decoded; send it again later"
            self._fail(active, StatusCode.RESOURCE_EXHAUSTED, text)
            return
        task = self._loop.create_task(self._decode(active, request))
        self._decoding[active.client_id] = active, task

    async def _decode(self, active: Active, request: Request) -> None:
        call = None
        try:
            call = await self._loop.run_in_executor(self._decoders, self._build, active, request)
        except Exception as error:
            self._fail(active, StatusCode.INTERNAL, describe(error))
        # A cancelled one does not get here.
        del self._decoding[active.client_id]
        if call is not None:
            self._submit([(active, call)])

    def _submit(self, built: list[tuple[Active, dict[str, Any]]]) -> None:
        """On the loop: results wake it, and TensorRT-LLM counts its requests without a lock."""
        for active, call in built:
            try:
                result = self._llm.generate_async(**call)
            except Exception as error:
                if isinstance(error, ValueError) or self._takes_requests():
                    text = describe(error)
                    self._fail(active, status_of(text, StatusCode.INVALID_ARGUMENT), text)
                else:
                    self._break(fatal("taking a request", error))
                continue
            progress = Progress(active, self._info.vocab_size)
            task = self._loop.create_task(self._read(progress, result))
            self._running[active.client_id] = progress, result, task

    def _is_alive(self) -> bool:
        """Whether the LLM takes requests and none of its worker processes has ended.

        `_check_health` reports a shutdown only. A worker process that died is a future that is done; an
        engine that makes no progress in a living process is the worker's watchdog's (`--progress-timeout-s`).
        """
        executor = getattr(self._llm, "_executor", None)
        ended = getattr(executor, "mpi_futures", None) or ()
        if not self._llm._check_health() or any(future.done() for future in ended):
            return False
        # Under `trtllm-llmapi-launch` there are no futures; later versions ask the ranks themselves.
        check = getattr(executor, "check_health", None)
        return bool(check()) if callable(check) else True

    def _takes_requests(self) -> bool:
        try:
            return self._is_alive()
        except Exception:
            LOG.exception("the LLM does not answer")
            return False

    async def _read(self, progress: Progress, result: Any) -> None:
        active = progress.active
        try:
            async for _ in result:
                with self._ready:
                    progress.read(result, self._rows)
                    self._ready.notify_all()
                if progress.cut_at is not None and not self._said_cut:
                    self._said_cut = True
                    LOG.warning(
                        "TensorRT-LLM ended a sequence at %d tokens, before its `max_tokens`: the KV cache "
                        "is too small for longer sequences. Start with `max_seq_len=%d` to refuse them",
                        progress.cut_at,
                        progress.cut_at,
                    )
            with self._ready:
                progress.cancel(self._rows)
                self._ready.notify_all()
        except Unusable as error:
            self._fail(active, StatusCode.INTERNAL, str(error))
            self._end(result)
        except self._request_error as error:
            self._fail_or_break(active, str(error))
        except Exception as error:
            self._break(fatal("giving a result", error))
        finally:
            self._running.pop(active.client_id, None)

    def cancel(self, client_ids: Sequence[int]) -> None:
        """Cancels; behind the submissions that are on their way to the loop."""
        self._loop.call_soon_threadsafe(self._abort, list(client_ids))

    def _abort(self, client_ids: list[int]) -> None:
        """Ends the requests here: TensorRT-LLM answers a cancelled request only once it runs, and of several
        sequences only the first."""
        for client_id in client_ids:
            decoding = self._decoding.pop(client_id, None)
            if decoding is not None:
                active, undecoded = decoding
                undecoded.cancel()
                with self._ready:
                    Progress(active, self._info.vocab_size).cancel(self._rows)
                    self._ready.notify_all()
            running = self._running.pop(client_id, None)
            if running is None:
                continue
            progress, result, task = running
            # What the engine still answers is not read.
            task.cancel()
            with self._ready:
                progress.cancel(self._rows)
                self._ready.notify_all()
            self._end(result)

    def _end(self, result: Any) -> None:
        try:
            result.abort()
        except Exception as error:
            self._break(fatal("cancelling a request", error))

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
            if self._running:
                self._liveness.check()
            if left <= 0:
                return rows.pack()

    def load_adapter(self, name: str, path: str) -> int:
        """Gives a name to the LoRA adapter of a directory, whose weights TensorRT-LLM reads at its first
        request. Returns the task id, another at each load. Errors: `AdapterRefused`."""
        return self._builder.require_adapters().load(name, Path(path))

    def unload_adapter(self, name: str) -> None:
        """Requests no longer find the adapter of a name. Errors: `AdapterRefused`."""
        self._builder.require_adapters().unload(name)

    def stats(self) -> Sequence[IterationStats]:
        """Iterations since the last call; none before the first request, nor where TensorRT-LLM fails to
        report them, which the log says once."""
        if self._closed:
            return ()
        try:
            found: Sequence[IterationStats] = self._ask(
                self._drain(self._llm.get_stats_async), _STATS_TIMEOUT_S
            )
            return found
        except Exception as error:
            if not self._closed and not self._stats_failed:
                self._stats_failed = True
                LOG.warning("TensorRT-LLM reports no statistics: %s", describe(error))
            return ()

    def kv_cache_events(self) -> Sequence[Mapping[str, Any]]:
        """Blocks stored and removed since the last call, oldest first, as TensorRT-LLM reports them; none
        without `event_buffer_max_size`, nor before the first request. At most a thousand; the next call has
        the others."""
        if self._closed or not self._reports_events:
            return ()
        try:
            found: Sequence[Mapping[str, Any]] = self._ask(
                self._drain(self._llm.get_kv_cache_events_async), _STATS_TIMEOUT_S
            )
            return found
        except Exception as error:
            if not self._closed and not self._events_failed:
                self._events_failed = True
                LOG.warning("TensorRT-LLM reports no events of its KV cache: %s", describe(error))
            return ()

    def report_cache(self, report: CacheReport) -> tuple[int, int]:
        """Reports blocks from now on, from TensorRT-LLM's events, which have one reader.
        Returns (0, 0): how many blocks each level holds is not known."""
        reading = threading.Thread(
            target=self._report_cache, args=(report,), name="tensorrt-llm-cache", daemon=True
        )
        reading.start()
        return 0, 0

    def _report_cache(self, report: CacheReport) -> None:
        reader = CacheEventReader(self._info.tokens_per_block)
        adapters = self._builder.adapters
        while not self._closed and self._failure is None:
            events = self.kv_cache_events()
            if not events:
                time.sleep(_EVENTS_PAUSE_S)
                continue
            if adapters is not None:
                reader.adapters = tuple(adapters.task_ids())
            try:
                changes = reader.read(events)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                LOG.warning("events of TensorRT-LLM's KV cache cannot be read: %s", describe(error))
                report(CacheChanges(bytes([CacheChange.CLEARED]), bytes(8)))
                return
            if changes is not None:
                report(changes)

    async def _drain(self, ask: Callable[..., Any]) -> Sequence[Any]:
        """What `ask` returns at once. On the loop, because the queue of a request that was made there can be
        read there only."""
        iterations = ask(timeout=_STATS_WAIT_S)
        # Once it was empty it stays so until the next request.
        mark_undone = getattr(iterations, "mark_undone", None)
        if mark_undone is not None:
            mark_undone()
        found: list[Any] = []
        deadline = self._loop.time() + _STATS_DRAIN_S
        try:
            async for one in iterations:
                # Some versions give lists of events.
                found += one if isinstance(one, list) else [one]
                if self._loop.time() >= deadline or len(found) >= _MAX_STATS:
                    break
        except (IndexError, asyncio.QueueEmpty):
            # In some versions an empty queue raises.
            pass
        return found

    def _ask(self, question: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        """The answer of a coroutine on the loop. Raises what it raises, and `TimeoutError`."""
        try:
            asked = asyncio.run_coroutine_threadsafe(question, self._loop)
        except RuntimeError:
            # The loop ended in between.
            question.close()
            raise
        try:
            return asked.result(timeout_s)
        except FutureTimeout:
            asked.cancel()
            raise

    def shutdown(self) -> None:
        """Ends the LLM and the loop within a bounded time; requests in flight get no more rows."""
        with self._ready:
            if self._closed:
                return
            self._closed = True
            self._ready.notify_all()
        # TensorRT-LLM would finish what runs first, however long that takes.
        try:
            self._ask(self._abort_all(), _SHUTDOWN_TIMEOUT_S)
        except Exception as error:
            LOG.warning("requests could not be cancelled: %s", describe(error))
        self._decoders.shutdown(wait=False, cancel_futures=True)
        ending = threading.Thread(target=self._shut_down, name="tensorrt-llm-shutdown", daemon=True)
        ending.start()
        ending.join(_SHUTDOWN_TIMEOUT_S)
        if ending.is_alive():
            LOG.warning("TensorRT-LLM did not shut down within %g s", _SHUTDOWN_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SHUTDOWN_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _abort_all(self) -> None:
        tasks = [task for _, _, task in self._running.values()]
        tasks += [task for _, task in self._decoding.values()]
        self._abort([*self._decoding, *self._running])
        await asyncio.gather(*tasks, return_exceptions=True)

    def _shut_down(self) -> None:
        try:
            self._llm.shutdown()
        except Exception as error:
            LOG.warning("TensorRT-LLM failed while shutting down: %s", describe(error))

    def _fail(self, active: Active, code: StatusCode, text: str) -> None:
        with self._ready:
            self._rows.fail(active.client_id, code, text)
            self._ready.notify_all()

    def _fail_or_break(self, active: Active, text: str) -> None:
        try:
            check_error(text)
        except EngineFailed as failure:
            self._break(failure)
        else:
            self._fail(active, status_of(text), text)

    def _break(self, failure: EngineFailed) -> None:
        with self._ready:
            if not self._closed and self._failure is None:
                self._failure = failure
            self._ready.notify_all()
