"""`/v1/chat/completions` in one piece."""

from __future__ import annotations

from typing import Any

from inflight.conformance.check import check, expect, expect_equal
from inflight.conformance.target import Target

TOPIC = "Chat completions"

ASK: list[Any] = [{"role": "user", "content": "What is machine learning?"}]
#: Few enough to be quick, many enough for some events.
SHORT = 24


def ask(target: Target, **fields: Any) -> Any:
    """A short, greedy answer to `ASK`, unless `fields` say otherwise."""
    asked: dict[str, Any] = {"messages": ASK, "max_tokens": SHORT, "temperature": 0, **fields}
    return target.openai.chat.completions.create(model=target.model, **asked)


@check(TOPIC, "answers with text, a reason and a usage that adds up")
def whole(target: Target) -> None:
    answer = ask(target)
    expect_equal("`object`", answer.object, "chat.completion")
    expect_equal("`model`", answer.model, target.model)
    expect(answer.id, "`id` is empty")
    expect(answer.created > 1_500_000_000, f"`created` is {answer.created!r}, expected seconds of 1970")
    [choice] = answer.choices
    expect_equal("`role`", choice.message.role, "assistant")
    expect(choice.message.content, "`content` is empty")
    expect(choice.finish_reason in ("stop", "length"), f"`finish_reason` is {choice.finish_reason!r}")
    usage = answer.usage
    expect(usage is not None, "`usage` is missing")
    expect(usage.prompt_tokens > 0, "`prompt_tokens` is 0")
    expect(0 < usage.completion_tokens <= SHORT, f"`completion_tokens` is {usage.completion_tokens}")
    expect_equal("`total_tokens`", usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)


@check(TOPIC, "stops at `max_tokens` and says `length`")
def max_tokens(target: Target) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        asked: Any = {"model": target.model, "messages": ASK, field: 3}
        answer = target.openai.chat.completions.create(**asked)
        expect_equal("`finish_reason`", answer.choices[0].finish_reason, "length")
        expect_equal(f"`completion_tokens` with `{field}`", answer.usage.completion_tokens, 3)


@check(TOPIC, "ends before a stop string")
def stop(target: Target) -> None:
    text = ask(target).choices[0].message.content
    word = text.split()[len(text.split()) // 2]
    for stops in (word, ["@@never@@", word]):
        choice = ask(target, stop=stops).choices[0]
        expect_equal("`finish_reason`", choice.finish_reason, "stop")
        expect(word not in choice.message.content, f"the answer holds its stop string {word!r}")
        expect_equal("the text before it", choice.message.content, text[: text.index(word)])


@check(TOPIC, "gives `n` choices")
def several(target: Target) -> None:
    answer = ask(target, n=3, temperature=1)
    expect_equal("the choices' indices", [choice.index for choice in answer.choices], [0, 1, 2])


@check(TOPIC, "repeats itself with the same `seed`")
def seed(target: Target) -> None:
    texts = {ask(target, seed=7, temperature=1).choices[0].message.content for _ in range(3)}
    expect_equal("the number of different answers", len(texts), 1)


@check(TOPIC, "reports log probabilities of every token")
def log_probs(target: Target) -> None:
    answer = ask(target, logprobs=True, top_logprobs=2)
    [choice] = answer.choices
    expect(choice.logprobs and choice.logprobs.content, "`logprobs.content` is missing")
    entries = choice.logprobs.content
    written = b"".join(bytes(entry.bytes or ()) for entry in entries).decode("utf-8", "replace")
    content = choice.message.content
    expect(written.startswith(content), f"the tokens' bytes are {written!r}, the text is {content!r}")
    for entry in entries:
        expect(entry.logprob <= 0, f"`logprob` of {entry.token!r} is {entry.logprob}")
        expect_equal(f"the alternatives of {entry.token!r}", len(entry.top_logprobs), 2)
        expect(entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob, "`top_logprobs` is unordered")


@check(TOPIC, "reads every kind of message and content part")
def messages(target: Target) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "machine learning?"}]
    answer = ask(
        target,
        messages=[
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
            {"role": "user", "content": parts, "name": "Ada"},
        ],
    )
    expect(answer.choices[0].message.content, "`content` is empty")
    answer = ask(target, messages=[{"role": "developer", "content": "Be brief."}, *ASK])
    expect(answer.choices[0].message.content, "`content` is empty behind a `developer` message")


@check(TOPIC, "answers text of any script")
def scripts(target: Target) -> None:
    for text in (
        "Grüße, was ist Lernen?",
        "機械学習とは何ですか",
        "ما هو التعلم الآلي؟",
        "👩‍🔬 + 🤖 = ?",
        "a\u0000b\u2028c",
    ):
        answer = ask(target, messages=[{"role": "user", "content": text}])
        expect(answer.choices[0].finish_reason, f"{text!r} has no answer")
