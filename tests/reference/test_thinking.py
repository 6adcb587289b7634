"""Bounds on thinking: where the end is forced, and that nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inflight.executors.base import NamedTensor, Request, StatusCode
from inflight.executors.reference.core.admission import Bounds, admit
from inflight.executors.reference.core.refusal import Refused
from inflight.executors.reference.core.sampler import SamplerState
from inflight.executors.reference.core.thinking import Thinking, ThinkingBudget

from .support import VOCAB_SIZE, engine, request, run

PROMPT = [3, 4, 5, 6]
OPEN, CLOSE, SECOND = 60, 61, 62


def tensors(budget: int, end: list[int], start: list[int] | None = None) -> list[NamedTensor]:
    named = {"budget": [budget], "end_ids": end, **({"start_ids": start} if start else {})}
    return [
        NamedTensor(f"inflight_thinking_{name}", "INT32", (len(ids),), np.array(ids, "<i4").tobytes())
        for name, ids in named.items()
    ]


def asked(client_id: int, budget: int, end: list[int], **fields: Any) -> Request:
    return request(client_id, PROMPT, 12, tensors=tensors(budget, end), **fields)


@pytest.mark.parametrize("budget", [0, 1, 5])
@pytest.mark.parametrize("end", [[CLOSE], [CLOSE, SECOND]])
def test_the_end_comes_when_the_budget_is_spent(budget: int, end: list[int]) -> None:
    plain = run(engine(), [request(1, PROMPT, 12)])[1, 0].tokens
    assert not set(end) & set(plain)
    bounded = run(engine(), [asked(1, budget, end)])[1, 0].tokens
    assert bounded[: budget + len(end)] == plain[:budget] + end
    assert len(bounded) == 12
    assert not set(end) & set(bounded[budget + len(end) :])


def test_sequences_are_bounded_one_by_one_and_beside_others() -> None:
    sampling = {"num_return_sequences": 2, "temperature": 2.0, "top_p": 0.99, "seed": 5}
    requests = [asked(1, 3, [CLOSE], sampling=sampling, streaming=True), request(2, PROMPT, 12)]
    together = run(engine(), requests)
    assert together[2, 0].tokens == run(engine(), [request(2, PROMPT, 12)])[2, 0].tokens
    one, other = together[1, 0].tokens, together[1, 1].tokens
    assert one != other
    for tokens in (one, other):
        assert CLOSE in tokens[:4]


def state(budget: int, start: list[int], end: list[int], tokens: list[int]) -> ThinkingBudget:
    subject = ThinkingBudget(Thinking(budget, tuple(start), tuple(end)), VOCAB_SIZE)
    for token in tokens:
        subject.observe(token)
    return subject


@pytest.mark.parametrize(
    ("start", "end", "tokens", "forced"),
    [
        ([], [CLOSE], [1, 1], None),
        ([], [CLOSE], [1, 1, 1], CLOSE),
        ([], [CLOSE], [1, CLOSE, 1, 1, 1], None),
        ([], [CLOSE], [1, 1, 1, CLOSE], None),
        # In the middle of an end that the model has begun.
        ([], [CLOSE, SECOND], [1, 1, CLOSE], SECOND),
        ([], [CLOSE, CLOSE, SECOND], [1, CLOSE, CLOSE, CLOSE], SECOND),
        ([], [CLOSE, SECOND], [1, 1, CLOSE, 1], CLOSE),
        # What the model begins by itself.
        ([OPEN], [CLOSE], [9, OPEN, 1, 1, 1], CLOSE),
        ([OPEN], [CLOSE], [9, OPEN, 1, 1], None),
        ([OPEN], [CLOSE], [1] * 16 + [OPEN, 1, 1, 1, 1], None),
        ([OPEN, OPEN], [CLOSE], [OPEN, 1, OPEN, OPEN, 1, 1, 1], CLOSE),
    ],
)
def test_tokens_are_counted_between_the_marks(
    start: list[int], end: list[int], tokens: list[int], forced: int | None
) -> None:
    subject = state(3, start, end, tokens)
    assert subject.forced == forced
    assert np.flatnonzero(subject.mask()).tolist() == (list(range(64)) if forced is None else [forced])
    assert subject.copy().forced is None


def test_a_ban_gives_way_to_the_end() -> None:
    admitted = admit(asked(1, 0, [CLOSE], bad_words=[[7]]), Bounds(VOCAB_SIZE, 100, 99, 4, 100))
    sampler = SamplerState(admitted.parameters, VOCAB_SIZE, PROMPT)
    assert admitted.extras.thinking is not None
    sampler.guide = ThinkingBudget(admitted.extras.thinking, VOCAB_SIZE)
    logits = np.zeros(VOCAB_SIZE, dtype=np.float32)
    assert sampler.processed(logits).argmax() == CLOSE


@pytest.mark.parametrize(
    ("sent", "code", "words"),
    [
        (tensors(-1, [CLOSE]), StatusCode.INVALID_ARGUMENT, "at least 0"),
        (tensors(1, []), StatusCode.INVALID_ARGUMENT, "the end must have one"),
        (tensors(1, [64]), StatusCode.INVALID_ARGUMENT, "`64`"),
        (tensors(1, [1] * 33), StatusCode.INVALID_ARGUMENT, "each may have 32"),
        (tensors(1, [1])[:1], StatusCode.INVALID_ARGUMENT, "inflight_thinking_end_ids"),
    ],
)
def test_refusals_say_what_was_wrong(sent: list[NamedTensor], code: StatusCode, words: str) -> None:
    with pytest.raises(Refused, match=words) as refusal:
        admit(request(1, PROMPT, tensors=sent), Bounds(VOCAB_SIZE, 100, 99, 4, 100))
    assert refusal.value.code == code
