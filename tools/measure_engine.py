#!/usr/bin/env python3
"""What the reference executor's engine costs an iteration in Python, without a model and without a GPU.

    python tools/measure_engine.py --sequences 256 --sequences 1024

A runner answers at once. `steady` is an iteration in which all sequences generate, with its rows packed;
`closed loop` one where a request of 128 tokens in and 128 out comes back as another ends. CPU time of the
thread, the best of five; functions called, those of C included.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np

from inflight.executors.base import Request
from inflight.executors.reference.core.admission import Bounds
from inflight.executors.reference.core.blocks import BlockPool
from inflight.executors.reference.core.drafts import Checks
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.reuse import ReuseIndex
from inflight.executors.reference.core.rows import pack
from inflight.executors.reference.core.runner import Outcome, Pending, Work
from inflight.executors.reference.core.sampler import SamplerState
from inflight.executors.reference.core.scheduler import Limits

TOKENS, BLOCKS, TOKENS_PER_BLOCK, VOCABULARY = 128, 40_000, 32, 32_000
ITERATIONS = 100


class InstantRunner:
    """Chooses token 7 always."""

    depth = 2

    def follows(self, _: SamplerState) -> bool:
        return False

    def checks(self, _: SamplerState) -> Checks:
        return Checks.NOT

    def launch(self, work: Work) -> Pending:
        return Launched(len(work.choosing()))

    def choose(self, pending: Pending) -> None:
        raise RuntimeError(f"greedy requests need no tokens before: {pending}")

    def collect(self, pending: Pending) -> Outcome:
        assert isinstance(pending, Launched)
        return Outcome([7] * pending.rows)


class Launched(Pending):
    """How many tokens an iteration gives."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def engine(sequences: int, *, reuse: bool) -> Engine:
    """As `inflight serve` makes it for a small model."""
    index = ReuseIndex(TOKENS_PER_BLOCK) if reuse else None
    bounds = Bounds(VOCABULARY, 4096, BLOCKS, TOKENS_PER_BLOCK, 4 * sequences, reuses_blocks=reuse)
    return Engine(
        InstantRunner(), BlockPool(BLOCKS, TOKENS_PER_BLOCK, index), Limits(sequences, 8192), bounds
    )


class Clients:
    """Requests of random prompts over one engine."""

    def __init__(self, subject: Engine) -> None:
        self._subject, self._random, self._ids = subject, np.random.default_rng(0), 0

    def ask(self, count: int, tokens: int | None = None) -> None:
        """Hands in requests; without ``tokens`` they end one after the other."""
        requests = []
        for _ in range(count):
            prompt = self._random.integers(0, VOCABULARY, TOKENS).tolist()
            most = int(self._random.integers(1, TOKENS)) if tokens is None else tokens
            requests.append(Request(self._ids, prompt, most))
            self._ids += 1
        self._subject.add(requests, Iteration())

    def step(self) -> int:
        """One iteration with its rows packed; returns how many sequences ended."""
        iteration = Iteration()
        self._subject.step(iteration)
        pack(iteration.output)
        return iteration.completed


def steady(sequences: int, *, reuse: bool) -> tuple[float, int]:
    """Microseconds and calls of an iteration in which nobody comes or goes."""
    clients = Clients(engine(sequences, reuse=reuse))
    clients.ask(sequences, 7 * ITERATIONS)
    for _ in range(60):
        clients.step()
    best = min(_microseconds(clients, replace=False) for _ in range(5))
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    clients.step()
    sys.setprofile(None)
    return best, calls


def closed_loop(sequences: int, *, reuse: bool) -> float:
    """Microseconds of an iteration in which requests end and others come."""
    clients = Clients(engine(sequences, reuse=reuse))
    clients.ask(sequences)
    _microseconds(clients, replace=True)
    return min(_microseconds(clients, replace=True) for _ in range(5))


def _microseconds(clients: Clients, *, replace: bool) -> float:
    started = time.thread_time()
    for _ in range(ITERATIONS):
        ended = clients.step()
        if replace and ended:
            clients.ask(ended, TOKENS)
    return (time.thread_time() - started) / ITERATIONS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", action="append", type=int, help="in flight; default: 256 and 1024")
    parser.add_argument("--no-reuse", action="store_true", help="without `enable_kv_cache_reuse`")
    arguments = parser.parse_args()
    for sequences in arguments.sequences or [256, 1024]:
        microseconds, calls = steady(sequences, reuse=not arguments.no_reuse)
        loop = closed_loop(sequences, reuse=not arguments.no_reuse)
        print(
            f"{sequences} sequences: steady {microseconds:.0f} us and {calls:,} calls, "
            f"closed loop {loop:.0f} us an iteration"
        )


if __name__ == "__main__":
    main()
