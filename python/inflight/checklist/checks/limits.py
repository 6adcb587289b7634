"""What ends early or is refused, and leaves the others alone."""

from __future__ import annotations

import time

from inflight.checklist.check import check
from inflight.checklist.outcome import Facts, Skipped, expect, expect_equal
from inflight.checklist.subject import Subject
from inflight.executors.base import FinishReason

#: How long a client waits for the last row of what it cancelled.
_CANCEL_S = 10.0


@check("cancel", "a cancelled request ends, and the next one is answered")
def cancel(subject: Subject) -> Facts:
    most = min(4096, subject.info.max_seq_len - len(subject.prompt) - 1)
    request = subject.request(most)
    [answer] = subject.send([request])
    subject.wait([answer], lambda answer: len(answer.first) >= 4 or answer.finals > 0)
    began = time.monotonic()
    subject.executor.cancel([request.client_id])
    subject.wait([answer], limit_s=_CANCEL_S)
    took = time.monotonic() - began
    answer.require()
    if answer.reason == FinishReason.LENGTH:
        raise Skipped(f"the answer of {most} tokens ended before it could be cancelled")
    expect_equal("finish reason", answer.reason, FinishReason.CANCELLED)
    expect_equal("tokens of the next one", len(subject.ask(4).require().first), 4)
    return {"tokens_before": len(answer.first), "ended_after_ms": round(took * 1000, 1)}


@check("long prompt", "a prompt beyond `max_seq_len` is refused, and a running stream continues")
def long_prompt(subject: Subject) -> Facts:
    # Far beyond it, because an engine may have room that it does not announce.
    too_long = subject.prompt * (2 * subject.info.max_seq_len // len(subject.prompt) + 1)
    [running, refused] = subject.send([subject.request(32), subject.request(4, input_token_ids=too_long)])
    subject.wait([running, refused])
    expect_equal("tokens of the running stream", len(running.require().first), 32)
    expect(
        refused.error is not None, f"it was answered with {len(refused.first)} tokens: {refused.reason.name}"
    )
    assert refused.error is not None
    return {"status": refused.error[0].name, "text": refused.error[1][:200]}


@check("statistics", "iterations are reported")
def statistics(subject: Subject) -> Facts:
    subject.executor.stats()
    subject.ask(16).require()
    deadline = time.monotonic() + 5.0
    found = list(subject.executor.stats())
    while not found and time.monotonic() < deadline:
        time.sleep(0.1)
        found = list(subject.executor.stats())
    expect(found, "no iteration was reported within 5 s of an answer")
    return {"iterations": len(found), "keys": sorted(found[-1])}
