"""Engines: the executor protocol over `tensorrt_llm.bindings.executor.Executor` (TensorRT-LLM up to 1.2).

Owns the engine object, the way of ids there and back, and waiting. What a request becomes is
`engine_requests`, what a result means is `results`, how the engine is configured is `engine_config`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from inflight._native import Capability
from inflight.errors import UserMistake
from inflight.executors.base import (
    FinishReason,
    IterationStats,
    ModelInfo,
    Request,
    ResponseBatch,
    StatusCode,
)
from inflight.executors.columns import Columns
from inflight.executors.tensorrt_llm import ranks
from inflight.executors.tensorrt_llm.convert import Refused
from inflight.executors.tensorrt_llm.engine_config import build_config
from inflight.executors.tensorrt_llm.engine_directory import EngineDirectory
from inflight.executors.tensorrt_llm.engine_requests import RequestBuilder
from inflight.executors.tensorrt_llm.guide_check import PATIENCE_S, GuideCheck, find_grammar, takes_formats
from inflight.executors.tensorrt_llm.guide_requests import FORMATS
from inflight.executors.tensorrt_llm.guides import read_tokenizer_info
from inflight.executors.tensorrt_llm.health import EngineFailed, Liveness, check_error, describe, fatal
from inflight.executors.tensorrt_llm.options import Options
from inflight.executors.tensorrt_llm.promises import capabilities
from inflight.executors.tensorrt_llm.results import Active, ResultReader, Unusable, status_of
from inflight.executors.tensorrt_llm.verify import verify

LOG = logging.getLogger("inflight.tensorrt_llm")

#: A refused request's row waits at most this long behind an engine that has nothing to say.
_SLICE = timedelta(milliseconds=50)

#: Of the KV cache for cross attention, of an encoder-decoder, which has no default upstream.
_CROSS_KV_CACHE_FRACTION = 0.5

#: Iterations whose statistics are kept; TensorRT-LLM's default.
_MAX_STATS = 1000


class EnginesExecutor:
    """Implements `inflight.executors.base.Executor`; made by `create_engines`."""

    def __init__(
        self,
        engine: Any,
        builder: RequestBuilder,
        reader: ResultReader,
        info: ModelInfo,
        guides: GuideCheck | None = None,
    ) -> None:
        """`guides`: what every guide must pass first; None: there are none."""
        self._engine = engine
        self._guides = guides
        #: Our client id -> a request whose guide is being checked, and until when it may be.
        self._checking: dict[int, tuple[Request, float]] = {}
        self._cancelled: deque[int] = deque()
        self._builder = builder
        self._reader = reader
        self._info = info
        #: Guards the two maps: responses may come before `enqueue_requests` has returned their ids.
        self._ids = threading.Lock()
        #: Tag (the client id that the engine sees, never used twice) -> request.
        self._active: dict[int, Active] = {}
        #: Our client id -> tag.
        self._tags: dict[int, int] = {}
        self._next_tag = count(1)
        self._refused: deque[tuple[int, StatusCode, str]] = deque()
        self._liveness = Liveness(engine.can_enqueue_requests)
        self._closed = False
        #: What went wrong on the thread that checks guides.
        self._failure: Exception | None = None

    def info(self) -> ModelInfo:
        """What is served, with its limits."""
        return self._info

    def enqueue(self, requests: Sequence[Request]) -> None:
        """Takes requests; a refusal of one is its errored, final row."""
        built: list[tuple[int, Request, Any]] = []
        for request in requests:
            tag = next(self._next_tag)
            try:
                if not self._waits_for_its_guide(request):
                    built.append((tag, request, self._builder.build(request, tag)))
            except Refused as error:
                self._refuse(request, StatusCode.INVALID_ARGUMENT, str(error))
            except (TypeError, ValueError, RuntimeError) as error:
                # The bindings check values in their constructors.
                self._refuse(request, StatusCode.INVALID_ARGUMENT, describe(error))
        if built:
            self._hand_over(built)

    def _waits_for_its_guide(self, request: Request) -> bool:
        """Whether the request has a guide that must be checked before the engine sees it; then it is."""
        found = self._builder.find_guide(request)
        if found is None:
            return False
        kind, guide = found
        if self._guides is None:
            raise Refused("guides cannot be checked here: the package `xgrammar` is not installed")
        if self._guides.is_known_good(kind, guide):
            return False
        client_id = request.client_id
        with self._ids:
            self._checking[client_id] = request, time.monotonic() + PATIENCE_S
        if not self._guides.check(kind, guide, lambda wrong: self._checked(client_id, wrong)):
            with self._ids:
                del self._checking[client_id]
            text = "too many guides are waiting to be compiled; send the request again later"
            self._refuse(request, StatusCode.RESOURCE_EXHAUSTED, text)
        return True

    def _checked(self, client_id: int, wrong: str | None) -> None:
        """On the thread that compiles: what is wrong with the guide of a request."""
        with self._ids:
            request, _ = self._checking.pop(client_id, (None, 0.0))
        if request is None or self._closed:
            # Cancelled, or refused because it took too long.
            return
        if wrong is not None:
            text = f"`guided_decoding_guide` does not compile: {wrong}"
            self._refuse(request, StatusCode.INVALID_ARGUMENT, text)
            return
        tag = next(self._next_tag)
        try:
            self._hand_over([(tag, request, self._builder.build(request, tag))])
        except Exception as error:
            # The thread that awaits raises it.
            self._failure = error

    def _refuse_slow_guides(self) -> None:
        now = time.monotonic()
        with self._ids:
            late = [request for request, until in self._checking.values() if until < now]
            for request in late:
                del self._checking[request.client_id]
        for request in late:
            self._refuse(
                request,
                StatusCode.INVALID_ARGUMENT,
                f"`guided_decoding_guide` did not compile within {PATIENCE_S:g} s; send a smaller one",
            )

    def _hand_over(self, built: list[tuple[int, Request, Any]]) -> None:
        with self._ids:
            for tag, request, _ in built:
                self._active[tag] = Active(request)
                self._tags[request.client_id] = tag
            try:
                ids = self._engine.enqueue_requests([made for _, _, made in built])
            except Exception as error:
                self._one_by_one(built, error)
                return
            for (tag, _, _), engine_id in zip(built, ids, strict=True):
                self._active[tag].engine_id = engine_id

    def _one_by_one(self, built: list[tuple[int, Request, Any]], error: Exception) -> None:
        """The batch was refused: each for itself, under a new tag, because nobody says how many of the batch
        the engine had taken. Called with the lock."""
        for tag, request, _ in built:
            active = self._active.pop(tag)
            if len(built) > 1:
                tag = next(self._next_tag)
                self._active[tag], self._tags[request.client_id] = active, tag
                try:
                    active.engine_id = self._engine.enqueue_request(self._builder.build(request, tag))
                    continue
                except Exception as own:
                    error = own
                    del self._active[tag]
            self._tags.pop(request.client_id, None)
            if not self._takes_requests():
                raise fatal("taking a request", error) from error
            text = describe(error)
            self._refuse(request, status_of(text, StatusCode.INVALID_ARGUMENT), text)

    def _takes_requests(self) -> bool:
        try:
            return bool(self._engine.can_enqueue_requests())
        except Exception:
            LOG.exception("the engine does not answer")
            return False

    def _refuse(self, request: Request, code: StatusCode, text: str) -> None:
        self._refused.append((request.client_id, code, text))

    def cancel(self, client_ids: Sequence[int]) -> None:
        """Cancels; the engine answers each with its last response."""
        with self._ids:
            unsent = [client_id for client_id in client_ids if self._checking.pop(client_id, None)]
            self._cancelled.extend(unsent)
            running = [
                active.engine_id
                for client_id in client_ids
                if (tag := self._tags.get(client_id)) is not None
                and (active := self._active.get(tag)) is not None
                and active.engine_id is not None
            ]
        for engine_id in running:
            try:
                self._engine.cancel_request(engine_id)
            except Exception as error:
                if self._closed:
                    return
                raise fatal("cancelling a request", error) from error

    def await_responses(self, timeout_s: float) -> ResponseBatch:
        """All responses that are ready; the bindings release the GIL while they wait."""
        deadline = time.monotonic() + timeout_s
        rows = Columns()
        while True:
            while self._refused:
                rows.fail(*self._refused.popleft())
            while self._cancelled:
                rows.add(self._cancelled.popleft(), (), int(FinishReason.CANCELLED), True)
            left = deadline - time.monotonic()
            wait = timedelta(0) if rows else min(_SLICE, timedelta(seconds=max(left, 0.0)))
            try:
                responses = self._engine.await_responses(timeout=wait)
            except Exception as error:
                if self._closed:
                    return rows.pack()
                raise fatal("giving responses", error) from error
            if responses:
                with self._ids:
                    for response in responses:
                        self._take(response, rows)
            if rows:
                return rows.pack()
            if self._closed:
                return rows.pack()
            if self._failure is not None:
                raise self._failure
            if self._checking:
                self._refuse_slow_guides()
            if self._active:
                self._liveness.check()
            if left <= 0:
                return rows.pack()

    def _take(self, response: Any, rows: Columns) -> None:
        """One response; called with the lock."""
        tag = response.client_id
        if tag is None:
            # An orchestrator refuses what is too large to send without saying whose it is.
            engine_id = response.request_id
            tag = next((tag for tag, active in self._active.items() if active.engine_id == engine_id), 0)
        active = self._active.get(tag)
        if active is None:
            # Of a batch that was refused as a whole; its requests live under other tags.
            return
        if response.has_error():
            text = str(response.error_msg)
            check_error(text)
            rows.fail(active.client_id, status_of(text), text)
        else:
            try:
                if not self._reader.read(response.result, active, rows):
                    return
            except Unusable as error:
                rows.fail(active.client_id, StatusCode.INTERNAL, str(error))
                self._engine.cancel_request(response.request_id)
        del self._active[tag]
        if self._tags.get(active.client_id) == tag:
            del self._tags[active.client_id]

    def stats(self) -> Sequence[IterationStats]:
        """Iterations since the last call, as the engine's own JSON."""
        if self._closed:
            return ()
        try:
            latest = self._engine.get_latest_iteration_stats()
        except Exception as error:
            # Asked by another thread than the one that ends the engine.
            if self._closed:
                return ()
            raise fatal("reporting statistics", error) from error
        return [json.loads(stats.to_json_str()) for stats in list(latest)[-_MAX_STATS:]]

    def shutdown(self) -> None:
        """Ends the engine; requests in flight get no more rows."""
        if self._closed:
            return
        self._closed = True
        if self._guides is not None:
            self._guides.shutdown()
        # The engine would end what runs first, however long that takes.
        with self._ids:
            running = [active.client_id for active in self._active.values()]
        self.cancel(running)
        self._engine.shutdown()


def create_engines(model_dir: Path, options: Options, version: str) -> EnginesExecutor:
    """Loads the engine in `model_dir` on this rank. Imports TensorRT-LLM.

    On ranks above 0 it stays inside until the leader ends, then raises `SystemExit`. Errors: `UserMistake`
    where the installed version cannot do what is asked; `EngineFailed` where the engine does not load.
    """
    encoder_path = None if options.encoder_model_path is None else Path(options.encoder_model_path)
    directory = EngineDirectory.read(model_dir, encoder_path)
    if directory.version is not None and directory.version != version:
        raise UserMistake(
            f"the engine `{model_dir}` was built by TensorRT-LLM `{directory.version}`, "
            f"and `{version}` is installed",
            "build it again with `inflight build --force`, or install the version that built it",
        )
    tokenizer_info = None
    if options.guided_decoding_backend is not None:
        tokenizer_info = read_tokenizer_info(model_dir, options.xgrammar_tokenizer_info_path)
    _check_context_options(directory, options)
    if directory.encoder is not None and options.cross_kv_cache_fraction is None:
        options = replace(options, cross_kv_cache_fraction=_CROSS_KV_CACHE_FRACTION)
    rank = ranks.check(
        directory.world_size,
        options.communication_mode == "orchestrator",
        participants=None if options.spawn_processes else options.participant_ids,
    )
    api, torch = _import(version)
    fast_logits = bool(options.speculative_decoding_fast_logits)
    extra = [("ExternalDraftTokensConfig", "fast_logits", Capability.DRAFT_TOKENS)] if fast_logits else []
    verified = verify("engines", version, lambda name: _find(api, name), extra)
    if options.spawn_processes and options.executor_worker_path is None:
        package = import_module("tensorrt_llm").__path__
        options = replace(options, executor_worker_path=ranks.find_worker(package))
    if options.cache_transceiver_backend is not None and version.startswith(("1.0", "1.1")):
        LOG.warning(
            "`generation_only` requests may fail with TensorRT-LLM %s, whose bindings construct "
            "`ContextPhaseParams` wrongly in some builds; 1.2.1 is free of that",
            version,
        )
    config = build_config(api, options, tokenizer_info, version, rank)
    encoder = directory.encoder
    try:
        if encoder is None:
            engine = api.Executor(str(directory.directory), api.ModelType.DECODER_ONLY, config)
        else:
            engine = api.Executor(
                str(encoder), str(directory.directory), api.ModelType.ENCODER_DECODER, config
            )
    except Exception as error:
        raise EngineFailed(f"the engine `{directory.directory}` did not load: {describe(error)}") from error
    if rank > 0:
        # Returns when the leader has shut down.
        engine.shutdown()
        raise SystemExit(0)
    conditions = set(directory.conditions)
    beams = min(options.max_beam_width or 1, directory.max_beam_width)
    if beams > 1:
        conditions.add("beams")
    if encoder is not None:
        conditions.add("encoder")
    grammar = find_grammar() if options.guided_decoding_backend is not None else None
    formats = grammar is not None and takes_formats(grammar)
    if options.guided_decoding_backend is not None and grammar is None:
        LOG.warning("`guided_decoding` is off: without `xgrammar` one bad guide would fail every request")
    for condition, given in (
        ("guided", grammar),
        ("lookahead", options.decoding_mode == "lookahead"),
        ("gather_generation_logits", options.gather_generation_logits),
        ("cache_transceiver", options.cache_transceiver_backend),
    ):
        if given:
            conditions.add(condition)
    max_num_tokens = min(options.max_num_tokens or directory.max_num_tokens, directory.max_num_tokens)
    max_input_len = directory.max_input_len
    if encoder is None and not options.enable_chunked_context:
        # Without chunks a prompt must fit one iteration.
        max_input_len = min(max_input_len, max_num_tokens)
    info = ModelInfo(
        executor="tensorrt_llm",
        vocab_size=directory.vocab_size,
        max_seq_len=directory.max_seq_len,
        max_input_len=max_input_len,
        max_batch_size=min(options.max_batch_size or directory.max_batch_size, directory.max_batch_size),
        max_num_tokens=max_num_tokens,
        max_beam_width=beams,
        tokens_per_block=directory.tokens_per_block,
        capabilities=capabilities("engines", frozenset(conditions), frozenset(verified.off))
        + ((FORMATS,) if formats else ()),
    )
    builder = RequestBuilder(
        api,
        torch,
        directory.vocab_size,
        encoder_decoder=encoder is not None,
        decoder_start=directory.decoder_start,
        fast_logits=fast_logits,
        reuses_blocks=_reuses_blocks(directory, options),
        takes_formats=formats,
    )
    reader = ResultReader(api.FinishReason, directory.vocab_size)
    guides = None if grammar is None else GuideCheck(grammar)
    return EnginesExecutor(engine, builder, reader, info, guides)


def _check_context_options(directory: EngineDirectory, options: Options) -> None:
    """Refuses what needs paged context FMHA of an engine without it. TensorRT-LLM does not load such an
    engine with chunks, and turns block reuse off without a word."""
    if directory.paged_context_fmha is not False:
        return
    for option, given in (
        ("enable_chunked_context", options.enable_chunked_context),
        ("enable_kv_cache_reuse", options.enable_kv_cache_reuse),
    ):
        if given:
            raise UserMistake(
                f"`{option}` is `true`, and the engine was built without paged context FMHA, which it needs",
                "leave it out, or build the engine without an int8 KV cache and without "
                "`--use-paged-context-fmha disable`; an fp8 KV cache needs fp8 weights",
            )


def _reuses_blocks(directory: EngineDirectory, options: Options) -> bool:
    """Whether prompts that start alike share blocks of the KV cache; TensorRT-LLM's default where it can."""
    possible = (
        directory.paged_context_fmha is not False and "gather_context_logits" not in directory.conditions
    )
    return possible and options.enable_kv_cache_reuse is not False


def _import(version: str) -> tuple[Any, Any]:
    try:
        import torch
        from tensorrt_llm.bindings import executor as api
    except (ImportError, OSError) as error:
        raise UserMistake(
            f"TensorRT-LLM `{version}` is installed but cannot be imported: {describe(error)}",
            "check the NVIDIA driver, CUDA and `tensorrt` packages that this version needs",
        ) from error
    return api, torch


def _find(api: Any, name: str) -> Any:
    found = api
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
