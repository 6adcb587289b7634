"""One executor under test: requests in, whole answers out, each within a time.

Owns client ids, the columns of a batch as answers, and the prompt that most checks use. Decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from inflight import _native
from inflight.checklist.outcome import Skipped
from inflight.executors.base import (
    Executor,
    FinishReason,
    NamedTensor,
    Request,
    ResponseBatch,
    SamplingConfig,
    StatusCode,
)
from inflight.model.tokenizer import read_assets

#: What most checks continue.
TEXT = "The capital of France is"
#: How long an answer may take: a few hundred tokens of a small model, behind a first request that compiles.
ANSWER_S = 60.0
_SLICE_S = 0.1

#: Always the most probable token.
GREEDY = SamplingConfig(top_k=1)


class TooSlow(AssertionError):
    """An answer did not come in time."""


@dataclass
class Answer:
    """All rows of one request."""

    request: Request
    tokens: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    log_probs: list[float] = field(default_factory=list)
    #: Alternatives of each token of the first sequence, best first.
    top_ids: list[list[int]] = field(default_factory=list)
    prompt_log_probs: list[float] = field(default_factory=list)
    tensors: dict[str, NamedTensor] = field(default_factory=dict)
    cached: int = 0
    rows: int = 0
    finals: int = 0
    #: Why the executor refused it or failed it.
    error: tuple[StatusCode, str] | None = None
    #: When rows with tokens came, in seconds since it was sent.
    times: list[float] = field(default_factory=list)

    @property
    def first(self) -> list[int]:
        """The tokens of the first sequence."""
        return self.tokens.get(0, [])

    @property
    def reason(self) -> FinishReason:
        """Why the first sequence ended."""
        return self.reasons.get(0, FinishReason.NOT_FINISHED)

    def require(self) -> Answer:
        """Itself. Errors: `AssertionError` where the executor failed it."""
        if self.error is not None:
            code, text = self.error
            raise AssertionError(f"the executor answered {code.name}: {text}")
        if self.finals != 1:
            raise AssertionError(f"{self.finals} rows were the request's last")
        return self

    def between_tokens_ms(self) -> float | None:
        """The median of the times between rows."""
        gaps = np.diff(self.times)
        return round(float(np.median(gaps)) * 1000, 2) if len(gaps) else None


class Subject:
    """An executor and the model that it serves."""

    def __init__(self, executor: Executor, model_dir: Path, *, kind: str, version: str, folder: Path) -> None:
        """`kind`: the executor's name; `version`: of what it is made of; `folder`: where checks may write."""
        self.executor = executor
        self.info = executor.info()
        self.model_dir = model_dir
        self.kind, self.version, self.folder = kind, version, folder
        self.tokenizer = _native.Tokenizer(read_assets(model_dir))
        self.prompt = self.tokenizer.encode(TEXT, add_special_tokens=False)
        if not self.prompt or max(self.prompt) >= self.info.vocab_size:
            raise Skipped("the tokenizer has tokens that are not in the model's vocabulary")
        self._next_id = 1
        self._open: dict[int, tuple[Answer, float]] = {}
        self._greedy: list[int] = []

    def request(self, max_tokens: int = 16, **given: Any) -> Request:
        """A streamed, greedy request for the usual prompt; `given` replaces fields."""
        self._next_id += 1
        fields: dict[str, Any] = {
            "client_id": self._next_id,
            "input_token_ids": list(self.prompt),
            "max_tokens": max_tokens,
            "sampling_config": GREEDY,
        }
        return Request(**(fields | given))

    def ask(self, max_tokens: int = 16, **given: Any) -> Answer:
        """The whole answer of one request. Errors: `TooSlow`."""
        [answer] = self.ask_all([self.request(max_tokens, **given)])
        return answer

    def ask_all(self, requests: Sequence[Request]) -> list[Answer]:
        """The whole answers of requests that are sent together. Errors: `TooSlow`."""
        answers = self.send(requests)
        self.wait(answers)
        return answers

    def send(self, requests: Sequence[Request]) -> list[Answer]:
        """Sends requests; `wait` fills their answers."""
        answers = [Answer(request) for request in requests]
        now = time.monotonic()
        for answer in answers:
            self._open[answer.request.client_id] = answer, now
        self.executor.enqueue(requests)
        return answers

    def wait(
        self,
        answers: Iterable[Answer],
        until: Callable[[Answer], bool] = lambda answer: answer.finals > 0,
        limit_s: float = ANSWER_S,
    ) -> None:
        """Takes rows until all `answers` are as far as `until`. Errors: `TooSlow`, after which they are
        cancelled."""
        wanted = list(answers)
        deadline = time.monotonic() + limit_s
        while not all(until(answer) for answer in wanted):
            if time.monotonic() > deadline:
                late = [answer.request.client_id for answer in wanted if not answer.finals]
                self.executor.cancel(late)
                raise TooSlow(f"no answer of {len(late)} requests within {limit_s:g} s")
            self._take(self.executor.await_responses(_SLICE_S))

    def greedy(self) -> list[int]:
        """What the model answers to the usual prompt."""
        if not self._greedy:
            self._greedy = self.ask(16).require().first
        return list(self._greedy)

    def end_id(self) -> int | None:
        """The tokenizer's end token that the model has."""
        ends = [token for token in self.tokenizer.eos_token_ids if token < self.info.vocab_size]
        return ends[0] if ends else None

    def require(self, *capabilities: str) -> None:
        """Raises `Skipped` where the executor does not offer one of them."""
        for name in capabilities:
            if name not in self.info.capabilities:
                raise Skipped(f"the executor does not offer `{name}`")

    def _take(self, batch: ResponseBatch) -> None:
        offsets = np.frombuffer(batch.token_offsets, "<u4")
        tokens = np.frombuffer(batch.token_ids, "<i4")
        ids, sequences = np.frombuffer(batch.client_ids, "<u8"), np.frombuffer(batch.sequence_index, "<i4")
        values = _by_row(batch.log_prob_rows, batch.log_probs, offsets, "<f4")
        tops = _by_row(
            batch.top_log_prob_rows,
            batch.top_log_prob_ids,
            offsets,
            "<i4",
            np.frombuffer(batch.top_log_prob_widths, "<u4"),
        )
        now = time.monotonic()
        answers: list[Answer | None] = []
        for row, client_id in enumerate(ids.tolist()):
            answer, began = self._open.get(client_id, (None, 0.0))
            answers.append(answer)
            if answer is None:
                continue
            sequence, new = int(sequences[row]), tokens[offsets[row] : offsets[row + 1]].tolist()
            answer.rows += 1
            answer.tokens.setdefault(sequence, []).extend(new)
            if new:
                answer.times.append(now - began)
            if batch.finish_reasons[row]:
                answer.reasons[sequence] = FinishReason(batch.finish_reasons[row])
            answer.finals += batch.finals[row]
            if sequence == 0:
                answer.log_probs += values.get(row, [])
                width = len(tops.get(row, [])) // max(len(new), 1)
                found = tops.get(row, [])
                answer.top_ids += [found[at : at + width] for at in range(0, len(found), width or 1)]
        for row, code, text in batch.errors:
            if (answer := answers[row]) is not None:
                answer.error = StatusCode(code), text
        for row, cached in batch.cached_tokens:
            if (answer := answers[row]) is not None:
                answer.cached = cached
        for row, tensor in batch.tensors:
            if (answer := answers[row]) is not None:
                answer.tensors[tensor.name] = tensor
        for row, prompt, *_ in batch.prompt_log_probs:
            if (answer := answers[row]) is not None:
                answer.prompt_log_probs = np.frombuffer(prompt, "<f4").tolist()


def _by_row(rows: bytes, values: bytes, offsets: Any, kind: str, widths: Any = None) -> dict[int, list[Any]]:
    """Values of the rows that have some; `widths` a token."""
    found, at, flat = {}, 0, np.frombuffer(values, kind)
    for place, row in enumerate(np.frombuffer(rows, "<u4").tolist()):
        count = int(offsets[row + 1] - offsets[row]) * (1 if widths is None else int(widths[place]))
        found[row] = flat[at : at + count].tolist()
        at += count
    return found
