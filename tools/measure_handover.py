#!/usr/bin/env python3
"""What it costs when prompts come from another worker: the time to fetch, and what running streams notice.

    python tools/measure_handover.py --shape 8b --prompt 32768 --prompts 8 --streams 16
    python tools/measure_handover.py --devices 0,1 --option cache_transceiver_backend=tcp

Two executors in two processes, on one GPU or on two, with random weights. The first computes a prompt of
random tokens and holds its blocks; then it rests. Only then the second is asked to generate, so that what its
streams notice is the transfer and not a shared GPU. Times are those of the executor alone, without gateway
and gRPC. `own` is the time from the request to the first token that the second worker computed; `added` is
that without the transfer, and `step` the time between the tokens that follow.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from shapes import SHAPES

#: Tokens that follow a prompt.
_ANSWER = 16
#: Prompts of the streams.
_STREAM_PROMPT = 512
#: Seconds before and after a transfer in which streams are watched.
_MARGIN_S = 0.2


def tensors(kind: str, params: bytes = b"") -> list[Any]:
    """The tensors of a request type."""
    from inflight.executors.base import NamedTensor

    text = len(kind).to_bytes(4, "little") + kind.encode()
    found = [NamedTensor("request_type", "BYTES", (1,), text)]
    return [*found, NamedTensor("context_phase_params", "UINT8", (len(params),), params)] if params else found


class Worker:
    """One executor, and a thread that notes when rows came."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from inflight.executors.reference import create

        self.executor = create(model, **options)
        self.changed = threading.Condition()
        #: By client id: when each row came, its tokens, whether it was the last.
        self.rows: dict[int, list[float]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.final: set[int] = set()
        self.params: dict[int, bytes] = {}
        self._next = 1
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            batch = self.executor.await_responses(1.0)
            now = time.perf_counter()
            ids = np.frombuffer(batch.client_ids, "<u8").tolist()
            offsets = np.frombuffer(batch.token_offsets, "<u4").tolist()
            tokens = np.frombuffer(batch.token_ids, "<i4").tolist()
            if batch.errors:
                print("error", batch.errors, flush=True)
            with self.changed:
                for row, client_id in enumerate(ids):
                    self.rows.setdefault(client_id, []).append(now)
                    self.tokens.setdefault(client_id, []).extend(tokens[offsets[row] : offsets[row + 1]])
                    if batch.finals[row]:
                        self.final.add(client_id)
                for row, tensor in batch.tensors:
                    self.params[ids[row]] = tensor.data
                self.changed.notify_all()

    def send(self, prompt: list[int], max_tokens: int, own: list[Any] | None = None) -> int:
        from inflight.executors.base import Request

        client_id, self._next = self._next, self._next + 1
        self.executor.enqueue([Request(client_id, prompt, max_tokens, tensors=own or [])])
        return client_id

    def wait(self, is_so: Callable[[], bool]) -> None:
        with self.changed:
            if not self.changed.wait_for(is_so, 120):
                raise TimeoutError

    def rows_of(self, client_id: int, count: int) -> list[float]:
        """When the first rows came, once they are there."""
        self.wait(lambda: len(self.rows.get(client_id, ())) >= count or client_id in self.final)
        return self.rows[client_id]


def context_worker(line: Connection, model: str, options: dict[str, Any], device: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = device
    worker = Worker(model, options)
    line.send("ready")
    while (prompt := line.recv()) is not None:
        started = time.perf_counter()
        client_id = worker.send(prompt, _ANSWER, tensors("context_only"))
        worker.wait(lambda: client_id in worker.final)  # noqa: B023
        line.send((worker.params[client_id], time.perf_counter() - started))


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def described(name: str, values: list[float]) -> str:
    shown = [f"{percentile(values, share) * 1e3:.2f}" for share in (0.5, 0.9, 0.99, 1)]
    return f"{name}: n={len(values)} p50/p90/p99/max {'/'.join(shown)} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--prompt", type=int, default=32768)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--devices", default="0,0", help="GPUs of the two workers")
    parser.add_argument("--no-whole", action="store_true", help="compute no whole prompts to compare")
    parser.add_argument("--option", action="append", default=[], help="NAME=VALUE of both executors")
    arguments = parser.parse_args()
    draw = random.Random(1)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rms_norm_eps": 1e-5,
    }
    config |= SHAPES[arguments.shape] | {"max_position_embeddings": arguments.prompt + 8192}
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(config))
        measure(arguments, directory, draw, config["vocab_size"])


def measure(arguments: argparse.Namespace, model: str, draw: random.Random, vocab: int) -> None:
    options: dict[str, Any] = {
        "device": "cuda",
        "load_format": "dummy",
        "cache_transceiver_backend": "default",
        "kv_transfer_timeout_ms": 20_000,
        "max_batch_size": 64,
        "max_tokens_in_paged_kv_cache": 3 * arguments.prompt + arguments.streams * 6000,
        **dict(one.split("=", 1) for one in arguments.option),
    }
    first, second = arguments.devices.split(",")
    spawn = multiprocessing.get_context("spawn")
    line, other = spawn.Pipe()
    child = spawn.Process(target=context_worker, args=(other, model, options, first), daemon=True)
    child.start()
    line.recv()
    os.environ["CUDA_VISIBLE_DEVICES"] = second
    worker = Worker(model, options)
    handover = worker.executor._engine.handover  # type: ignore[attr-defined]
    store = handover._store
    size = -(-arguments.prompt // 32) * store.block_bytes
    print(
        f"{arguments.shape}: {size / 1e9:.2f} GB a prompt, {store.block_bytes} bytes a block of 32",
        flush=True,
    )

    def random_prompt(length: int) -> list[int]:
        return [draw.randrange(5, vocab) for _ in range(length)]

    def compute(prompt: list[int]) -> tuple[bytes, float]:
        line.send(prompt)
        params, seconds = line.recv()
        return params, seconds

    begun: list[float] = []
    begin = handover.fetches.begin

    def note(receiver: Any, fetch: Any) -> None:
        begun.append(time.perf_counter())
        begin(receiver, fetch)

    handover.fetches.begin = note

    def fetched(prompt: list[int], params: bytes) -> tuple[float, ...]:
        """When it was asked; seconds to its own first token, of the transfer, of both without, of these what
        came before the transfer, and of a step after them."""
        before = handover.transfers.seconds
        started = time.perf_counter()
        client_id = worker.send(prompt, _ANSWER, tensors("generation_only", params))
        own = worker.rows_of(client_id, 2)[1] - started
        transfer = handover.transfers.seconds - before
        worker.wait(lambda: client_id in worker.final)
        steps = [later - earlier for earlier, later in itertools.pairwise(worker.rows[client_id][1:])]
        return started, own, transfer, own - transfer, begun[-1] - started, statistics.median(steps)

    def gaps(streams: list[int], windows: list[tuple[float, float]]) -> list[float]:
        found = []
        for one in streams:
            times = worker.rows[one]
            for earlier, later in itertools.pairwise(times):
                if any(start <= later <= stop for start, stop in windows):
                    found.append(later - earlier)
        return found

    def start_streams() -> list[int]:
        streams = [worker.send(random_prompt(_STREAM_PROMPT), 5000) for _ in range(arguments.streams)]
        for one in streams:
            worker.rows_of(one, 20)
        return streams

    def end(streams: list[int]) -> None:
        worker.executor.cancel(streams)
        worker.wait(lambda: all(one in worker.final for one in streams))

    # Once for what is made when it is first needed.
    prompt = random_prompt(arguments.prompt)
    fetched(prompt, compute(prompt)[0])
    alone, contexts = [], []
    for _ in range(arguments.prompts):
        prompt = random_prompt(arguments.prompt)
        params, seconds = compute(prompt)
        contexts.append(seconds)
        alone.append(fetched(prompt, params))
    print(described("context phase", contexts))
    print(described("alone, own", [one[1] for one in alone]))
    print(described("alone, transfer", [one[2] for one in alone]))
    print(described("alone, added", [one[3] for one in alone]))
    print(described("alone, of these before", [one[4] for one in alone]))
    print(described("alone, step", [one[5] for one in alone]))
    print(f"alone: {size / statistics.median(one[2] for one in alone) / 1e9:.2f} GB/s", flush=True)

    streams = start_streams()
    time.sleep(1)
    start = time.perf_counter()
    time.sleep(4)
    quiet = gaps(streams, [(start, time.perf_counter())])
    print(described("streams, undisturbed", quiet), flush=True)
    end(streams)
    before, comes, follows, busy = [], [], [], []
    streams = start_streams()
    for _ in range(arguments.prompts):
        prompt = random_prompt(arguments.prompt)
        params, _ = compute(prompt)
        time.sleep(2 * _MARGIN_S)
        told = fetched(prompt, params)
        busy.append(told)
        done = told[0] + told[4] + told[2]
        before.append((told[0] - 1.5 * _MARGIN_S, told[0]))
        comes.append((told[0], done))
        follows.append((done, told[0] + told[1] + _MARGIN_S))
    # Compared with the same streams a moment before: their contexts grow, and with them every iteration.
    same, noticed, after = (gaps(streams, windows) for windows in (before, comes, follows))
    end(streams)
    print(described("streams, just before", same))
    print(described("streams, while blocks come", noticed))
    print(described("streams, next to the new answer", after))
    print(f"p99 is {percentile(noticed, 0.99) / percentile(same, 0.99):.2f} times that just before")
    print(described("with streams, own", [one[1] for one in busy]))
    print(described("with streams, transfer", [one[2] for one in busy]))
    print(described("with streams, added", [one[3] for one in busy]))
    print(described("with streams, of these before", [one[4] for one in busy]))
    print(described("with streams, step", [one[5] for one in busy]))
    print(f"fallbacks: {dict(handover.transfers.fallbacks)}", flush=True)

    windows = []
    streams = start_streams()
    for _ in range(0 if arguments.no_whole else min(3, arguments.prompts)):
        start = time.perf_counter()
        client_id = worker.send(random_prompt(arguments.prompt), _ANSWER)
        windows.append((start, worker.rows_of(client_id, 1)[0] + _MARGIN_S))
    if windows:
        print(described("streams, while prompts are computed here", gaps(streams, windows)))
        print(described("whole, first token", [stop - start - _MARGIN_S for start, stop in windows]))
    end(streams)
    line.send(None)
    worker.executor.shutdown()
    child.join(10)


if __name__ == "__main__":
    main()
