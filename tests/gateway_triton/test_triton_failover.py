"""Streams of a Triton that dies are repeated at another one and compared, in every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from support.fronted import COMPLETIONS, DIALECTS, LONG, Hosted, add_llmapi, create, hosted
from support.http import get, stream
from support.metrics import total
from support.processes import wait_until
from support.servers import Server, Start, wait_ready

#: Answers that depend on more than the last token, and that take seconds: a server is lost meanwhile.
QUESTIONS = tuple(
    {**LONG, "max_tokens": 800, **sampling}
    for sampling in ({"temperature": 0}, {"temperature": 0.8, "seed": 7})
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, model_directory: Path) -> Path:
    """An answer is the same whatever is computed next to it."""
    scratch = tmp_path_factory.mktemp("invariant")
    made = create(model_directory, scratch / "repository", "--set=batch_invariant=true")
    add_llmapi(made, scratch / "one", llmapi=model_directory)
    return made


@pytest.fixture(scope="module")
def first(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    yield from hosted(repository, tmp_path_factory.mktemp("first"), ["llmapi"])


@pytest.fixture(scope="module")
def second(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    yield from hosted(repository, tmp_path_factory.mktemp("second"), ["llmapi"])


@pytest.fixture(scope="module")
def both(start_for_session: Start, first: Hosted, second: Hosted, model_directory: Path) -> Server:
    workers = [f"--worker={one.server.grpc}" for one in (first, second)]
    process = start_for_session("gateway", "--port=0", *workers, f"--tokenizer={model_directory}")
    return Server(wait_ready(process), first.server.grpc, first.server.metrics, "")


@pytest.mark.timeout(300)
def test_streams_of_a_server_that_dies_have_the_same_text(
    both: Server, first: Hosted, second: Hosted
) -> None:
    asked = [{"model": model, **question} for model in DIALECTS for question in QUESTIONS]
    with ThreadPoolExecutor(len(asked)) as pool:
        undisturbed = list(pool.map(lambda fields: answer(both.http, fields), asked))
    opened = [stream(both.http, COMPLETIONS, fields) for fields in asked]
    readers = [one.events() for one in opened]
    begun = [text([next(events) for _ in range(3)]) for events in readers]
    # Prompts that begin alike go to one server.
    busier = max((first, second), key=lambda one: active(both, one))
    assert active(both, busier) > 0
    busier.server.kill()
    try:
        texts = [first + text(events) for first, events in zip(begun, readers, strict=True)]
    finally:
        busier.start_again()
        for one in opened:
            one.close()
    assert texts == undisturbed
    assert total(both.http, "inflight_gateway_resumes_total") > 0
    assert total(both.http, "inflight_gateway_resumes_failed_total") == 0
    wait_until("both are up", lambda: total(both.http, "inflight_gateway_worker_up") == 2)
    assert get(both.http, "/health/ready").status == 200


def active(gateway: Server, one: Hosted) -> float:
    """Requests that the gateway has there."""
    return total(gateway.http, "inflight_gateway_worker_active", f'worker="{one.server.grpc}"')


def answer(http: str, fields: dict[str, object]) -> str:
    """An undisturbed answer."""
    with closing(stream(http, COMPLETIONS, fields)) as opened:
        return text(opened.events())


def text(events: Iterator[str] | list[str]) -> str:
    """What completion events say; an error event fails."""
    said = [json.loads(event) for event in events if event != "[DONE]"]
    assert [event for event in said if "error" in event] == []
    return "".join(choice["text"] for event in said for choice in event["choices"])
