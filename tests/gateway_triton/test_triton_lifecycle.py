"""Clients that leave, many at once, models that come and go, and a Triton that dies."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from support import real_triton
from support.fronted import (
    CHATS,
    COMPLETIONS,
    CREATED,
    DIALECTS,
    LONG,
    PROMPTS,
    Hosted,
    Told,
    ask,
    names,
    served,
    shown,
)
from support.http import get, post, stream
from support.metrics import active_requests, total
from support.processes import wait_until
from support.servers import Server


@pytest.mark.parametrize("model", ["tensorrt_llm", "tensorrt_llm_bls", "llmapi"])
def test_a_client_that_leaves_ends_the_work(gateway: Server, triton: Hosted, model: str) -> None:
    wait_until("Triton is idle", lambda: active_requests(gateway.metrics) == 0)
    answer = stream(gateway.http, COMPLETIONS, {"model": model, **LONG}, {"x-request-id": f"left-{model}"})
    events = answer.events()
    for _ in range(3):
        next(events)
    answer.close()
    wait_until("the model has ended it", lambda: cancelled(triton.server, f"left-{model}"))
    wait_until("Triton is idle", lambda: active_requests(gateway.metrics) == 0, 5)
    wait_until("the gateway is idle", lambda: total(gateway.http, "inflight_gateway_active_requests") == 0)


def cancelled(triton: real_triton.Triton, request_id: str) -> bool:
    """Whether a model has logged that it gave the request up. The gateway adds to the client's id."""
    log = triton.log.read_text(errors="replace")
    return re.search(rf"request `{request_id}[^`]*` is cancelled: its client left", log) is not None


def test_50_requests_at_once_in_all_dialects_are_exact(gateway: Server, server: Server) -> None:
    questions = [*PROMPTS[:3], *CHATS]
    expected = [served(server, **fields) for fields in questions]

    def asked(index: int) -> Told:
        fields = questions[index % len(questions)]
        return ask(gateway, DIALECTS[index % len(DIALECTS)], index % 3 == 0, **fields)

    def shown_of(index: int) -> Told:
        return shown(DIALECTS[index % len(DIALECTS)], expected[index % len(questions)])

    with ThreadPoolExecutor(50) as pool:
        for index, told in enumerate(pool.map(asked, range(50))):
            assert told == shown_of(index), index


def test_models_come_and_go(gateway: Server, triton: Hosted, server: Server) -> None:
    def tell(what: str, model: str) -> int:
        return post(triton.server.http, f"/v2/repository/models/{model}/{what}", {}).status

    # From here on this Triton calls itself unready as a whole.
    assert tell("load", "broken") == 400
    assert get(triton.server.http, "/v2/health/ready").status == 400
    assert tell("unload", "llmapi") == 200
    wait_until("it is not served", lambda: names(gateway) == sorted(CREATED))
    assert post(gateway.http, COMPLETIONS, {"model": "llmapi", "prompt": "Hi"}).status == 404
    assert get(gateway.http, "/health/ready").status == 200
    assert tell("load", "llmapi") == 200
    wait_until("it is served", lambda: names(gateway) == sorted(DIALECTS))
    for model in DIALECTS:
        assert ask(gateway, model, False, **PROMPTS[0]) == served(server, **PROMPTS[0])


def test_a_server_that_dies_is_an_error_and_comes_back(
    gateway: Server, triton: Hosted, server: Server
) -> None:
    answer = stream(gateway.http, COMPLETIONS, {"model": "tensorrt_llm", **LONG})
    events = answer.events()
    for _ in range(3):
        next(events)
    triton.server.kill()
    *_, error, done = events
    answer.close()
    assert done == "[DONE]"
    assert json.loads(error)["error"]["message"]
    for state in ("at once", "when it is known"):
        refused = post(gateway.http, COMPLETIONS, {"model": "ensemble", **PROMPTS[0]})
        assert refused.status == 503, state
        assert "retry-after" in refused.headers
        wait_until("it is known", lambda: get(gateway.http, "/health/ready").status == 503)
    with pytest.raises(openai.InternalServerError):
        ask(gateway, "llmapi", False, **PROMPTS[0])
    triton.start_again()
    wait_until("it is back", lambda: get(gateway.http, "/health/ready").status == 200)
    for model in DIALECTS:
        assert ask(gateway, model, True, **CHATS[0]) == served(server, **CHATS[0])
