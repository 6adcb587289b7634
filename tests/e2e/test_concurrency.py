"""Many requests at once: each gets its own answer, and none waits for another's size."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.http import post, stream
from support.servers import MODEL_NAME, Server, Start, start_gateway, start_worker, wait_ready

#: Where the two likeliest tokens are closer than this, batched arithmetic may choose the other.
CLEAR_MARGIN = 1e-3
STREAMS = 64
WORDS = ("Hello", "What", "is", "machine", "learning", "Tell", "me", "about", "words", "and", "numbers")


def question(index: int) -> dict[str, Any]:
    """Prompts of different lengths and contents."""
    words = [WORDS[(index * 7 + step * (index % 5 + 1)) % len(WORDS)] for step in range(1 + index % 9)]
    return {"messages": [{"role": "user", "content": " ".join(words)}], "max_tokens": 16, "temperature": 0}


def solo(server: Server, index: int) -> tuple[str, bool]:
    """The answer, and whether every token of it was a clear choice."""
    body = {"model": server.model, **question(index), "logprobs": True, "top_logprobs": 2}
    [choice] = post(server.http, "/v1/chat/completions", body).json()["choices"]
    margins = [
        token["top_logprobs"][0]["logprob"] - token["top_logprobs"][1]["logprob"]
        for token in choice["logprobs"]["content"]
    ]
    return choice["message"]["content"], all(margin > CLEAR_MARGIN for margin in margins)


def test_64_greedy_streams_equal_their_solo_answers(server: Server) -> None:
    alone = [solo(server, index) for index in range(STREAMS)]
    together = threading.Barrier(STREAMS)

    def streamed(index: int) -> str:
        together.wait(30)
        answer = stream(server.http, "/v1/chat/completions", {"model": server.model, **question(index)})
        text = "".join(
            choice["delta"].get("content", "") for chunk in answer.chunks() for choice in chunk["choices"]
        )
        answer.close()
        return text

    with ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(streamed, range(STREAMS)))
    compared = 0
    for index, (text, (expected, clear)) in enumerate(zip(answers, alone, strict=True)):
        if clear:
            assert text == expected, question(index)
            compared += 1
    # A model that is never sure would make this test say nothing.
    assert compared >= STREAMS * 3 // 4


def test_a_ten_megabyte_prompt_delays_no_other_stream(start: Start) -> None:
    # A model whose context holds it: elsewhere such a prompt is refused before any work is done.
    words = 2_000_000
    roomy = ("--max-seq-len=16000000", "--max-num-tokens=16000000", "--num-blocks=1000000")
    worker = start_worker(start, "--step-us=20000", "--prefill-us-per-token=0", *roomy)
    address = wait_ready(start_gateway(start, [worker]))
    body = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 100_000, "ignore_eos": True}
    answer = stream(address, "/v1/completions", body)
    events = answer.events()
    next(events)
    large = json.dumps({**body, "prompt": "word " * words, "max_tokens": 1}).encode()
    meanwhile = 0
    with ThreadPoolExecutor() as pool:
        pending = pool.submit(post, address, "/v1/completions", large)
        while not pending.done():
            next(events)
            meanwhile += 1
    answer.close()
    response = pending.result()
    assert response.status == 200, response
    assert response.json()["usage"]["prompt_tokens"] >= words
    # Events came while the large prompt was worked on: had it held the stream up, none would have.
    assert meanwhile > 3


def test_many_requests_on_kept_alive_connections(fast: Server) -> None:
    def ask(index: int) -> tuple[int, int]:
        answer = client.completions.create(
            model=fast.model, prompt="Hi " * (index % 7 + 1), max_tokens=index % 30 + 1
        )
        assert answer.usage is not None
        return index % 30 + 1, answer.usage.completion_tokens

    with fast.client() as client, ThreadPoolExecutor(16) as pool:
        counts = list(pool.map(ask, range(300)))
    assert all(asked == got for asked, got in counts)
