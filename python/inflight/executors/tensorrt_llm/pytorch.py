"""Checkpoints: the executor protocol over `tensorrt_llm.LLM`, the PyTorch runtime (TensorRT-LLM from 1.0 on).

Owns the LLM object, the event loop on which its results are read, and the tap: where the installed version
runs its worker in this process, plain requests are read by whole batches and never touch
the loop. What a request becomes is `pytorch_requests`, what a result means is `pytorch_results`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.executors.base import IterationStats, ModelInfo, Request, ResponseBatch, StatusCode
from inflight.executors.columns import Columns
from inflight.executors.tensorrt_llm import pytorch_config, ranks
from inflight.executors.tensorrt_llm.convert import Refused
from inflight.executors.tensorrt_llm.health import EngineFailed, Liveness, check_error, describe, fatal
from inflight.executors.tensorrt_llm.options import Options
from inflight.executors.tensorrt_llm.promises import capabilities
from inflight.executors.tensorrt_llm.pytorch_requests import SamplingBuilder
from inflight.executors.tensorrt_llm.pytorch_results import Progress, opened
from inflight.executors.tensorrt_llm.results import Active, ResultReader, status_of
from inflight.executors.tensorrt_llm.verify import verify

LOG = logging.getLogger("inflight.tensorrt_llm")

#: Makes a single-GPU LLM run its worker in this process, where batches can be tapped.
SINGLE_PROCESS = "TLLM_WORKER_USE_SINGLE_PROCESS"
#: Without it several sequences of a greedy request are a ValueError.
N_GREEDY = "TLLM_ALLOW_N_GREEDY_DECODING"

#: A response that never comes must not hold `stats`.
_STATS_TIMEOUT_S = 0.05
_SLICE_S = 0.25
_SHUTDOWN_TIMEOUT_S = 10.0
#: Where the class that gets whole batches is, by version: 1.0, and from 1.1 on.
_TAP_MODULES = ("tensorrt_llm.executor.worker", "tensorrt_llm.executor.base_worker")
#: What is read of a tapped result.
_TAPPED = ("is_final", "output_token_ids", "finish_reasons", "sequence_index", "is_sequence_final")


class PyTorchExecutor:
    """Implements `inflight.executors.base.Executor`; made by `create_pytorch`."""

    def __init__(
        self,
        llm: Any,
        builder: SamplingBuilder,
        reader: ResultReader | None,
        deserialize: Callable[[bytes], Any] | None,
        info: ModelInfo,
    ) -> None:
        self._llm = llm
        self._deserialize = deserialize
        self._builder = builder
        self._info = info
        #: Reads tapped responses; None: no tap.
        self._reader = reader
        #: The tap has seen a batch, so that this process is the one that has them.
        self._tap_is_live = False
        self._ready = threading.Condition()
        self._rows = Columns()
        self._failure: EngineFailed | None = None
        #: Client id -> result, read on the loop or by the tap.
        self._results: dict[int, Any] = {}
        #: Guards `_tapped`: a response may come before `generate_async` has returned its id.
        self._ids = threading.Lock()
        self._tapped: dict[int, Active] = {}
        self._submitted = False
        self._closed = False
        self._liveness = Liveness(llm._check_health)
        self._tasks: set[asyncio.Task[None]] = set()
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
        looped: list[tuple[Active, dict[str, Any]]] = []
        for request in requests:
            active = Active(request)
            try:
                call = self._builder.build(request)
            except Refused as error:
                self._fail(active, StatusCode.INVALID_ARGUMENT, str(error))
                continue
            except (TypeError, ValueError, RuntimeError) as error:
                self._fail(active, StatusCode.INVALID_ARGUMENT, describe(error))
                continue
            if self._tap_is_live and not active.rich and active.beams == 1:
                self._submit_tapped(active, call)
            else:
                looped.append((active, call))
        if looped:
            self._loop.call_soon_threadsafe(self._submit, looped)

    def _submit_tapped(self, active: Active, call: dict[str, Any]) -> None:
        with self._ids:
            result = self._generate(active, call)
            if result is not None:
                self._results[active.client_id] = result
                self._tapped[result.request_id] = active

    def _submit(self, looped: list[tuple[Active, dict[str, Any]]]) -> None:
        """On the loop, so that results wake it."""
        for active, call in looped:
            result = self._generate(active, call)
            if result is not None:
                self._results[active.client_id] = result
                task = self._loop.create_task(self._read(active, result))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _generate(self, active: Active, call: dict[str, Any]) -> Any:
        """The result object; None where this request was refused."""
        try:
            result = self._llm.generate_async(**call)
        except Exception as error:
            if isinstance(error, ValueError) or self._is_healthy():
                text = describe(error)
                self._fail(active, status_of(text, StatusCode.INVALID_ARGUMENT), text)
            else:
                self._break(fatal("taking a request", error))
            return None
        self._submitted = True
        return result

    def _is_healthy(self) -> bool:
        try:
            return bool(self._llm._check_health())
        except Exception:
            LOG.exception("the LLM does not answer")
            return False

    async def _read(self, active: Active, result: Any) -> None:
        progress = Progress(active)
        try:
            async for _ in result:
                with self._ready:
                    progress.read(result, self._rows)
                    self._ready.notify_all()
            with self._ready:
                progress.cancel(self._rows)
                self._ready.notify_all()
        except Exception as error:
            if type(error).__name__ == "RequestError":
                self._fail_or_break(active, str(error))
            else:
                self._break(fatal("giving a result", error))
        finally:
            self._results.pop(active.client_id, None)

    def on_batch(self, responses: Sequence[Any]) -> None:
        """The tap: a whole iteration's responses, on TensorRT-LLM's own thread."""
        if not self._tap_is_live:
            self._try_tap(responses)
        reader = self._reader
        if reader is None or (not self._tapped and not self._ids.locked()):
            return
        try:
            with self._ids:
                mine = [
                    (response, active)
                    for response in responses
                    if (active := self._tapped.get(response.client_id)) is not None
                ]
            with self._ready:
                for response, active in mine:
                    if response.has_error():
                        text = str(response.error_msg)
                        check_error(text)
                        self._rows.fail(active.client_id, status_of(text), text)
                    elif not self._read_tapped(reader, response.result, active):
                        continue
                    self._tapped.pop(response.client_id, None)
                    self._results.pop(active.client_id, None)
                if mine:
                    self._ready.notify_all()
        except EngineFailed as failure:
            self._break(failure)
        except Exception as error:
            self._break(fatal("giving a batch", error))

    def _try_tap(self, responses: Sequence[Any]) -> None:
        """Goes live with the first batch whose results can be read; nobody waits for the tap before."""
        whole = [response for response in responses if not response.has_error()]
        if self._reader is None or not whole:
            return
        try:
            result = opened(whole[0].result, self._deserialize)
            for name in _TAPPED:
                getattr(result, name)
            self._tap_is_live = True
        except Exception as error:
            self._reader = None
            LOG.warning(
                "batches of this TensorRT-LLM cannot be read (%s); results are read one by one",
                describe(error),
            )

    def _read_tapped(self, reader: ResultReader, result: Any, active: Active) -> bool:
        """A tapped result's rows; True once the request is over. Called with `_ready`."""
        row = len(self._rows)
        over = reader.read(opened(result, self._deserialize), active, self._rows)
        if not active.told and len(self._rows) > row:
            active.told = True
            cached = getattr(result, "cached_tokens", None)
            if cached:
                self._rows.cached(row, int(cached))
        return over

    def cancel(self, client_ids: Sequence[int]) -> None:
        """Cancels; behind the submissions that are on their way to the loop."""
        self._loop.call_soon_threadsafe(self._abort, list(client_ids))

    def _abort(self, client_ids: list[int]) -> None:
        for client_id in client_ids:
            result = self._results.get(client_id)
            if result is not None:
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
            if self._results:
                self._liveness.check()
            if left <= 0:
                return rows.pack()

    def stats(self) -> Sequence[IterationStats]:
        """Iterations since the last call; there are none before the first request."""
        if not self._submitted or self._closed:
            return ()
        try:
            taken: Sequence[IterationStats] = self._llm.get_stats(timeout=_STATS_TIMEOUT_S)
        except Exception as error:
            # Asked by another thread than the one that ends the LLM.
            if self._closed:
                return ()
            raise fatal("telling statistics", error) from error
        return taken

    def shutdown(self) -> None:
        """Ends the LLM and the loop; requests in flight get no more rows."""
        with self._ready:
            if self._closed:
                return
            self._closed = True
            self._ready.notify_all()
        self._llm.shutdown()
        self._loop.call_soon_threadsafe(self._stop_loop)
        self._thread.join(_SHUTDOWN_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _stop_loop(self) -> None:
        for task in self._tasks:
            task.cancel()
        # One more turn, in which the tasks end.
        self._loop.call_soon(self._loop.stop)

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


def create_pytorch(model_dir: Path, options: Options, version: str) -> PyTorchExecutor:
    """Loads a Hugging Face checkpoint. Imports TensorRT-LLM.

    Errors: `UserMistake` where the installed version cannot do what is asked; `EngineFailed` where the
    checkpoint does not load.
    """
    ranks.require_leader()
    arguments = pytorch_config.llm_arguments(model_dir, options)
    sizes = pytorch_config.Sizes.read(model_dir, arguments)
    adapters = pytorch_config.find_adapters(options, arguments)
    own_sampling = not pytorch_config.samples_inside_the_model(arguments)
    wants_tap = pytorch_config.runs_in_one_process(arguments) and options.batch_tap != "off"
    # Before the import: TensorRT-LLM reads both when it is loaded or starts its worker.
    os.environ.setdefault(N_GREEDY, "1")
    if wants_tap:
        os.environ.setdefault(SINGLE_PROCESS, "1")
    find, bindings, torch = _import(version)
    verified = verify("pytorch", version, find)
    pytorch_config.check_arguments(arguments, find, version)
    tap = _tap_point(bindings) if wants_tap else None
    try:
        pytorch_config.make_speculation(arguments, find)
        llm = find("LLM")(**arguments)
    except (ValueError, TypeError) as error:
        raise UserMistake(
            f"TensorRT-LLM `{version}` refuses `{model_dir}`: {describe(error)}",
            "change the options, or serve a checkpoint that its PyTorch runtime supports",
        ) from error
    except Exception as error:
        raise EngineFailed(f"the checkpoint `{model_dir}` did not load: {describe(error)}") from error
    conditions = {
        condition
        for condition, given in (
            ("beams", sizes.max_beam_width > 1),
            ("guided", arguments.get("guided_decoding_backend")),
            ("adapters", adapters is not None),
            ("own_sampling", own_sampling),
            ("cache_transceiver", arguments.get("cache_transceiver_config")),
            ("trtllm_sampler", arguments.get("sampler_type") == "TRTLLMSampler"),
        )
        if given
    }
    info = ModelInfo(
        executor="tensorrt_llm",
        vocab_size=sizes.vocab_size,
        max_seq_len=sizes.max_seq_len,
        max_input_len=sizes.max_input_len,
        max_batch_size=sizes.max_batch_size,
        max_num_tokens=sizes.max_num_tokens,
        max_beam_width=sizes.max_beam_width,
        tokens_per_block=sizes.tokens_per_block,
        capabilities=capabilities("pytorch", frozenset(conditions), frozenset(verified.off)),
    )
    builder = SamplingBuilder(find, bindings, torch, sizes.vocab_size, adapters)
    reader = None if tap is None else ResultReader(bindings.FinishReason, sizes.vocab_size)
    deserialize = getattr(bindings, "deserialize_result", None)
    executor = PyTorchExecutor(llm, builder, reader, deserialize, info)
    if tap is not None:
        _install_tap(tap, executor)
    return executor


def _import(version: str) -> tuple[Any, Any, Any]:
    """A finder of classes by their names in the table, the bindings' data classes, torch."""
    try:
        torch = import_module("torch")
        package = import_module("tensorrt_llm")
        llmapi = import_module("tensorrt_llm.llmapi")
        bindings = import_module("tensorrt_llm.bindings.executor")
    except (ImportError, OSError) as error:
        raise UserMistake(
            f"TensorRT-LLM `{version}` is installed but cannot be imported: {describe(error)}",
            "check the NVIDIA driver, CUDA and `torch` packages that this version needs",
        ) from error

    def find(name: str) -> Any:
        if name == "generate_async":
            return getattr(getattr(package, "LLM", None), name, None)
        for module in (package, llmapi, bindings):
            found: Any = module
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is not None:
                return found
        return None

    return find, bindings, torch


def _tap_point(bindings: Any) -> Any:
    """The class whose `responses_handler` gets whole batches; None where this version has it not, or not
    what reads its results."""
    for name in _TAP_MODULES:
        try:
            helper = import_module(name).AwaitResponseHelper
        except (ImportError, AttributeError):
            continue
        if callable(getattr(helper, "responses_handler", None)) and hasattr(bindings, "deserialize_result"):
            return helper
    LOG.info("this TensorRT-LLM has no batches to tap; results are read one by one")
    return None


def _install_tap(helper: Any, executor: PyTorchExecutor) -> None:
    handle = helper.responses_handler

    def responses_handler(self: Any, responses: Any) -> Any:
        executor.on_batch(responses)
        # Its own bookkeeping, and the results that are read one by one.
        return handle(self, responses)

    helper.responses_handler = responses_handler
