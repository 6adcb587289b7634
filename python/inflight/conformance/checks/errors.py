"""Errors: status, envelope and headers, as the SDKs turn them into exceptions."""

from __future__ import annotations

from functools import partial
from typing import Any

from inflight.conformance.check import check, expect, expect_equal
from inflight.conformance.checks.chat import ASK, ask
from inflight.conformance.target import Target

TOPIC = "Errors"
CHAT = "/v1/chat/completions"

#: What is asked, the status, and `code`s that clients look for there.
TABLE: dict[str, tuple[str, str, Any, int, tuple[str | None, ...]]] = {
    "an unknown model": (
        "POST",
        CHAT,
        {"model": "no-such-model", "messages": ASK},
        404,
        ("model_not_found",),
    ),
    "a body that is not JSON": ("POST", CHAT, b'{"model": ', 400, (None,)),
    "a body that is not an object": ("POST", CHAT, [1], 400, (None,)),
    "a missing `messages`": ("POST", CHAT, {}, 400, (None,)),
    "no message": ("POST", CHAT, {"messages": []}, 400, (None,)),
    "an unknown path": ("GET", "/v1/no/such/path", None, 404, (None,)),
    "a wrong method": ("GET", CHAT, None, 405, (None,)),
}


def _is_told(
    method: str, path: str, body: Any, status: int, codes: tuple[str | None, ...], target: Target
) -> None:
    if isinstance(body, dict):
        body = {"model": target.model, **body}
    answer = target.request(method, path, body)
    expect_equal("the status", answer.status, status)
    told = answer.json()
    expect(isinstance(told, dict) and isinstance(told.get("error"), dict), f"the body is {told!r}")
    error = told["error"]
    expect(isinstance(error.get("message"), str) and error["message"], "`message` is not text")
    expect(isinstance(error.get("type"), str), f"`type` is {error.get('type')!r}")
    expect(error.get("code", "absent") != "absent", "`code` is absent")
    expect(error.get("param", "absent") != "absent", "`param` is absent")
    if codes != (None,):
        expect(error["code"] in codes, f"`code` is {error['code']!r}")


for _name, _row in TABLE.items():
    check(TOPIC, f"answers {_name} with {_row[3]} in OpenAI's envelope")(partial(_is_told, *_row))


@check(TOPIC, "names the request in `x-request-id`")
def request_id(target: Target) -> None:
    for model in (target.model, "no-such-model"):
        answer = target.request("POST", CHAT, {"model": model, "messages": ASK, "max_tokens": 1})
        expect(answer.headers.get("x-request-id"), f"a {answer.status} has no `x-request-id`")


@check(TOPIC, "says `context_length_exceeded` for a prompt that is too long")
def too_long(target: Target) -> None:
    import openai

    try:
        ask(target, messages=[{"role": "user", "content": "word " * 400_000}])
    except openai.BadRequestError as error:
        expect_equal("`code`", error.code, "context_length_exceeded")
        return
    except openai.APIStatusError as error:
        expect_equal("the status", error.status_code, 413)
        return
    raise AssertionError("a prompt of 400,000 words was answered")


@check(TOPIC, "keeps serving after bad requests")
def serves_on(target: Target) -> None:
    for _ in range(20):
        target.request("POST", CHAT, b"{")
    expect(ask(target).choices[0].message.content, "`content` is empty")
