"""Measures what reuse of KV cache blocks saves: the first token of a prompt that was seen before, over that
of one that was not, with the reference executor.

    python tools/measure_hot_prompt.py [MODEL_DIR]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

import inflight
from inflight.executors.base import Executor, Request
from inflight.executors.reference import create

ROUNDS = 9


def first_token_ms(executor: Executor, client_id: int, prompt: list[int]) -> float:
    """Milliseconds to a request's first token; waits for its end."""
    started, first, final = time.perf_counter(), 0.0, False
    executor.enqueue([Request(client_id, prompt, 4)])
    while not final:
        batch = executor.await_responses(1.0)
        if batch.token_ids and not first:
            first = time.perf_counter() - started
        final = any(batch.finals)
    return 1000 * first


def main() -> None:
    """Prints the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    demo = next((Path(inflight.__file__).parent / "demo").rglob("config.json")).parent
    parser.add_argument("model_dir", nargs="?", type=Path, default=demo)
    executor = create(parser.parse_args().model_dir)
    info = executor.info()
    draw, tokens = random.Random(1), info.max_seq_len - 20
    cold, hot = [], []
    for number in range(ROUNDS):
        prompt = [draw.randrange(3, info.vocab_size) for _ in range(tokens)]
        cold.append(first_token_ms(executor, 2 * number, prompt))
        hot.append(first_token_ms(executor, 2 * number + 1, prompt))
    executor.shutdown()
    before, after = statistics.median(cold), statistics.median(hot)
    print(f"{tokens} tokens: cold {before:.1f} ms, hot {after:.1f} ms, ratio {after / before:.4f}")


if __name__ == "__main__":
    main()
