#!/usr/bin/env python3
"""Whether NVIDIA Dynamo's indexer knows from a worker's published events what the worker has cached.

    python -m venv dynamo && dynamo/bin/pip install ai-dynamo-runtime==1.6.1
    python tools/compare_dynamo_indexer.py --python dynamo/bin/python --command inflight

A worker of the simulated executor with a small cache answers prompts that begin alike, some of them
salted. Before each, Dynamo's indexer is asked how many of its tokens are cached; afterwards the worker's
answer says how many were. The indexer listens from the beginning, and once more from the middle on: then it
asks for what it missed. Owns the prompts and the comparison; needs `tritonclient`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton

MODEL = "compared"
BLOCK_TOKENS = 16
BLOCKS = 200
SALTS = ("", "tenant", "équipe")
PATIENCE_S = 30.0


@contextmanager
def running(command: list[str], log: Path) -> Iterator[Callable[[], str]]:
    """A process; what it has written so far."""
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
        try:
            yield log.read_text
        finally:
            process.terminate()


def wait_for(what: str, ask: Callable[[], Any], log: Callable[[], str]) -> Any:
    """What `ask` returns once it returns something."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            if found := ask():
                return found
        except (OSError, triton.InferenceServerException):
            pass
        time.sleep(0.05)
    raise SystemExit(f"waited {PATIENCE_S:.0f} s for {what}:\n{log()}")


class Indexer:
    """Dynamo's, over HTTP."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer to a request."""
        request = urllib.request.Request(
            self._address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def listen(self, instance: int, events: str, past: str) -> bool:
        """Follows a worker's events under a number. Returns whether it does."""
        worker = {"instance_id": instance, "endpoint": f"tcp://{events}", "replay_endpoint": f"tcp://{past}"}
        answer = self.post("/register", {**worker, "model_name": MODEL, "block_size": BLOCK_TOKENS})
        return bool(answer["status"] == "ok")

    def cached(self, tokens: list[int], salt: str) -> dict[str, int]:
        """How many of a prompt's tokens are cached, by what each number has heard."""
        body: dict[str, Any] = {"model_name": MODEL, "token_ids": tokens}
        if salt:
            body["cache_salt"] = salt
        scores = self.post("/query", body)["scores"]
        return {instance: ranks["0"] for instance, ranks in scores.items()}


def ask(client: triton.InferenceServerClient, tokens: list[int], salt: str) -> int:
    """How many of a prompt's tokens the worker had cached."""

    def tensor(name: str, values: Any, kind: str) -> triton.InferInput:
        made = triton.InferInput(name, list(np.shape(values)), kind)
        made.set_data_from_numpy(np.array(values, np.object_ if kind == "BYTES" else np.int32))
        return made

    inputs = [
        tensor("input_ids", [tokens], "INT32"),
        tensor("input_lengths", [[len(tokens)]], "INT32"),
        tensor("request_output_len", [[1]], "INT32"),
    ]
    if salt:
        inputs.append(tensor("inflight_cache_salt", [[salt]], "BYTES"))
    wanted = [triton.InferRequestedOutput("inflight_cached_tokens")]
    answer = client.infer("tensorrt_llm", inputs, outputs=wanted)
    return int(answer.as_numpy("inflight_cached_tokens").ravel()[0])


def prompts(count: int, seed: int) -> Iterator[tuple[list[int], str]]:
    """Prompts of one of twelve documents, cut and continued at random, each with a salt."""
    draw = random.Random(seed)
    documents = [[draw.randrange(2000) for _ in range(600)] for _ in range(12)]
    for _ in range(count):
        beginning = draw.choice(documents)[: draw.randrange(1, 600)]
        end = [draw.randrange(2000) for _ in range(draw.randrange(40))]
        yield beginning + end, draw.choice(SALTS)


def main() -> None:
    """Prints how often they agreed; ends with 1 if they ever did not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="one that has `ai-dynamo-runtime`")
    parser.add_argument("--command", default="inflight")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--port", type=int, default=28_090, help="of the indexer")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    worker = [*shlex.split(options.command), "worker", "--executor=simulated", "--enable-kv-cache-reuse"]
    worker += [f"--tokens-per-block={BLOCK_TOKENS}", f"--num-blocks={BLOCKS}", "--step-us=0"]
    worker += ["--grpc-port=0", "--metrics-port=0", "--kv-events-port=0", "--kv-events-replay-port=0"]
    indexer = [
        options.python,
        "-m",
        "dynamo.indexer",
        f"--block-size={BLOCK_TOKENS}",
        f"--port={options.port}",
    ]
    with (
        tempfile.TemporaryDirectory() as scratch,
        running(worker, Path(scratch) / "worker") as worker_log,
        running(indexer, Path(scratch) / "indexer") as indexer_log,
    ):
        wrong = compare(options, worker_log, indexer_log)
    sys.exit(int(wrong > 0))


def compare(
    options: argparse.Namespace, worker_log: Callable[[], str], indexer_log: Callable[[], str]
) -> int:
    """How often they did not agree."""
    announced = r"(?s)grpc://(\S+).*events on tcp://(\S+).*missed events on tcp://(\S+)"
    found = wait_for("the worker's ports", lambda: re.search(announced, worker_log()), worker_log)
    address, events, past = found.groups()
    client = triton.InferenceServerClient(address)
    wait_for("the worker", client.is_server_ready, worker_log)
    dynamo = Indexer(options.port)
    wait_for("the indexer", lambda: dynamo.listen(1, events, past), indexer_log)
    counts = dict.fromkeys(("asked", "cached", "wrong", "late wrong"), 0)
    for number, (tokens, salt) in enumerate(prompts(options.requests, options.seed)):
        if number == options.requests // 2:
            dynamo.listen(2, events, past)
        # A batch is published 10 ms after the one before.
        time.sleep(0.05)
        known = dynamo.cached(tokens, salt)
        has = ask(client, tokens, salt)
        # An executor computes at least the last token.
        expected = min(known.get("1", 0), (len(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
        counts["asked"] += 1
        counts["cached"] += has > 0
        counts["wrong"] += has != expected
        # It asks for what it missed with the first event that it hears.
        counts["late wrong"] += number > options.requests // 2 + 10 and known.get("2", 0) != known.get("1", 0)
    print(json.dumps(counts))
    return counts["wrong"] + counts["late wrong"]


if __name__ == "__main__":
    main()
