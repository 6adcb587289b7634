"""The reference executor: the executor protocol over the engine.

Owns the engine's thread, the hand-over of requests and rows, waiting, time and the statistics. One thread
runs iterations as long as there is work and sleeps on a condition when there is none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from inflight.executors.base import (
    AdapterRefused,
    CacheReport,
    IterationStats,
    ModelInfo,
    Request,
    ResponseBatch,
    StatusCode,
)

from .core.adapters import Adapters, Loaded
from .core.cache_changes import ChangeLog
from .core.engine import Engine
from .core.extras import read_extras
from .core.guides import Guides
from .core.images import ImagePrompt
from .core.iteration import Iteration
from .core.masks import Guide
from .core.prompt_facts import PromptFacts, find_facts
from .core.refusal import Refused
from .core.rows import Row, TokenRows, pack
from .core.seeing import Seeing
from .core.statistics import Memory, Statistics
from .interpreter import settle, unsettle
from .parallel.team import Leader, RanksLost
from .preparation import Preparation, Prepared
from .transfer.transceiver import Transceiver

_T = TypeVar("_T")

#: How long `shutdown` waits for the iteration in progress.
_SHUTDOWN_TIMEOUT_S = 60.0

#: The same where other ranks take part: one of them may hang.
_RANKS_SHUTDOWN_TIMEOUT_S = 5.0


class ReferenceExecutor:
    """Implements `inflight.executors.base.Executor`; made by `inflight.executors.reference.create`."""

    def __init__(
        self,
        engine: Engine,
        info: ModelInfo,
        memory: Memory,
        guides: Guides | None = None,
        leader: Leader | None = None,
        adapters: Adapters | None = None,
        seeing: Seeing | None = None,
        transceiver: Transceiver | None = None,
    ) -> None:
        self._transceiver = transceiver
        self._seeing = seeing
        self._leader = leader
        self._guides = guides
        self._adapters = adapters
        self._engine = engine
        self._info = info
        handover = engine.handover
        transfers = None if handover is None else handover.transfers
        self._statistics = Statistics(engine.pool, engine.limits, memory, info.max_seq_len, transfers)
        # `_work` guards what callers hand in, `_ready` what the engine hands out; never held together.
        self._work = threading.Condition()
        self._incoming: list[Request] = []
        self._guides_of_incoming: dict[int, Guide | Refused] = {}
        self._loaded: dict[int, Loaded] = {}
        self._images: dict[int, ImagePrompt | Refused] = {}
        self._facts: dict[int, PromptFacts] = {}
        self._changes: list[Callable[[], None]] = []
        self._arrivals: dict[int, float] = {}
        self._cancelled: list[int] = []
        self._stopping = False
        #: Whether blocks have come from another worker, or one has taken some.
        self._is_due = False
        self._ready = threading.Condition()
        self._rows: list[Row | TokenRows] = []
        self._failure: BaseException | None = None
        self._ended = False
        self._cache_report: tuple[CacheReport, ChangeLog] | None = None
        self._preparation = Preparation(self._prepare, self._hand_over, self._fail)
        settle()
        if handover is not None:
            handover.on_change(self._wake)
        self._thread = threading.Thread(target=self._run, name="reference-engine", daemon=True)
        self._thread.start()
        if leader is not None:
            leader.on_lost(self._fail)

    def enqueue(self, requests: Sequence[Request]) -> None:
        """Takes requests; a refusal of one is its errored, final row."""
        now_s = time.perf_counter()
        ready: list[Request] = []
        waiting: list[Request] = []
        for one in requests:
            (waiting if self._needs_preparation(one) else ready).append(one)
        # Here, and not in the engine's thread, which every stream waits for.
        facts = self._find_facts(ready)
        with self._work:
            stopping = self._stopping
            if not stopping:
                self._incoming.extend(ready)
                self._facts.update(facts)
                self._arrivals.update((one.client_id, now_s) for one in ready)
                self._preparation.put(waiting, now_s)
                self._work.notify()
        self._raise_failure()
        if stopping:
            self._refuse(requests)

    def cancel(self, client_ids: Sequence[int]) -> None:
        """Cancels before the next iteration starts; unknown or finished ids are ignored."""
        with self._work:
            # What is still being prepared follows its request into the engine.
            self._cancelled.extend(self._preparation.cancel(client_ids))
            self._work.notify()

    def await_responses(self, timeout_s: float) -> ResponseBatch:
        """Waits for rows at most ``timeout_s``. Errors: RuntimeError once the engine's thread has failed."""
        with self._ready:
            self._ready.wait_for(lambda: self._rows or self._ended, timeout=max(timeout_s, 0.0))
            rows, self._rows = self._rows, []
        if not rows:
            self._raise_failure()
        return pack(rows)

    def stats(self) -> Sequence[IterationStats]:
        """Iterations since the last call, oldest first, at most a thousand; the last one with all keys."""
        with self._ready:
            taken = self._statistics.take()
        return self._statistics.describe(taken)

    def kv_cache_events(self) -> Sequence[Mapping[str, Any]]:
        """Blocks stored and removed since the last call, oldest first, as TensorRT-LLM reports them; at most
        ``event_buffer_max_size``."""
        return self._engine.pool.take_events()

    def report_cache(self, report: CacheReport) -> tuple[int, int]:
        """Reports blocks after each iteration that changed any; returns how many each level holds at most."""
        log = self._engine.pool.log_changes()
        if log is not None:
            self._cache_report = (report, log)
        return self._engine.pool.num_blocks, self._engine.pool.num_host_blocks

    def load_adapter(self, name: str, path: str) -> int:
        """Reads an adapter's files here, where no stream waits, and gives it its name between two iterations.
        Returns its task id. Errors: `AdapterRefused`."""
        adapters = self._require_adapters()
        try:
            loaded = adapters.read(name, Path(path))
            return self._between_iterations(lambda: adapters.install(loaded))
        except Refused as refusal:
            raise AdapterRefused(refusal.code, refusal.text) from refusal

    def unload_adapter(self, name: str) -> None:
        """Takes an adapter's name away between two iterations. Errors: `AdapterRefused`."""
        adapters = self._require_adapters()
        try:
            self._between_iterations(lambda: adapters.unload(name))
        except Refused as refusal:
            raise AdapterRefused(refusal.code, refusal.text) from refusal

    def info(self) -> ModelInfo:
        """What is served, with its limits."""
        return self._info

    def shutdown(self) -> None:
        """Ends the engine's thread, and then the other ranks; requests in flight get their final row as
        cancelled."""
        with self._work:
            self._stopping = True
            self._work.notify()
        self._preparation.stop()
        if self._transceiver is not None:
            self._transceiver.close()
        if self._leader is None:
            self._thread.join(_SHUTDOWN_TIMEOUT_S)
        elif self._failure is None:
            self._thread.join(_RANKS_SHUTDOWN_TIMEOUT_S)
            if self._thread.is_alive():
                self._leader.abandon("the ranks made no progress")
            else:
                self._leader.dismiss()
        unsettle()

    def _find_facts(self, requests: Sequence[Request]) -> dict[int, PromptFacts]:
        if not self._engine.pool.reuses:
            return {}
        size, engine = self._engine.pool.tokens_per_block, self._engine
        found = {one.client_id: find_facts(one, size, lambda: engine.has_work) for one in requests}
        return {client_id: facts for client_id, facts in found.items() if facts is not None}

    def _needs_preparation(self, request: Request) -> bool:
        if not request.tensors:
            return False
        try:
            extras = read_extras(request)
        except Refused:
            return False  # the engine refuses it in the same words
        guided = self._guides is not None and extras.guide is not None
        sees = self._seeing is not None and extras.images is not None
        return guided or sees or (self._adapters is not None and extras.lora is not None)

    def _prepare(self, request: Request) -> Prepared:
        """Compiles what a request is to be held to, loads its adapter and decodes its images."""
        extras = read_extras(request)
        guide: Guide | Refused | None = None
        if self._guides is not None and extras.guide is not None:
            try:
                guide = self._guides.compile(extras.guide)
            except Refused as refusal:
                guide = refusal
        adapter: Loaded | None = None
        if self._adapters is not None and extras.lora is not None:
            # What cannot be loaded now may be in the cache when the engine looks: it is for that to refuse.
            with suppress(Refused):
                adapter = self._adapters.load(extras.lora)
        if self._seeing is None or extras.images is None:
            return Prepared(guide, adapter)
        try:
            request, images = self._seeing.prepare(request, extras, extras.images)
        except Refused as refusal:
            return Prepared(guide, adapter, refusal)
        return Prepared(guide, adapter, images, request)

    def _hand_over(self, request: Request, arrived_s: float, prepared: Prepared | None) -> None:
        """Gives the engine a request that was prepared; None: it was cancelled before."""
        with self._work:
            stopping = self._stopping
            if not stopping:
                own = None if prepared is None else prepared.request
                self._incoming.append(own or request)
                # Waiting here is part of a request's time: its deadline runs.
                self._arrivals[request.client_id] = arrived_s
                stays = self._preparation.leave(request)
                if prepared is None or not stays:
                    self._cancelled.append(request.client_id)
                if prepared is not None and prepared.guide is not None:
                    self._guides_of_incoming[request.client_id] = prepared.guide
                if prepared is not None and prepared.adapter is not None:
                    self._loaded[request.client_id] = prepared.adapter
                if prepared is not None and prepared.images is not None:
                    self._images[request.client_id] = prepared.images
                self._work.notify()
        if stopping:
            self._refuse([request])

    def _refuse(self, requests: Sequence[Request]) -> None:
        error = (
            StatusCode.UNAVAILABLE,
            "the executor is shutting down; send the request to another worker",
        )
        self._publish([Row(one.client_id, final=True, error=error) for one in requests])

    def _require_adapters(self) -> Adapters:
        if self._adapters is None:
            raise AdapterRefused(
                StatusCode.UNIMPLEMENTED,
                "the reference executor has no adapters over several ranks; run one rank",
            )
        return self._adapters

    def _between_iterations(self, change: Callable[[], _T]) -> _T:
        """Has the engine's thread make a change, and waits for it. Errors: those of the change, `Refused` at
        shutdown, and RuntimeError once the engine's thread has failed."""
        done: Future[_T] = Future()

        def make() -> None:
            try:
                done.set_result(change())
            except Refused as refusal:
                done.set_exception(refusal)

        with self._work:
            if self._stopping:
                raise Refused(StatusCode.UNAVAILABLE, "the executor is shutting down")
            self._changes.append(make)
            self._work.notify()
        with self._ready:
            self._ready.wait_for(lambda: done.done() or self._ended)
        if not done.done():
            self._raise_failure()
        return done.result(timeout=0)

    def _make(self, changes: Sequence[Callable[[], None]]) -> None:
        for make in changes:
            make()
        with self._ready:
            self._ready.notify_all()

    def _run(self) -> None:
        try:
            while self._iterate():
                pass
        except BaseException as error:  # whatever ends the thread must end the worker
            self._fail(error if self._leader is None else self._leader.explain(error))
        with self._ready:
            self._ended = True
            self._ready.notify_all()

    def _fail(self, error: BaseException) -> None:
        """Ends the executor for a reason; the first one counts."""
        with self._ready:
            self._failure = self._failure or error
            self._ended = True
            self._ready.notify_all()

    def _iterate(self) -> bool:
        """Takes what came in, runs one iteration and reports it; False once it is to stop."""
        with self._work:
            self._work.wait_for(
                lambda: (
                    self._incoming
                    or self._cancelled
                    or self._changes
                    or self._stopping
                    or self._is_due
                    or self._engine.may_step
                ),
                self._engine.patience_s(),
            )
            self._is_due = False
            incoming, self._incoming = self._incoming, []
            guides, self._guides_of_incoming = self._guides_of_incoming, {}
            loaded, self._loaded = self._loaded, {}
            images, self._images = self._images, {}
            facts, self._facts = self._facts, {}
            arrivals, self._arrivals = self._arrivals, {}
            cancelled, self._cancelled = self._cancelled, []
            changes, self._changes = self._changes, []
            stopping = self._stopping
        if changes:
            self._make(changes)
        started = time.perf_counter()
        iteration = Iteration(now_s=started, clock=time.perf_counter, is_awaited=self._has_incoming)
        self._engine.add(incoming, iteration, guides, arrivals, loaded, images, facts)
        self._engine.cancel(cancelled, iteration)
        if stopping:
            self._engine.cancel_all(iteration)
            if self._failure is None:
                self._engine.finish(iteration)
        else:
            self._engine.step(iteration)
        # First, so that who has its answer finds the blocks known.
        self._report_cache()
        self._publish(iteration.output, iteration)
        return not stopping

    def _wake(self) -> None:
        """Something of a transfer is over."""
        with self._work:
            self._is_due = True
            self._work.notify()

    def _has_incoming(self) -> bool:
        # Without the lock: what comes a moment later is seen the next time.
        return bool(self._incoming)

    def _report_cache(self) -> None:
        if self._cache_report is None:
            return
        report, log = self._cache_report
        changes = log.take()
        if changes is not None:
            report(changes)

    def _publish(self, rows: Sequence[Row | TokenRows], iteration: Iteration | None = None) -> None:
        with self._ready:
            if iteration is not None:
                seconds = time.perf_counter() - iteration.now_s
                iteration.output = []
                engine = self._engine
                # Looked for only where there were prompts: most iterations have none.
                partial = engine.num_partial_tokens if iteration.context_requests else 0
                self._statistics.record(
                    iteration,
                    time.time(),
                    seconds,
                    engine.num_active,
                    engine.num_waiting,
                    partial,
                )
            if rows:
                self._rows.extend(rows)
                self._ready.notify_all()

    def _raise_failure(self) -> None:
        with self._ready:
            failure = self._failure
        if failure is not None:
            if isinstance(failure, RanksLost):
                raise failure
            raise RuntimeError(f"the reference executor's engine failed: {failure!r}") from failure
