"""Sends planned requests when they are due and records each. Owns threads and clocks; knows nothing of
datasets and reports.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inflight.bench.workload import Planned
from inflight.client.generation import prompts, request, tensors
from inflight.client.kserve import Connection, Input
from inflight.errors import InflightError


@dataclass(frozen=True)
class Measured:
    """One request; times are seconds after the start of the run."""

    #: When it was due; without a rate, when it was sent.
    due_s: float
    sent_s: float
    #: Of the first tokens; `None`: none came, or it did not stream.
    first_s: float | None
    end_s: float
    input_tokens: int
    output_tokens: int
    error: str | None = None

    @property
    def latency_s(self) -> float:
        """From when it was due: waiting in this client counts too."""
        return self.end_s - self.due_s

    @property
    def first_token_s(self) -> float | None:
        """Likewise."""
        return None if self.first_s is None else self.first_s - self.due_s

    @property
    def per_token_s(self) -> float | None:
        """The time between tokens, on average."""
        if self.first_s is None or self.output_tokens < 2:
            return None
        return (self.end_s - self.first_s) / (self.output_tokens - 1)


@dataclass(frozen=True)
class Sender:
    """How a request is sent."""

    connect: Callable[[], Connection]
    model: str
    streaming: bool
    #: -1: no token ends an answer early.
    end_id: int | None = -1


def run(
    planned: Sequence[Planned],
    sender: Sender,
    concurrency: int,
    progress: Callable[[Sequence[Measured], int], None],
    every_s: float,
) -> list[Measured]:
    """All requests, at most `concurrency` at the same time, in the order of their ends. `progress` is called
    with what has ended and how many run, every `every_s` and at the end.

    Ctrl-C ends the run early, with what has ended. Raises `InflightError` where the server cannot be reached.
    """
    todo: queue.Queue[Planned | None] = queue.Queue()
    done: queue.Queue[Measured | InflightError | None] = queue.Queue()
    stopping = threading.Event()
    count = min(concurrency, len(planned))
    for one in planned:
        todo.put(one)
    for _ in range(count):
        todo.put(None)
    start = _Start(count)
    for _ in range(count):
        threading.Thread(target=_work, args=(todo, done, sender, stopping, start), daemon=True).start()
    ended: list[Measured] = []
    problem: InflightError | None = None
    next_progress = time.monotonic() + every_s
    try:
        while count:
            try:
                item = done.get(timeout=max(next_progress - time.monotonic(), 0.0))
            except queue.Empty:
                progress(ended, count)
                next_progress = time.monotonic() + every_s
                continue
            if item is None:
                count -= 1
            elif isinstance(item, InflightError):
                problem = problem or item
            else:
                ended.append(item)
    except KeyboardInterrupt:
        stopping.set()
    if problem is not None:
        raise problem
    progress(ended, 0)
    return ended


class _Start:
    """The clock of a run: it starts when every worker is connected, so that connecting is not measured."""

    def __init__(self, workers: int) -> None:
        self._barrier = threading.Barrier(workers, self._begin)
        self._began = 0.0

    def _begin(self) -> None:
        self._began = time.monotonic()

    def wait(self) -> None:
        """Until all have connected. Raises `threading.BrokenBarrierError` where one cannot."""
        self._barrier.wait()

    def give_up(self) -> None:
        """Lets the others go, too."""
        self._barrier.abort()

    def now(self) -> float:
        """Seconds since."""
        return time.monotonic() - self._began


def _work(
    todo: queue.Queue[Planned | None],
    done: queue.Queue[Measured | InflightError | None],
    sender: Sender,
    stopping: threading.Event,
    start: _Start,
) -> None:
    connection: Connection | None = None
    try:
        connection = sender.connect()
        declared = connection.inputs(sender.model)
        start.wait()
        while not stopping.is_set() and (one := todo.get()) is not None:
            if one.due_s is not None and stopping.wait(max(one.due_s - start.now(), 0.0)):
                return
            done.put(_measure(one, connection, declared, sender, start))
    except InflightError as error:
        start.give_up()
        done.put(error)
    except threading.BrokenBarrierError:
        pass
    finally:
        if connection is not None:
            connection.close()
        done.put(None)


def _measure(
    one: Planned, connection: Connection, declared: Mapping[str, Input], sender: Sender, start: _Start
) -> Measured:
    ids, input_lengths = prompts([one.ids])
    arrays = {"input_ids": ids, "input_lengths": input_lengths}
    options = {
        "max_tokens": one.output_tokens,
        "exclude_input_in_output": True,
        "end_id": sender.end_id,
        "streaming": sender.streaming or None,
    }
    arrays |= tensors(declared, options, 1, sender.model)
    made = request(sender.model, declared, arrays, "", streaming=sender.streaming)
    sent = start.now()
    due = sent if one.due_s is None else one.due_s
    first: float | None = None
    count, error = 0, None
    try:
        for response in connection.ask(made):
            now = start.now()
            found = response.tensors.get("output_ids")
            new = 0 if found is None else found.shape[-1] if found.size else 0
            if new and first is None and sender.streaming:
                first = now
            count += new
    except InflightError as problem:
        error = problem.what
    if "exclude_input_in_output" not in declared and not sender.streaming:
        # An older model, whose answers repeat the prompt.
        count -= len(one.ids)
    if error is None and count <= 0:
        error = "the answer has no tokens"
    return Measured(due, sent, first, start.now(), len(one.ids), count, error)
