#!/usr/bin/env python3
"""How often a resumed request continues as it would have: the same tokens, the same log probabilities.

    python tools/measure_resume.py --requests 10000 --option batch_invariant=true
    python tools/measure_resume.py --requests 2000 --option backend=pytorch --option dtype=bfloat16
    python tools/measure_resume.py --device cuda --model CHECKPOINT --option dtype=float32

All requests run in one executor. Then each is cut after a random number of its tokens, and what is left runs
in a second executor, in another order, so that nothing is batched as it was. Prompts are random tokens; half
of the outputs are greedy, and half are drawn with penalties, each with another seed. Log probabilities are
compared up to the first token that differs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from inflight.executors.base import OutputConfig, Request, SamplingConfig
from inflight.executors.reference import create
from inflight.executors.reference.model.config import load_config
from inflight.launch.model import DEMO_DIRECTORY


@dataclass
class Answer:
    """What came of a request."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


def asked(client_id: int, draw: random.Random, vocab_size: int, arguments: argparse.Namespace) -> Request:
    """A request of either kind."""
    prompt = [draw.randrange(5, vocab_size) for _ in range(draw.randint(1, 2 * arguments.input))]
    sampling = SamplingConfig()
    if client_id % 2:
        sampling = SamplingConfig(
            top_p=0.95, seed=client_id, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.2
        )
    output = OutputConfig(return_log_probs=True)
    return Request(client_id, prompt, arguments.output, sampling_config=sampling, output_config=output)


def run(requests: list[Request], arguments: argparse.Namespace, options: dict[str, Any]) -> dict[int, Answer]:
    """The answers of a fresh executor, by client id."""
    executor = create(arguments.model, arguments.device, **options)
    started = time.perf_counter()
    answers = {one.client_id: Answer() for one in requests}
    executor.enqueue(requests)
    left = len(requests)
    while left:
        rows = executor.await_responses(10.0)
        if rows.errors:
            raise RuntimeError(str(rows.errors[0]))
        left -= sum(rows.finals)
        client_ids = np.frombuffer(rows.client_ids, "<u8").tolist()
        offsets = np.frombuffer(rows.token_offsets, "<u4")
        tokens, values = np.frombuffer(rows.token_ids, "<i4"), np.frombuffer(rows.log_probs, "<f4")
        # Every request asks for them: a value for each token.
        for row, client_id in enumerate(client_ids):
            own = slice(offsets[row], offsets[row + 1])
            answers[client_id].tokens += tokens[own].tolist()
            answers[client_id].log_probs += values[own].tolist()
    print(f"{len(requests)} requests took {time.perf_counter() - started:.1f} s", flush=True)
    executor.shutdown()
    return answers


def cut(requests: list[Request], answers: dict[int, Answer], draw: random.Random) -> list[Request]:
    """What is left of each, in another order."""
    parts = []
    for one in requests:
        tokens = answers[one.client_id].tokens
        parts.append(replace(one, generated=[tokens[: draw.randrange(len(tokens))]]))
    draw.shuffle(parts)
    return parts


def report(kind: str, parts: list[Request], whole: dict[int, Answer], rest: dict[int, Answer]) -> None:
    """Prints how many of ``parts`` are the same, and how far the others are."""
    texts = bits = 0
    after: list[int] = []
    error = 0.0
    for part in parts:
        count = len(part.generated[0] or ())
        before, now = whole[part.client_id], rest[part.client_id]
        tokens, values = before.tokens[count:], before.log_probs[count:]
        texts += now.tokens == tokens
        bits += (now.tokens, now.log_probs) == (tokens, values)
        pairs = list(zip(now.tokens, tokens, strict=False))
        alike = next((place for place, (one, other) in enumerate(pairs) if one != other), len(pairs))
        if now.tokens != tokens:
            after.append(alike)
        gaps = [abs(one - other) for one, other in zip(now.log_probs[:alike], values[:alike], strict=True)]
        error = max([error, *gaps])
    differ = f", they part after {statistics.median(after):.0f} more tokens (median)" if after else ""
    print(
        f"{kind}: the same tokens {100 * texts / len(parts):.2f} % of {len(parts)}{differ}; the same bits of "
        f"log probabilities too {100 * bits / len(parts):.2f} %, the largest difference {error:.2g}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=Path, default=DEMO_DIRECTORY, metavar="DIRECTORY", help="a checkpoint"
    )
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--input", type=int, default=32, help="tokens of a prompt, on average")
    parser.add_argument("--output", type=int, default=64, help="tokens of an output")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and cuts")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the executor")
    arguments = parser.parse_args()
    options: dict[str, Any] = {"max_queue_size": arguments.requests}
    for name, _, value in (option.partition("=") for option in arguments.option):
        options[name] = int(value) if value.isdecimal() else {"true": True, "false": False}.get(value, value)
    draw = random.Random(arguments.seed)
    vocab_size = load_config(arguments.model).vocab_size
    requests = [asked(one, draw, vocab_size, arguments) for one in range(arguments.requests)]
    whole = run(requests, arguments, options)
    parts = cut(requests, whole, draw)
    rest = run(parts, arguments, options)
    for place, kind in enumerate(("greedy", "drawn with penalties")):
        report(kind, [one for one in parts if one.client_id % 2 == place], whole, rest)


if __name__ == "__main__":
    main()
