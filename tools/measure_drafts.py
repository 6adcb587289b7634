#!/usr/bin/env python3
"""Tokens per second of the reference executor with and without prompt lookup, on text that repeats itself.

    python tools/measure_drafts.py --shape 8b --batch 1 --batch 16 --batch 64 --guesses 3 --guesses 7

Weights are random, but for those that decide what is said: each of 64 tokens is followed by its neighbor with
a probability, and by another of the 64 otherwise. So a text repeats as much as asked for, whatever the shape,
and every iteration costs what it costs with any weights. A run is from the first request handed in to the
last token; the best of ``--repeat``, each with other prompts.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from inflight.executors.base import Executor, Request
from inflight.executors.reference import create
from shapes import SHAPES, write_config

#: Tokens that are said, and what follows each where its neighbor does not: (31 t + 7) modulo 64.
_TOKENS, _FACTOR, _SHIFT = 64, 31, 7
#: The logit of a token's neighbor: far above those of all that is not said, small enough for 16 bits.
_LOGIT = 12.0


def teach(executor: Any, follows: float) -> None:
    """Makes neighbors follow with the probability ``follows``, in place: CUDA graphs keep addresses."""
    import torch

    with torch.inference_mode():
        model = executor._engine._runner._steps._model
        for layer in model._layers:
            layer.output.zero_()
            layer.down.zero_()
        ends = model._ends
        ends.norm.fill_(1.0)
        said = torch.arange(_TOKENS, device=model.device)
        own = ends.embedding[:_TOKENS].float()
        # What a token adds to the logit of whoever follows it: its own direction, at this length.
        own *= _LOGIT / (own.norm(dim=1, keepdim=True) * math.sqrt(own.shape[1]))
        head = torch.zeros_like(own)
        head[(said + 1) % _TOKENS] += own
        less = 1.0 - math.log(follows / (1.0 - follows)) / _LOGIT if follows < 1.0 else 0.0
        head.index_add_(0, (_FACTOR * said + _SHIFT) % _TOKENS, less * own)
        ends.head.zero_()
        ends.head[:_TOKENS] = head.to(ends.head.dtype)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)


def text(draw: random.Random, follows: float, tokens: int) -> list[int]:
    """A beginning that the model might have said."""
    said = [draw.randrange(_TOKENS)]
    while len(said) < tokens:
        last = said[-1]
        jumps = draw.random() >= follows
        said.append((_FACTOR * last + _SHIFT if jumps else last + 1) % _TOKENS)
    return said


def run(
    executor: Executor, batch: int, follows: float, outputs: int, inputs: int, turn: int
) -> tuple[float, dict[str, int]]:
    """Seconds until the last token, and what the statistics say of guesses."""
    draw = random.Random(f"{batch} {follows} {turn}")
    requests = [Request(one, text(draw, follows, inputs), outputs) for one in range(batch)]
    for seed, request in enumerate(requests):
        if follows < 1.0:
            request.sampling_config.seed = seed
            request.sampling_config.top_k = 2
            request.sampling_config.top_p = 1.0
        else:
            request.sampling_config.top_k = 1
    executor.stats()
    left, tokens = batch, 0
    sums = {"numDraftTokens": 0, "numAcceptedTokens": 0, "iterations": 0}
    started = time.perf_counter()
    executor.enqueue(requests)
    while left:
        rows = executor.await_responses(10.0)
        left -= sum(rows.finals)
        tokens += len(rows.token_ids) // 4
    seconds = time.perf_counter() - started
    if tokens != batch * outputs:
        raise RuntimeError(f"{tokens} tokens came and {batch * outputs} were asked for")
    for one in executor.stats():
        sums["iterations"] += 1
        for name, value in one.get("specDecodingStats", {}).items():
            if name in sums:
                sums[name] += value
    return seconds, sums


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="small")
    parser.add_argument("--batch", action="append", type=int, help="requests at once; default: 1, 16, 64")
    parser.add_argument(
        "--guesses", action="append", type=int, help="`max_draft_len`; each is next to none; default: 4"
    )
    parser.add_argument(
        "--follows", action="append", type=float, help="how likely neighbors are; default: 1, 0.8, 0.5"
    )
    parser.add_argument("--input", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=256, help="tokens of an output")
    parser.add_argument("--repeat", type=int, default=2, help="runs, of which the best counts")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    arguments = parser.parse_args()
    batches = arguments.batch or [1, 16, 64]
    without: dict[tuple[int, float], float] = {}
    for guesses in [0, *(arguments.guesses or [4])]:
        options: dict[str, Any] = {"max_draft_len": guesses} if guesses else {}
        # No more than the runs need: the next executor may come before all of this one's memory is free.
        tokens = 2 * max(batches) * (arguments.input + arguments.output)
        with tempfile.TemporaryDirectory() as directory:
            write_config(arguments.shape, Path(directory))
            executor = create(
                directory,
                arguments.device,
                load_format="dummy",
                backend="pytorch",
                max_batch_size=max(batches),
                enable_kv_cache_reuse=False,
                max_tokens_in_paged_kv_cache=tokens,
                **options,
            )
        for follows in arguments.follows or [1.0, 0.8, 0.5]:
            teach(executor, follows)
            for batch in batches:
                run(executor, batch, follows, 16, arguments.input, 0)
                runs = [
                    run(executor, batch, follows, arguments.output, arguments.input, turn)
                    for turn in range(1, 1 + arguments.repeat)
                ]
                seconds, sums = min(runs, key=lambda one: one[0])
                speed = batch * arguments.output / seconds
                first = without.setdefault((batch, follows), speed)
                held = sums["numAcceptedTokens"] / max(1, sums["numDraftTokens"])
                print(
                    f"{arguments.shape}: neighbors {follows:.2f}: batch {batch}: {guesses} guesses: "
                    f"{speed:,.0f} tokens/s, {speed / first:.2f} of none, {held:.2f} of "
                    f"{sums['numDraftTokens']:,} guesses held, {sums['iterations']} iterations",
                    flush=True,
                )
        executor.shutdown()


if __name__ == "__main__":
    main()
