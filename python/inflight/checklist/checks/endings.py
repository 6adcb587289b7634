"""What ends an answer, or is kept out of it."""

from __future__ import annotations

from inflight._native import Capability
from inflight.checklist import material
from inflight.checklist.check import check
from inflight.checklist.outcome import Skipped, expect, expect_equal
from inflight.checklist.subject import Subject
from inflight.executors.base import FinishReason


@check("end token", "an answer ends before its end token")
def end_token(subject: Subject) -> None:
    tokens = subject.greedy()
    end = tokens[5]
    answer = subject.ask(16, end_id=end).require()
    expect_equal("finish reason", answer.reason, FinishReason.END_ID)
    # An executor may put the end token last.
    kept = tokens[: tokens.index(end)]
    expect(answer.first in (kept, [*kept, end]), f"tokens: got {answer.first}, expected {kept}")


@check("stop words", "an answer ends with a stop word of two tokens")
def stop_words(subject: Subject) -> None:
    tokens = subject.greedy()
    word = tokens[4:6]
    place = next(at for at in range(len(tokens)) if tokens[at : at + 2] == word)
    answer = subject.ask(16, stop_words=[word]).require()
    expect_equal("finish reason", answer.reason, FinishReason.STOP_WORDS)
    expect_equal("tokens", answer.first, tokens[: place + 2])


@check("bad words", "a banned token is not generated", needs=(Capability.BAD_WORDS,))
def bad_words(subject: Subject) -> None:
    banned = subject.greedy()[0]
    answer = subject.ask(8, bad_words=[[banned]]).require()
    expect(banned not in answer.first, f"the banned token {banned} came: {answer.first}")


@check("least tokens", "an end token is held back until `min_tokens`", needs=(Capability.MIN_TOKENS,))
def min_tokens(subject: Subject) -> None:
    from dataclasses import replace

    from inflight.checklist.subject import GREEDY

    tokens = subject.greedy()
    config = replace(GREEDY, min_tokens=8)
    answer = subject.ask(16, end_id=tokens[1], sampling_config=config).require()
    expect(len(answer.first) >= 8, f"the answer has {len(answer.first)} tokens, fewer than 8")


@check("end token of the tokenizer", "the tokenizer's end token is in the model's vocabulary")
def own_end(subject: Subject) -> None:
    if not subject.tokenizer.eos_token_ids:
        raise Skipped("the tokenizer names no end token")
    expect(subject.end_id() is not None, "none of the tokenizer's end tokens is in the vocabulary")


@check(
    "thinking budget",
    "after three tokens of reasoning its end comes, once",
    needs=(Capability.THINKING_BUDGET,),
)
def thinking_budget(subject: Subject) -> None:
    tokens = subject.greedy()
    end = next(token for token in range(subject.info.vocab_size) if token not in tokens)
    bounded = [
        material.numbers("inflight_thinking_budget", "INT32", 3),
        material.numbers("inflight_thinking_end_ids", "INT32", end),
    ]
    found = subject.ask(8, tensors=bounded).require().first
    expect_equal("tokens", found[:4], [*tokens[:3], end])
    expect(end not in found[4:], f"the end {end} came again: {found}")
