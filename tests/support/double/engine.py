"""The double's engine: a thread that makes one token per sequence and iteration, in the order and
timing of TensorRT-LLM's. A sequence counts up from its prompt's last token.

Prompts that begin with a number below make the engine misbehave.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np

#: The temperature above which tokens are sampled; below, the most probable is always taken.
WARM = 1.0
#: First prompt tokens: an error of this request; a broken engine; no answer ever; a refusal at enqueue; the
#: death of a rank, after which the others answer nothing and take nothing; an error that all that run get,
#: after which the engine says that it lives.
ERROR, CRASH, SILENCE, REFUSE, DEATH, FAULT = 90, 91, 92, 93, 94, 95
FAULT_TEXT = (
    "Encountered an error in forwardAsync function: [TensorRT-LLM][ERROR] CUDA runtime error in "
    "cudaEventSynchronize(get()): an illegal memory access was encountered (cudaEvent.h:66)\n1 0x7f4a0a"
)
VOCAB = 96
#: Logits are wider than the vocabulary, as where several ranks share it.
WIDTH = VOCAB + 2
STEP_S = 0.002
#: Requests that run at once; further ones are queued.
SLOTS = 8
#: Prompt tokens that the cache has of every request, where blocks are reused.
CACHED = 2

#: Filled by `connect`.
API: Any = None
MODULES: dict[str, Any] = {}
#: Requests that engines got, and engines, newest last; for tests in the same process.
REQUESTS: list[Any] = []
ENGINES: list[Any] = []


def connect(modules: dict[str, Any]) -> None:
    global API
    API = modules["tensorrt_llm.bindings.executor"]
    MODULES.clear()
    MODULES.update(modules)
    REQUESTS.clear()
    ENGINES.clear()


class Sequence:
    """One sequence of a request."""

    def __init__(self, job: Job, index: int) -> None:
        self.job, self.index = job, index
        self.cancelled = False
        self.tokens: list[int] = []
        self.unsent: list[int] = []
        self.reason = ""

    def step(self) -> int | None:
        """The next token; None where the sequence ends without one."""
        previous = self.tokens[-1] if self.tokens else self.job.prompt[-1] + self.index
        token = self.job.choose((previous + 1) % VOCAB, len(self.tokens))
        if token is not None and self.job.processor is not None:
            token = self.process(token)
        if token is None or (token == self.job.end_id and len(self.tokens) >= self.job.min_tokens):
            self.reason = "END_ID"
            return None
        self.tokens.append(token)
        if any(self.tokens[-len(word) :] == word for word in self.job.stop_words):
            self.reason = "STOP_WORDS"
        elif len(self.tokens) >= self.job.max_tokens:
            self.reason = "LENGTH"
        return token

    def process(self, token: int) -> int:
        """The token that a logits processor leaves where `token` would be next.

        It is called for every chunk of the prompt, whose logits go unused, and under the overlap scheduler it
        does not see the token before.
        """
        job = self.job
        assert 4 <= len(inspect.signature(job.processor).parameters) <= 5
        shown = self.tokens[: len(self.tokens) - job.lag]
        best = token
        for _ in range(1 if self.tokens else job.chunks):
            row = MODULES["torch"].Tensor(logits([token])[None], "float32")
            # A number for each sequence, which all ranks have.
            job.processor(100 * job.identity + self.index, row, [[*job.prompt, *shown]], None, job.client_id)
            best = int(np.argmax(row.array[0, 0, :VOCAB]))
        return best


class Job:
    """A request in the engine."""

    def __init__(
        self, identity: int, prompt: list[int], max_tokens: int, streaming: bool, **more: Any
    ) -> None:
        self.identity, self.prompt, self.max_tokens, self.streaming = identity, prompt, max_tokens, streaming
        self.end_id, self.stop_words = more.get("end_id"), more.get("stop_words") or []
        self.client_id, self.output = more.get("client_id"), more.get("output") or {}
        self.beams = more.get("beams", 1)
        self.context_only = more.get("context_only", False)
        #: Sampled tokens are not among the most probable ones.
        self.hot = more.get("hot", False)
        self.cached = more.get("cached", 0)
        #: Whether logits of a stream are read after the next iteration.
        self.is_late = more.get("is_late", False)
        #: Iterations between two responses of a stream.
        self.interval = more.get("interval", 1)
        #: Text that xgrammar does not take, found only once the request runs.
        self.bad_guide = more.get("bad_guide", "")
        #: Whether positions have several parts; None: the model's do not.
        self.has_mrope = more.get("has_mrope")
        #: Tokens that are never chosen; those that a bias chooses each time; the earliest end.
        self.banned = {word[0] for word in more.get("bad_words") or [] if len(word) == 1}
        self.biased: int | None = more.get("biased")
        self.min_tokens: int = more.get("min_tokens") or 0
        #: All that a guide leaves.
        self.forced: list[int] | None = more.get("forced")
        #: Samples where the temperature is high.
        self.random: random.Random | None = more.get("random")
        #: Edits logits; how many tokens it does not see yet; the chunks of the prompt.
        self.processor: Any = more.get("processor")
        self.lag: int = more.get("lag", 0)
        self.chunks: int = more.get("chunks", 1)
        #: What the request alone fails with, once it runs.
        self.own_error: str = more.get("own_error", "")
        self.sequences = [Sequence(self, index) for index in range(more.get("sequences", 1))]

    def choose(self, token: int, place: int) -> int | None:
        """The token at a place of an answer where `token` would be next; None: nothing may follow."""
        if self.forced is not None:
            return self.forced[place] if place < len(self.forced) else None
        if self.biased is not None:
            return self.biased
        if self.random is not None:
            token = (token + self.random.randrange(8)) % VOCAB
        while token in self.banned:
            token = (token + 1) % VOCAB
        return token

    def cancel(self) -> None:
        for sequence in self.sequences:
            sequence.cancelled = True

    @property
    def cancelled(self) -> bool:
        return all(sequence.cancelled for sequence in self.sequences)


class Engine:
    """The engine's thread: `ready` gets lists of responses, one list an iteration."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.changed = threading.Condition()
        self.ready: list[Any] = []
        self.broken = False
        self.stopped = False
        self.next_id = 1
        self.iterations = 0
        self.stats: list[Any] = []
        self.deliver: Any = None
        #: Events of the cache, at most so many; none where it reports none.
        self.events: list[dict[str, Any]] = []
        self.max_events = self.event_id = 0
        #: Of requests whose seed is not applied, as TorchSampler's generator was.
        self.random = random.Random(42)
        threading.Thread(target=self.run, daemon=True).start()

    def add(self, job: Job) -> None:
        with self.changed:
            self.jobs[job.identity] = job
            self.changed.notify_all()

    def cancel(self, identity: int) -> None:
        """As the bindings: the last response comes once the request runs."""
        with self.changed:
            if identity in self.jobs:
                self.jobs[identity].cancel()

    def abort(self, identity: int) -> None:
        """As the PyTorch runtime: a queued request goes without a response, and of several sequences only
        the first is cancelled."""
        with self.changed:
            if identity in list(self.jobs)[:SLOTS]:
                self.jobs[identity].sequences[0].cancelled = True
            else:
                self.jobs.pop(identity, None)
            self.changed.notify_all()

    def finish(self) -> None:
        """Waits until nothing runs, and stops."""
        with self.changed:
            self.changed.wait_for(lambda: not self.jobs or self.broken or self.stopped)
        self.stop()

    def die(self) -> None:
        """A worker process ends: what it had is never answered."""
        self.stop()

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.jobs or self.stopped or self.broken)
                if self.stopped or self.broken:
                    return
                responses: list[Any] = []
                for job in list(self.jobs.values())[:SLOTS]:
                    # One that fails may take the others with it.
                    if job.identity in self.jobs:
                        responses += self.step(job)
                self.iterations += 1
                self.stats.append(self.describe())
                if self.deliver is None:
                    self.ready.extend(responses)
                self.changed.notify_all()
            if self.deliver is not None and responses:
                self.deliver(responses)
            threading.Event().wait(STEP_S)

    def step(self, job: Job) -> Iterator[Any]:
        if job.prompt[0] == SILENCE and not job.cancelled:
            return
        if job.prompt[0] == DEATH:
            self.stopped = True
            self.changed.notify_all()
            return
        if job.prompt[0] == CRASH:
            self.broken = True
            self.changed.notify_all()
            return
        error = self.error_of(job)
        if error:
            is_own = job.own_error or job.prompt[0] == ERROR
            for failed in [job] if is_own else list(self.jobs.values()):
                del self.jobs[failed.identity]
                yield API.Response(request_id=failed.identity, error_msg=error, client_id=failed.client_id)
            return
        running = [sequence for sequence in job.sequences if not sequence.reason]
        for place, sequence in enumerate(running):
            token = None if sequence.cancelled else sequence.step()
            if job.context_only and not sequence.cancelled:
                sequence.reason = "NOT_FINISHED"
            if sequence.cancelled:
                sequence.reason = "CANCELLED"
            if token is not None:
                sequence.unsent.append(token)
            if job.streaming:
                if not sequence.reason and len(sequence.tokens) > 1 and self.iterations % job.interval:
                    continue
                tokens, sequence.unsent = sequence.unsent, []
            elif sequence.reason:
                tokens = sequence.tokens
            else:
                continue
            final = place == len(running) - 1 and all(one.reason for one in job.sequences)
            if final:
                del self.jobs[job.identity]
                self.store(job)
            result = API.Response(
                request_id=job.identity,
                result=self.result(job, sequence, tokens, final),
                client_id=job.client_id,
            )
            yield result

    def error_of(self, job: Job) -> str:
        """What an iteration with the job fails with; only an `ERROR` is the job's own."""
        if job.own_error:
            return job.own_error
        if job.prompt[0] == ERROR:
            return "LoRA task 7 not found in cache."
        if job.prompt[0] == FAULT:
            return FAULT_TEXT
        if job.bad_guide:
            return f"Encountered an error in forwardAsync function: {job.bad_guide}"
        kinds = {one.has_mrope for one in list(self.jobs.values())[:SLOTS]}
        if kinds == {True, False}:
            # Fewer positions than tokens.
            return "The size of tensor a (7) must match the size of tensor b (12) at dimension 2"
        return ""

    def result(self, job: Job, sequence: Sequence, tokens: list[int], final: bool) -> Any:
        result = API.Result()
        result.is_final = final
        result.is_sequence_final = bool(sequence.reason)
        result.sequence_index = sequence.index
        whole = tokens if job.output.get("exclude_input_from_output") else [*job.prompt, *tokens]
        result.output_token_ids = [list(whole) for _ in range(job.beams)]
        reason = getattr(API.FinishReason, sequence.reason or "NOT_FINISHED")
        result.finish_reasons = [reason] * job.beams
        if job.output.get("return_log_probs"):
            # All so far, as the engines do.
            result.log_probs = [[-token / 64 for token in sequence.tokens]] * job.beams
            result.cum_log_probs = [sum(-token / 64 for token in sequence.tokens)] * job.beams
        tensor = MODULES["torch"].Tensor
        if job.output.get("return_generation_logits") and tokens:
            # Room for all that might have come, where the answer comes at once. In a stream they are read
            # when the message is written, by when the next token's may be there.
            room = len(tokens) if job.streaming else job.max_tokens
            late = [(token + 1) % VOCAB for token in tokens] if job.streaming and job.is_late else tokens
            result.generation_logits = tensor(
                logits(late, room, job.hot)[None].repeat(job.beams, axis=0), "float32"
            )
        if job.output.get("return_context_logits"):
            shifted = [*job.prompt[1:], (job.prompt[-1] + 1) % VOCAB]
            # What the cache has is not computed.
            result.context_logits = tensor(logits(shifted)[job.cached :], "float32")
        if job.output.get("return_perf_metrics") and final:
            result.request_perf_metrics = perf_metrics()
        if job.context_only:
            result.context_phase_params = API.ContextPhaseParams(
                [tokens[0]], job.identity, b"\x00state", None
            )
        return result

    def store(self, job: Job) -> None:
        """Notes that the cache keeps the prompt of a request that ended."""
        if not self.max_events:
            return
        tokens = [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in job.prompt]
        block = {"type": "stored_block", "block_hash": hash(tuple(job.prompt)), "tokens": tokens}
        data = {"type": "stored", "parent_hash": None, "blocks": [block | {"cache_level": 0, "priority": 35}]}
        self.events.append({"event_id": self.event_id, "data": data, "window_size": 128})
        self.event_id += 1
        # The oldest make room.
        del self.events[: -self.max_events]

    def describe(self) -> Any:
        stats = API.IterationStats()
        stats.iter = self.iterations
        stats.num_active_requests = len(self.jobs)
        stats.max_num_active_requests = 8
        return stats


def logits(tokens: list[int], room: int = 0, hot: bool = False) -> Any:
    """Rows whose best token is the given one, the next best the one after it; then empty ones. Hot: the best
    is the third after the given one, which is nowhere near."""
    rows = np.zeros((max(len(tokens), room), WIDTH), dtype=np.float32)
    rows[:, VOCAB:] = 9.0
    for row, sampled in enumerate(tokens):
        token = (sampled + 3) % VOCAB if hot else sampled
        rows[row, token] = 4.0
        rows[row, (token + 1) % VOCAB] = 2.0
    return rows


def largest(bias: Any) -> int | None:
    """The token that a dense bias chooses whatever the logits are; None: it is not that large."""
    if bias is None:
        return None
    token = int(np.argmax(bias.array))
    return token if bias.array[token] > 10 else None


def drawing(temperature: float | None, seed: int | None, shared: random.Random) -> random.Random | None:
    """What draws tokens: of the request's seed, or `shared` by all requests without one."""
    if temperature is None or temperature <= WARM:
        return None
    return shared if seed is None else random.Random(seed)


def perf_metrics() -> Any:
    metrics = API.RequestPerfMetrics()
    timing, cache = API.TimingMetrics(), API.KvCacheMetrics()
    for place, name in enumerate(
        ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time")
    ):
        setattr(timing, name, timedelta(microseconds=place + 1))
    cache.num_total_allocated_blocks, cache.num_new_allocated_blocks, cache.num_reused_blocks = 5, 4, 1
    metrics.timing_metrics, metrics.kv_cache_metrics = timing, cache
    return metrics


def record(request: Any) -> None:
    """Keeps a request, and writes it where a test of another process reads it."""
    REQUESTS.append(request)
    held = request.items() if isinstance(request, dict) else request.dump().items()
    write("DOUBLE_REQUESTS", {name: getattr(value, "dump", lambda v=value: v)() for name, value in held})


def record_engine(engine: Any) -> None:
    """The same for an engine and what it was made with."""
    ENGINES.append(engine)
    write("DOUBLE_ENGINES", engine.dump())


def write(variable: str, values: dict[str, Any]) -> None:
    """Appends a line of JSON to the file that the environment names."""
    log = os.environ.get(variable)
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps(values, default=str) + "\n")
