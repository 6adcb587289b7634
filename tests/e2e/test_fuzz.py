"""Bodies that no one would send, many of them: the answer is 200 or a 4xx with the envelope, never a 5xx,
and the processes live on.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from support.http import get, post
from support.metrics import active_requests
from support.processes import wait_until
from support.servers import Server

#: Seeds, so that a failure can be had again.
SEEDS = range(6)
BODIES_PER_SEED = 60

VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    2,
    0.5,
    1e308,
    -1e-308,
    2**31,
    2**63,
    -(2**63),
    10**30,
    "",
    "x",
    "none",
    "\x00",
    "😀" * 50,
    "<|im_end|>",
    "{{ messages }}{% for %}",
    [],
    [None],
    [0],
    [-1],
    [[]],
    [[0, 1]],
    ["", ""],
    ["a", 1],
    [{}],
    {},
    {"0": 1},
    {"-1": "x"},
    {"type": "text"},
    {"type": "text", "text": "x"},
    {"role": "user", "content": "x"},
    {"include_usage": True},
    [{"role": "user", "content": "x"}],
    [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}],
    [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}],
]

NAMES = """
model messages prompt max_tokens max_completion_tokens temperature top_p n stop seed presence_penalty
frequency_penalty logit_bias logprobs top_logprobs echo best_of stream stream_options user top_k min_p
repetition_penalty min_tokens ignore_eos stop_token_ids skip_special_tokens tools tool_choice functions
function_call response_format structured_outputs guided_json guided_choice bad_words num_beams modalities
audio suffix metadata store service_tier unknown
""".split()  # noqa: SIM905 -- one name a line would hide the rest of the file


def body(rng: random.Random, model: str, path: str) -> bytes:
    """A valid body with some fields replaced, or with some bytes changed."""
    made: dict[str, Any] = {"model": model, "max_tokens": 3}
    if path.endswith("chat/completions"):
        made["messages"] = [{"role": "user", "content": "Hi"}]
    else:
        made["prompt"] = "Hi"
    for _ in range(rng.randint(0, 4)):
        made[rng.choice(NAMES)] = rng.choice(VALUES)
    encoded = bytearray(json.dumps(made, ensure_ascii=rng.random() < 0.5).encode())
    if rng.random() < 0.4:
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(encoded))
            match rng.randrange(3):
                case 0:
                    encoded[place] = rng.randrange(256)
                case 1:
                    del encoded[place:]
                    encoded += b"}"
                case _:
                    encoded[place:place] = rng.choice([b'"', b"{", b"[", b"\\", b",", b"\xff", b"1e999"])
    return bytes(encoded)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_no_body_is_the_server_s_fault(fast: Server, path: str, seed: int) -> None:
    rng = random.Random(seed)
    statuses = set()
    for _ in range(BODIES_PER_SEED):
        sent = body(rng, fast.model, path)
        response = post(fast.http, path, sent)
        statuses.add(response.status)
        if response.status != 200:
            assert response.status in (400, 404), (sent, response)
            error = response.error
            assert error["type"] == "invalid_request_error", (sent, error)
            assert len(error["message"]) < 2000, (sent, error)
    # A mix that is always refused, or never, would test little.
    assert statuses >= {200, 400}
    assert get(fast.http, "/health/ready").status == 200
    wait_until("the executor is idle", lambda: active_requests(fast.metrics) == 0)
