"""Sequences in columns: what they cost, and that nobody notices who is in them and who is not."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inflight.executors.base import Request
from inflight.executors.reference.core.drafts import Checks
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.lanes import Lanes
from inflight.executors.reference.core.rows import Row, TokenRows, pack
from inflight.executors.reference.core.runner import LogProbs, Outcome, Pending, Work
from inflight.executors.reference.core.sampler import SamplerState

from .support import AllTold, Told, collect, engine, request, run


class InstantRunner:
    """Gives every row the same token; keeps the order of what it is asked."""

    depth = 2

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._launched = 0

    def follows(self, _: SamplerState) -> bool:
        return False

    def checks(self, _: SamplerState) -> Checks:
        return Checks.NOT

    def launch(self, work: Work) -> Pending:
        self._launched += 1
        self.asked.append(f"launch {self._launched}")
        return Launched(self._launched, len(work.choosing()))

    def choose(self, pending: Pending) -> None:
        assert isinstance(pending, Launched)
        self.asked.append(f"choose {pending.number}")

    def collect(self, pending: Pending) -> Outcome:
        assert isinstance(pending, Launched)
        self.asked.append(f"collect {pending.number}")
        values = np.zeros((pending.rows, 20), dtype=np.float32)
        report = LogProbs(values[:, 0], values.astype(np.int32), values)
        return Outcome([7] * pending.rows, np.arange(pending.rows), report)


class Launched(Pending):
    def __init__(self, number: int, rows: int) -> None:
        self.number, self.rows = number, rows


def instant(sequences: int, **fields: Any) -> tuple[Engine, InstantRunner]:
    """An engine in which that many sequences generate."""
    subject = engine(max_batch_size=256, num_blocks=2000, tokens_per_block=32, max_queue_size=300)
    runner = InstantRunner()
    subject._runner = subject._requests._runner = runner
    subject.add([request(one, [3, 4, 5], 100, **fields) for one in range(sequences)], Iteration())
    for _ in range(8):
        subject.step(Iteration())
    return subject, runner


def calls_of_a_step(sequences: int, **fields: Any) -> int:
    """Functions that one iteration calls, those of C included, with its rows packed."""
    subject, _ = instant(sequences, **fields)
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    iteration = Iteration()
    sys.setprofile(count)
    subject.step(iteration)
    batch = pack(iteration.output)
    sys.setprofile(None)
    assert len(batch.finals) == iteration.generated_tokens == sequences
    return calls


@pytest.mark.parametrize("output", [{}, {"return_log_probs": True, "num_top_log_probs": 20}])
def test_a_sequence_more_costs_an_iteration_next_to_nothing(output: dict[str, Any]) -> None:
    few, many = (calls_of_a_step(count, output=output) for count in (8, 208))
    # One call takes note of its token; the rest is for a block now and then.
    assert (many - few) / 200 < 2


def test_rows_in_columns_are_packed_like_rows() -> None:
    rows = TokenRows(
        np.array([1 << 40, 2, 2], dtype=np.uint64),
        np.array([0, 0, 1], dtype=np.int32),
        np.array([9, 8, 7], dtype=np.int32),
    )
    values = np.array([-0.5, -1.5, -2.5], dtype=np.float32)
    ids = np.arange(6, dtype=np.int32).reshape(3, 2)
    columns = [
        rows,
        replace(rows, log_probs=values),
        replace(rows, top=(ids, ids.astype(np.float32))),
        # As a part of a wider table.
        replace(rows, log_probs=values, top=(ids[:, :1], ids.astype(np.float32)[:, :1])),
    ]
    before, after = Row(5, tokens=[1, 2]), Row(1 << 40, tokens=[3], final=True)
    one_by_one = [row for part in columns for row in part.rows()]
    batch = pack([before, *columns, after])
    assert batch == pack([before, *one_by_one, after])
    assert np.frombuffer(batch.log_prob_rows, "<u4").tolist() == [4, 5, 6, 10, 11, 12]
    assert np.frombuffer(batch.top_log_prob_widths, "<u4").tolist() == [2, 2, 2, 1, 1, 1]


#: What makes each token depend on those before it, or reports more of it than its id.
DEMANDING: list[dict[str, Any]] = [
    {"sampling": {"repetition_penalty": 1.4, "top_p": 0.9, "seed": 3}},
    {"sampling": {"frequency_penalty": 0.7}},
    {"sampling": {"no_repeat_ngram_size": 2}},
    {"sampling": {"top_p": 0.9, "top_p_decay": 0.8, "seed": 4}},
    {"sampling": {"min_tokens": 6}, "end_id": 40},
    {"bad_words": [[5, 6], [9]]},
    {"stop_words": [[11, 12], [30]]},
    {"output": {"num_top_log_probs": 2, "return_log_probs": True}},
    {"output": {"return_log_probs": True}},
    {"output": {"num_top_log_probs": 3}},
    {"output": {"num_top_log_probs": 2}, "streaming": False},
    {"output": {"return_log_probs": True, "return_generation_logits": True}},
    {"streaming": False},
    {"sampling": {"top_p": 0.8, "seed": 9, "num_return_sequences": 3}},
    {},
]


def demanding() -> list[Request]:
    return [request(key, [3 + key, 4, 5], 24, **fields) for key, fields in enumerate(DEMANDING)]


def plain(told: Told) -> tuple[Any, ...]:
    logits = [row.argmax().item() for row in told.logits]
    return told.tokens, told.rows, int(told.finish_reason), told.log_probs, told.top_ids, logits


def test_an_iteration_ahead_changes_no_token() -> None:
    at_once, ahead = run(engine(depth=1), demanding()), run(engine(depth=2), demanding())
    assert {key: plain(one) for key, one in ahead.items()} == {
        key: plain(one) for key, one in at_once.items()
    }


def test_columns_change_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    in_columns = run(engine(depth=2), demanding())
    monkeypatch.setattr("inflight.executors.reference.core.lanes.fits", lambda _sequence: False)
    one_by_one = run(engine(depth=2), demanding())
    assert {key: plain(one) for key, one in in_columns.items()} == {
        key: plain(one) for key, one in one_by_one.items()
    }


def test_the_model_computes_while_tokens_that_others_need_are_read() -> None:
    subject, runner = instant(3, sampling={"repetition_penalty": 1.2})
    runner.asked.clear()
    subject.step(Iteration())
    [chosen, launched, collected] = runner.asked
    number = int(launched.split()[1])
    assert (chosen, collected) == (f"choose {number - 1}", f"collect {number - 1}")


def test_a_sequence_that_leaves_with_a_row_in_flight_loses_no_token() -> None:
    subject = engine(depth=2, max_batch_size=8)
    told: AllTold = {}
    first = Iteration()
    subject.add([request(one, [3, 4, 5 + one], 20) for one in range(4)], first)
    while subject.has_work:
        iteration = Iteration()
        subject.step(iteration)
        collect(iteration.rows, told)
        lanes: Lanes = subject._planner.lanes
        lanes.clear()
        subject._planner._others = dict(subject._planner.active)
    alone = run(engine(), [request(one, [3, 4, 5 + one], 20) for one in range(4)])
    assert {key: plain(one) for key, one in told.items()} == {key: plain(one) for key, one in alone.items()}
