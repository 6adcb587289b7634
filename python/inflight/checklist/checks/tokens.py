"""Answers: streamed and whole, alone and together, greedy and sampled."""

from __future__ import annotations

from inflight._native import Capability
from inflight.checklist.check import check
from inflight.checklist.outcome import Facts, Known, expect, expect_equal
from inflight.checklist.subject import Subject
from inflight.executors.base import FinishReason, SamplingConfig

#: High, so that two seeds hardly ever give the same tokens.
_WARM = 1.5


@check("greedy", "a streamed answer has as many tokens as were asked for")
def greedy(subject: Subject) -> Facts:
    answer = subject.ask(16).require()
    expect_equal("tokens", len(answer.first), 16)
    expect_equal("finish reason", answer.reason, FinishReason.LENGTH)
    expect(answer.rows > 1, "a streamed answer came in one row")
    return {
        "first_token_ms": round(answer.times[0] * 1000, 1),
        "between_tokens_ms": answer.between_tokens_ms(),
    }


@check("whole", "an answer in one piece has the tokens of the streamed one")
def whole(subject: Subject) -> None:
    answer = subject.ask(16, streaming=False).require()
    expect_equal("rows", answer.rows, 1)
    expect_equal("tokens", answer.first, subject.greedy())


@check("replay", "a greedy request that is repeated gives the same tokens")
def replay(subject: Subject) -> None:
    expected = subject.greedy()
    for _ in range(3):
        expect_equal("tokens", subject.ask(16).require().first, expected)


@check("together", "16 requests at once each get their answer")
def together(subject: Subject) -> Facts:
    answers = subject.ask_all([subject.request(16) for _ in range(16)])
    expected, alike = subject.greedy(), 0
    for answer in answers:
        expect_equal("tokens", len(answer.require().first), 16)
        alike += answer.first == expected
    # In a batch other kernels may run; a token that was close may then be another.
    return {"same_as_alone": alike}


@check("sampled", "a sampled request with a seed gives the same tokens again, and others with another seed")
def sampled(subject: Subject) -> None:
    def draw(seed: int) -> list[int]:
        config = SamplingConfig(temperature=_WARM, top_p=1.0, seed=seed)
        return subject.ask(24, sampling_config=config).require().first

    first, again, other = draw(7), draw(7), draw(8)
    if first != again and subject.kind == "tensorrt_llm" and subject.version < "1.3":
        raise Known(
            "equal seeds give different answers, as TensorRT-LLM's default sampler up to 1.2 ignores seeds; "
            "`sampler_type=TRTLLMSampler` applies them"
        )
    expect_equal("tokens of the same seed", again, first)
    expect(first != other, "two seeds gave the same 24 tokens")


@check("sequences", "one request gets two sequences", needs=(Capability.NUM_RETURN_SEQUENCES,))
def sequences(subject: Subject) -> None:
    config = SamplingConfig(temperature=_WARM, seed=7, num_return_sequences=2)
    answer = subject.ask(8, sampling_config=config).require()
    expect_equal("sequences", sorted(answer.tokens), [0, 1])
    for sequence in (0, 1):
        expect_equal(f"tokens of sequence {sequence}", len(answer.tokens[sequence]), 8)
