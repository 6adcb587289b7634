"""`/v1/files`, `/v1/batches` and `/v1/messages/batches`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from inflight.conformance.check import check, expect, expect_equal
from inflight.conformance.target import Target

TOPIC = "Files and batches"
#: A small batch of an idle server takes a second; OpenAI's take minutes.
PATIENCE_S = 600.0

QUESTION = [{"role": "user", "content": "What is machine learning?"}]
CHAT = "/v1/chat/completions"


def until(found: Callable[[], Any], is_so: Callable[[Any], bool]) -> Any:
    """Looks again and again."""
    end = time.monotonic() + PATIENCE_S
    while not is_so(one := found()):
        expect(time.monotonic() < end, f"it did not end in {PATIENCE_S:g} s")
        time.sleep(0.2)
    return one


def upload(target: Target, content: bytes, **fields: Any) -> Any:
    """A file with this content."""
    return target.openai.files.create(file=("in.jsonl", content), purpose="batch", **fields)


def run(target: Target, endpoint: str, bodies: list[dict[str, Any]], **fields: Any) -> Any:
    """The batch of these requests, once it has ended; its file is deleted."""
    lines = [
        {"custom_id": str(place), "method": "POST", "url": endpoint, "body": {"model": target.model, **body}}
        for place, body in enumerate(bodies)
    ]
    file = upload(target, "\n".join(map(json.dumps, lines)).encode())
    batches: Any = target.openai.batches
    made = batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields)
    ended = ("completed", "failed", "expired", "cancelled")
    done = until(lambda: batches.retrieve(made.id), lambda batch: batch.status in ended)
    target.openai.files.delete(file.id)
    return done


def results(target: Target, file: str | None) -> list[Any]:
    """The lines of a file of results."""
    if file is None:
        return []
    lines = target.openai.files.content(file).text.splitlines()
    target.openai.files.delete(file)
    return [json.loads(line) for line in lines]


@check(TOPIC, "keeps a file, lists it, gives it back and deletes it", optional=True)
def files(target: Target) -> None:
    content = b'{"a": 1}\n'
    made = upload(target, content, expires_after={"anchor": "created_at", "seconds": 3600})
    expect_equal("`object`", made.object, "file")
    expect_equal("`bytes`", made.bytes, len(content))
    expect_equal("the time to its end", made.expires_at - made.created_at, 3600)
    files = target.openai.files
    expect_equal("the file", files.retrieve(made.id), made)
    expect_equal("its content", files.content(made.id).read(), content)
    expect(made.id in [file.id for file in files.list(purpose="batch", limit=100)], "it is in no list")
    expect_equal("`deleted`", files.delete(made.id).deleted, True)
    found = target.request("GET", f"/v1/files/{made.id}")
    expect_equal("the status once it is deleted", found.status, 404)


@check(TOPIC, "runs chats, and says which of them fail", optional=True)
def chats(target: Target) -> None:
    asked: dict[str, Any] = {"messages": QUESTION, "max_tokens": 8}
    batch = run(target, CHAT, [asked, {**asked, "temperature": "hot"}, asked], metadata={"k": "v"})
    expect_equal("`status`", batch.status, "completed")
    counts = batch.request_counts
    expect_equal("the counts", (counts.total, counts.completed, counts.failed), (3, 2, 1))
    expect_equal("`metadata`", batch.metadata, {"k": "v"})
    answers = {line["custom_id"]: line["response"] for line in results(target, batch.output_file_id)}
    expect_equal("the answers", sorted(answers), ["0", "2"])
    for answer in answers.values():
        expect_equal("`status_code`", answer["status_code"], 200)
        expect(answer["body"]["choices"][0]["message"]["content"], "`content` is empty")
    [failed] = results(target, batch.error_file_id)
    expect_equal("the failed one", failed["custom_id"], "1")
    expect_equal("its `status_code`", failed["response"]["status_code"], 400)


@check(TOPIC, "runs completions, responses and embeddings", optional=True)
def others(target: Target) -> None:
    for endpoint, body, kind in (
        ("/v1/completions", {"prompt": "Once", "max_tokens": 4}, "text_completion"),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 16}, "response"),
        ("/v1/embeddings", {"input": "Hello"}, "list"),
    ):
        batch = run(target, endpoint, [body])
        expect_equal(f"`status` of {endpoint}", batch.status, "completed")
        [line] = results(target, batch.output_file_id) or results(target, batch.error_file_id)
        expect_equal(f"`object` of {endpoint}", line["response"]["body"].get("object"), kind)


@check(TOPIC, "refuses a file that has no requests, with its line", optional=True)
def not_requests(target: Target) -> None:
    file = upload(target, b'{"custom_id": "a"}\n')
    batches: Any = target.openai.batches
    made = batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    failed = until(lambda: batches.retrieve(made.id), lambda batch: batch.status != "validating")
    target.openai.files.delete(file.id)
    expect_equal("`status`", failed.status, "failed")
    expect(failed.errors and failed.errors.data, "`errors` is empty")
    expect_equal("the line", failed.errors.data[0].line, 1)


@check(TOPIC, "lists batches and cancels one", optional=True)
def cancels(target: Target) -> None:
    body = {"model": target.model, "messages": QUESTION, "max_tokens": 512}
    lines = [{"custom_id": str(n), "method": "POST", "url": CHAT, "body": body} for n in range(200)]
    file = upload(target, "\n".join(map(json.dumps, lines)).encode())
    batches: Any = target.openai.batches
    made = batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    cancelling = batches.cancel(made.id)
    expect(cancelling.status in ("cancelling", "cancelled"), f"`status` is {cancelling.status!r}")
    ended = until(lambda: batches.retrieve(made.id), lambda batch: batch.status != "cancelling")
    target.openai.files.delete(file.id)
    expect_equal("`status`", ended.status, "cancelled")
    expect_equal("the latest batch", batches.list(limit=1).data[0].id, made.id)


@check(TOPIC, "runs a batch of messages", optional=True)
def messages(target: Target) -> None:
    params = {"model": target.model, "max_tokens": 8, "messages": QUESTION}
    batches: Any = target.anthropic.messages.batches
    made = batches.create(
        requests=[
            {"custom_id": "a", "params": params},
            {"custom_id": "b", "params": {"model": target.model, "max_tokens": 8}},
        ]
    )
    ended = until(lambda: batches.retrieve(made.id), lambda batch: batch.processing_status == "ended")
    counts = ended.request_counts
    expect_equal("the counts", (counts.succeeded, counts.errored), (1, 1))
    found = {line.custom_id: line.result for line in batches.results(made.id)}
    expect_equal(
        "the results",
        {name: result.type for name, result in found.items()},
        {"a": "succeeded", "b": "errored"},
    )
    expect(found["a"].message.content[0].text, "`text` is empty")
    expect_equal("the first of the list", batches.list(limit=1).data[0].id, made.id)
    expect_equal("what is deleted", batches.delete(made.id).id, made.id)
