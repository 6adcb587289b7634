"""An executor with nothing behind it: every active sequence gains one token per await, from columns that
are prepared once per change of the active set.

For measuring the seam between Rust and Python: what it costs is what the crossing costs. Owns no model,
no timing model (that is the simulated executor) and no sampling: a request runs to its max_tokens.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Sequence

from inflight.executors.base import FinishReason, IterationStats, ModelInfo, Request, ResponseBatch
from inflight.options import Option

OPTIONS = {"step_us": Option("step_us", "float", "Microseconds of every iteration", default=0.0, minimum=0)}

#: Beyond any stream count that a benchmark opens, so that nothing queues.
MAX_BATCH_SIZE = 65_536
#: Long enough for any run, short enough for offsets in 32 bits.
MAX_SEQ_LEN = 1 << 20
#: Single printable ASCII letters have low ids in byte-level vocabularies.
FIRST_TOKEN, TOKENS = 65, 26

NO_ROWS = ResponseBatch()


class _Active:
    """A request from enqueue to its last row."""

    __slots__ = ("last_step", "request", "started")

    def __init__(self, request: Request, step: int) -> None:
        self.request = request
        self.started = step
        self.last_step = step + max(1, request.max_tokens)


class ScriptedExecutor:
    """Implements `inflight.executors.base.Executor`."""

    def __init__(self, step_us: float = 0.0, vocab_size: int = 256) -> None:
        self._step_s = step_us / 1e6
        self._vocab_size = vocab_size
        self._changed = threading.Condition()
        self._step = 0
        self._due = 0.0
        self._active: dict[int, _Active] = {}
        #: Step -> client ids whose last row is due then.
        self._ending: dict[int, list[int]] = {}
        self._cancelled: list[int] = []
        self._completed = 0
        self._reported = -1
        self._closed = False
        #: What the last step without an ending sent; valid until the active set changes.
        self._prepared: ResponseBatch | None = None

    def info(self) -> ModelInfo:
        """No capability beyond several sequences and minimum lengths, which cost nothing to promise."""
        # Here, so that a command's help needs no extension module.
        from inflight._native import Capability

        return ModelInfo(
            executor="scripted",
            vocab_size=self._vocab_size,
            max_seq_len=MAX_SEQ_LEN,
            max_input_len=MAX_SEQ_LEN - 1,
            max_batch_size=MAX_BATCH_SIZE,
            max_num_tokens=MAX_SEQ_LEN,
            max_beam_width=1,
            tokens_per_block=32,
            capabilities=(Capability.NUM_RETURN_SEQUENCES, Capability.MIN_TOKENS),
        )

    def enqueue(self, requests: Sequence[Request]) -> None:
        """Starts the requests with the next step."""
        with self._changed:
            for request in requests:
                active = _Active(request, self._step)
                self._active[request.client_id] = active
                self._ending.setdefault(active.last_step, []).append(request.client_id)
            self._prepared = None
            self._changed.notify_all()

    def cancel(self, client_ids: Sequence[int]) -> None:
        """Ends the requests with the next step."""
        with self._changed:
            self._cancelled.extend(client_ids)
            self._changed.notify_all()

    def await_responses(self, timeout_s: float) -> ResponseBatch:
        """One step's rows, when it is due."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                if self._active or self._cancelled:
                    if now >= self._due:
                        return self._advance(now)
                    wake = min(self._due, deadline)
                else:
                    wake = deadline
                if now >= deadline:
                    break
                self._changed.wait(wake - now)
        return NO_ROWS

    def stats(self) -> Sequence[IterationStats]:
        """The latest step, unless it was reported already: thousands of equal ones are of no use."""
        with self._changed:
            if self._reported == self._step:
                return ()
            self._reported = self._step
            active = len(self._active)
            return (
                {
                    "iter": self._step,
                    "numActiveRequests": active,
                    "numCompletedRequests": self._completed,
                    "maxNumActiveRequests": MAX_BATCH_SIZE,
                },
            )

    def shutdown(self) -> None:
        """Wakes the waiting threads; no rows follow."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _advance(self, now: float) -> ResponseBatch:
        # A step that is a whole pace late is not made up for: bunched steps would measure nothing.
        due = self._due + self._step_s
        self._due = due if due > now else now + self._step_s
        self._step += 1
        ending = self._ending.pop(self._step, [])
        cancelled = [client_id for client_id in self._cancelled if client_id in self._active]
        self._cancelled.clear()
        if not ending and not cancelled:
            if self._prepared is None:
                self._prepared = self._rows({})
            return self._prepared
        ends = dict.fromkeys(cancelled, FinishReason.CANCELLED)
        ends |= {client_id: FinishReason.LENGTH for client_id in ending if client_id in self._active}
        batch = self._rows(ends)
        for client_id in ends:
            gone = self._active.pop(client_id)
            bucket = self._ending.get(gone.last_step)
            if bucket is not None:
                bucket.remove(client_id)
        self._completed += len(ends)
        self._prepared = None
        return batch

    def _rows(self, ends: dict[int, FinishReason]) -> ResponseBatch:
        """The columns of this step: one token per streaming sequence, all tokens of an ending one else."""
        client_ids, indices, offsets = array("Q"), array("i"), array("I", [0])
        tokens = array("i")
        reasons, finals = bytearray(), bytearray()
        token = (FIRST_TOKEN + self._step % TOKENS) % self._vocab_size
        for client_id, active in self._active.items():
            reason = ends.get(client_id, FinishReason.NOT_FINISHED)
            request = active.request
            if reason is FinishReason.CANCELLED:
                count = 0
            elif request.streaming:
                count = 1
            elif reason:
                count = request.max_tokens
            else:
                continue
            sequences = request.sampling_config.num_return_sequences
            for index in range(sequences):
                client_ids.append(client_id)
                indices.append(index)
                tokens.extend([token] * count)
                offsets.append(len(tokens))
                reasons.append(reason)
                finals.append(bool(reason) and index == sequences - 1)
        if not client_ids:
            return NO_ROWS
        return ResponseBatch(
            client_ids=client_ids.tobytes(),
            sequence_index=indices.tobytes(),
            token_offsets=offsets.tobytes(),
            token_ids=tokens.tobytes(),
            finish_reasons=bytes(reasons),
            finals=bytes(finals),
        )
