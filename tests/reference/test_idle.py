"""Requests that nobody waits for: what clients notice of them, and that giving up changes no token."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from inflight.executors.base import NamedTensor, Request
from inflight.executors.reference.core.drafts import Checks
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.runner import Outcome, Pending, Work
from inflight.executors.reference.core.sampler import SamplerState
from inflight.executors.reference.numpy.runner import NumpyRunner

from .support import AllTold, collect, engine, request
from .test_lanes import DEMANDING, plain

IDLE = NamedTensor("priority", "FP32", (1,), np.zeros(1, dtype="<f4").tobytes())
#: Seconds without a client after which none is expected.
QUIET_S = 10.0


def idle(client_id: int, prompt: list[int], tokens: int = 8, **fields: Any) -> Request:
    return request(client_id, prompt, tokens, tensors=[IDLE], **fields)


class Watched:
    """A runner whose work is kept, and which gives up what may be given up once somebody came."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.depth = inner.depth
        self.launched: list[Work] = []
        self.in_flight = self.given_up = 0

    def follows(self, sampler: SamplerState) -> bool:
        return bool(self._inner.follows(sampler))

    def checks(self, sampler: SamplerState) -> Checks:
        checks: Checks = self._inner.checks(sampler)
        return checks

    def launch(self, work: Work) -> Pending | None:
        pending: Pending | None = None
        if isinstance(self._inner, NumpyRunner) and work.is_awaited is not None and work.is_awaited():
            for copy in work.copies:
                self._inner._steps.copy(*copy)
        else:
            pending = self._inner.launch(work)
        if pending is None:
            self.given_up += 1
        else:
            self.launched.append(work)
            self.in_flight += 1
        return pending

    def choose(self, pending: Pending) -> None:
        self._inner.choose(pending)

    def collect(self, pending: Pending) -> Outcome:
        self.in_flight -= 1
        outcome: Outcome = self._inner.collect(pending)
        return outcome


def watched(**limits: Any) -> tuple[Engine, Watched]:
    subject = engine(depth=2, **limits)
    runner = Watched(subject._runner)
    subject._runner = subject._requests._runner = runner
    return subject, runner


def finish(
    subject: Engine, told: AllTold, now_s: float = 0.0, is_awaited: Callable[[], bool] | None = None
) -> None:
    """Runs everything to its end; asks once an iteration whether a request has come."""
    for _ in range(2000):
        if not subject.has_work:
            return
        awaited = is_awaited is not None and is_awaited()
        iteration = Iteration(now_s=now_s, is_awaited=partial(bool, awaited))
        subject.step(iteration)
        collect(iteration.rows, told)
    raise AssertionError("work is left")


def visit(subject: Engine, now_s: float) -> None:
    """A client comes and goes."""
    subject.add([request(99, [1, 2, 3], 1)], Iteration(now_s=now_s))
    finish(subject, {}, now_s)


@pytest.mark.parametrize(
    ("seconds", "tokens", "ahead"),
    [
        pytest.param(0.0, 64, 0, id="a client was just here"),
        pytest.param(QUIET_S - 0.1, 64, 0, id="or lately"),
        pytest.param(QUIET_S, 200, 1, id="none is expected"),
    ],
)
def test_idle_sequences_make_way_while_clients_come(seconds: float, tokens: int, ahead: int) -> None:
    subject, runner = watched(max_num_tokens=256, max_seq_len=256)
    visit(subject, 1000.0)
    runner.launched.clear()
    subject.add([idle(1, [*range(3, 63)] * 3 + [*range(20)])], Iteration(now_s=1000.0))
    for _ in range(6):
        subject.step(Iteration(now_s=1000.0 + seconds))
    assert sum(chunk.stop - chunk.first for chunk in runner.launched[0].chunks) == tokens
    assert [work.is_awaited is None for work in runner.launched] == [bool(ahead)] * len(runner.launched)
    if runner.depth == 2:
        assert runner.in_flight == ahead


def test_a_client_generates_with_idle_sequences_an_iteration_ahead() -> None:
    subject, runner = watched()
    subject.add([idle(1, [5, 6, 7], 40), request(2, [8, 9], 40)], Iteration())
    for _ in range(8):
        subject.step(Iteration())
    assert len(runner.launched[-1].generation) == 2
    assert runner.in_flight == runner.depth - 1
    assert all(work.is_awaited is None for work in runner.launched)


@pytest.mark.parametrize("attempts", [[True], [False, True], [True, True, False]])
def test_what_is_given_up_runs_with_whoever_came(attempts: list[bool]) -> None:
    subject, runner = watched()
    if not isinstance(runner._inner, NumpyRunner):
        pytest.skip("a tiny model is not cut in pieces")
    visit(subject, 0.0)
    subject.add([idle(1, [5, 6, 7], 40)], Iteration())
    for attempt in attempts:
        iteration = Iteration(is_awaited=partial(bool, attempt))
        subject.step(iteration)
        assert (iteration.context_tokens + iteration.generation_requests == 0) == attempt
    assert runner.given_up == sum(attempts)
    subject.add([request(2, [8, 9], 4)], Iteration())
    subject.step(Iteration())
    latest = runner.launched[-1]
    assert [chunk.sequence.owner.request.client_id for chunk in latest.chunks] == [2]
    assert len(latest.generation) == (attempts.count(False) > 0)


@pytest.mark.parametrize("share", [1, 2, 3])
def test_giving_up_changes_no_token(share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(engine()._runner, NumpyRunner):
        pieces = pytest.importorskip("inflight.executors.reference.pytorch.pieces")
        monkeypatch.setattr(pieces, "_PIECE_BYTES", 1)
    common = [*range(3, 43)]
    asked = [idle(key, [*common, 3 + key, 4], 24, **fields) for key, fields in enumerate(DEMANDING)]
    told: AllTold = {}
    subject, _ = watched()
    subject.add(asked, Iteration())
    finish(subject, told)
    again: AllTold = {}
    subject, runner = watched()
    visit(subject, 0.0)
    subject.add(asked, Iteration())
    turns = itertools.count()
    finish(subject, again, is_awaited=lambda: next(turns) % (share + 1) == 0)
    if runner.depth == 2:
        assert runner.given_up > 3
    assert {key: plain(one)[:3] for key, one in again.items()} == {
        key: plain(one)[:3] for key, one in told.items()
    }
    assert subject.pool.used == 0


def test_blocks_of_a_chunk_that_may_be_given_up_are_found_once_it_is_computed() -> None:
    subject, runner = watched()
    visit(subject, 0.0)
    prompt = [*range(3, 63), *range(20)]
    subject.add([idle(1, prompt, 2)], Iteration())
    # Given up: a client with the same prompt must compute it.
    subject.step(Iteration(is_awaited=lambda: True))
    subject.add([request(2, prompt, 2)], Iteration())
    told: AllTold = {}
    finish(subject, told)
    if runner.given_up:
        assert told[2, 0].cached_tokens == [0]
    assert told[1, 0].tokens == told[2, 0].tokens


def test_a_client_does_not_wait_for_blocks_that_an_idle_sequence_computes() -> None:
    subject, runner = watched()
    visit(subject, 0.0)
    prompt = [*range(3, 63), *range(20)]
    subject.add([idle(1, prompt)], Iteration())
    subject.step(Iteration())
    subject.add([request(2, prompt)], Iteration())
    subject.step(Iteration())
    [chunk] = runner.launched[-1].chunks
    assert chunk.sequence.owner.request.client_id == 2
    assert chunk.stop == len(prompt)
