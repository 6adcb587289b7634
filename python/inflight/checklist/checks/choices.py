"""What a request may ask for besides: a bias, a penalty, a salt, a priority."""

from __future__ import annotations

from dataclasses import replace

from inflight._native import Capability
from inflight.checklist import material
from inflight.checklist.check import check
from inflight.checklist.outcome import Facts, expect, expect_equal
from inflight.checklist.subject import GREEDY, Subject


@check("bias", "a token with a large bias is chosen each time", needs=(Capability.EMBEDDING_BIAS,))
def bias(subject: Subject) -> None:
    wanted = subject.greedy()[3]
    answer = subject.ask(4, logit_bias=[(wanted, 100.0)]).require()
    expect_equal("tokens", answer.first, [wanted] * 4)


@check("penalties", "a repetition penalty is accepted", needs=(Capability.PENALTIES,))
def penalties(subject: Subject) -> None:
    config = replace(GREEDY, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.5)
    expect_equal("tokens", len(subject.ask(8, sampling_config=config).require().first), 8)


@check("salt", "prompts with different salts share no cached tokens", needs=(Capability.CACHE_SALT,))
def salt(subject: Subject) -> Facts:
    # Several blocks, so that there is something to share.
    prompt = (subject.prompt * 64)[: min(3 * subject.info.tokens_per_block, subject.info.max_input_len - 1)]

    def cached(salt: str) -> int:
        salted = [material.text("inflight_cache_salt", salt)]
        return subject.ask(2, input_token_ids=prompt, tensors=salted).require().cached

    cached("one")
    same, other = cached("one"), cached("two")
    expect(other == 0, f"{other} tokens of another salt's prompt were cached")
    return {"cached_same_salt": same, "cached_other_salt": other}


@check("priority", "a request with a priority is answered", needs=(Capability.PRIORITY,))
def priority(subject: Subject) -> None:
    urgent = [material.numbers("priority", "FP32", 0.9)]
    expect_equal("tokens", len(subject.ask(4, tensors=urgent).require().first), 4)


@check("performance metrics", "an answer has its own times", needs=(Capability.PERF_METRICS,))
def perf_metrics(subject: Subject) -> Facts:
    from inflight.executors.base import OutputConfig

    answer = subject.ask(4, output_config=OutputConfig(return_perf_metrics=True)).require()
    expect(answer.tensors, "no metrics came")
    return {"outputs": len(answer.tensors)}
