#!/usr/bin/env python3
"""The loads of `real_loads.py` on the reference executor alone: no gateway, no worker, no connection.

    python tools/measure_loads.py --shape 8b --load "256 streams" --traces DIRECTORY \\
        --option max_prompt_ms=50 --option max_batch_size=1024

Rows count when they come out of the executor. So it compares settings of the executor where no server runs;
beside a client's times those of the network and the gateway are missing. Weights are random. The columns are
those of `real_loads.py`; loads with several choices a request are left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from real_loads import LOADS, MAX_LENGTH, WARM_UP, Load, Row
from shapes import SHAPES

#: Tokens of a block of a trace, before lengths are scaled.
_BLOCK = 512
#: The objective of `inflight bench replay`: to the first token, then on average to each other.
_FIRST_S, _TOKEN_S = 0.5, 0.025

_COLUMNS = (
    "load",
    "tokens/s",
    "first token mean, p50 / p99, ms",
    "between tokens mean, p50 / p99, ms",
    "mean between tokens p99, ms",
    "within the objective",
)


@dataclass
class Item:
    """A request, and when its rows came."""

    prompt: list[int]
    answer: int
    group: str
    at_s: float
    sent_s: float = 0.0
    times: list[float] = field(default_factory=list)


def option(load: Load, name: str, default: float) -> float:
    """An option of `inflight bench replay`."""
    options = list(load.options)
    return float(options[options.index(name) + 1]) if name in options else default


def items_of(load: Load, rows: Iterable[Row], vocab_size: int, seed: int, scale: float) -> list[Item]:
    """Requests in the order in which they are sent, with random prompts; equal blocks have equal tokens."""
    scale, speed = option(load, "--length-scale", scale), option(load, "--speed", 1.0)
    draw = np.random.default_rng(seed)
    blocks: dict[int, list[int]] = {}
    made = []
    for one in itertools.islice(rows, int(option(load, "--requests", 1 << 30))):
        length = max(1, round(one["input_length"] * scale))
        prompt: list[int] = []
        for block in one.get("hash_ids", ()):
            if block not in blocks:
                blocks[block] = draw.integers(5, vocab_size, max(1, round(_BLOCK * scale))).tolist()
            prompt += blocks[block]
        prompt += draw.integers(5, vocab_size, max(0, length - len(prompt))).tolist()
        answer = max(1, round(one["output_length"] * scale))
        at_s = one.get("timestamp", 0.0) / 1000 / speed
        made.append(Item(prompt[:length], answer, one.get("group", "requests"), at_s))
    return sorted(made, key=lambda one: one.at_s)


def run(executor: Any, load: Load, items: Sequence[Item], first_id: int) -> None:
    """Sends requests, so many at a time or at their times, and notes when their rows come."""
    from inflight.executors.base import Request, SamplingConfig

    requests = []
    for client_id, one in enumerate(items, first_id):
        sampling = SamplingConfig(seed=client_id)
        if "top_p" in load.body:
            sampling.top_p, sampling.temperature = load.body["top_p"], load.body["temperature"]
        requests.append(Request(client_id, one.prompt, one.answer, sampling_config=sampling))
    waiting = deque(zip(items, requests, strict=True))
    streams = int(option(load, "--streams", 0))
    began = time.perf_counter()
    came: list[tuple[float, bytes]] = []
    running = 0
    while waiting or running:
        sent = []
        now = time.perf_counter()
        while waiting and (running < streams if streams else waiting[0][0].at_s <= now - began):
            item, request = waiting.popleft()
            item.sent_s = now if streams else began + item.at_s
            sent.append(request)
            running += 1
        if sent:
            executor.enqueue(sent)
        patience_s = 1.0
        if waiting and not streams:
            patience_s = min(1.0, max(0.0, began + waiting[0][0].at_s - time.perf_counter()))
        rows = executor.await_responses(patience_s)
        if rows.errors:
            raise RuntimeError(str(rows.errors[0]))
        # All else is left for later: the engine's thread wants to run.
        came.append((time.perf_counter(), rows.client_ids))
        running -= sum(rows.finals)
    for at_s, client_ids in came:
        for client_id in np.frombuffer(client_ids, "<u8").tolist():
            items[client_id - first_id].times.append(at_s)


def quantiles(values: Sequence[float]) -> str:
    """Mean, median and the 99th percentile, in milliseconds."""
    if not values:
        return "–"
    mean, median, most = np.mean(values), *np.percentile(values, [50, 99])
    return f"{mean * 1e3:,.1f}, {median * 1e3:,.1f} / {most * 1e3:,.1f}"


def figures(items: Sequence[Item]) -> list[str]:
    """A row of the table, but for its first column."""
    first = [one.times[0] - one.sent_s for one in items]
    gaps = [later - earlier for one in items for earlier, later in itertools.pairwise(one.times)]
    means = [(one.times[-1] - one.times[0]) / max(1, len(one.times) - 1) for one in items]
    seconds = max(one.times[-1] for one in items) - min(one.sent_s for one in items)
    good = sum(a <= _FIRST_S and b <= _TOKEN_S for a, b in zip(first, means, strict=True))
    return [
        f"{sum(one.answer for one in items) / seconds:,.0f}",
        quantiles(first),
        quantiles(gaps),
        f"{np.percentile(means, 99) * 1e3:,.1f}",
        f"{good} of {len(items)}",
    ]


class Subject:
    """An executor with random weights, warm, and loads on it. Each prompt comes once: seeds differ."""

    def __init__(self, shape: str, device: str, options: dict[str, Any], scale: float) -> None:
        from inflight.executors.reference import create

        self._vocab_size, self._scale = SHAPES[shape]["vocab_size"], scale
        self._next = 1
        with tempfile.TemporaryDirectory() as directory:
            config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SHAPES[shape]}
            config["max_position_embeddings"] = MAX_LENGTH
            (Path(directory) / "config.json").write_text(json.dumps(config))
            self.executor = create(directory, device, **options)
        for load in WARM_UP:
            if "n" not in load.body:
                self.measure(load)

    def measure(self, load: Load, traces: Path | None = None) -> dict[str, list[Item]]:
        """The requests of a load by group, once all are answered."""
        rows = load.rows
        if load.trace is not None and traces is not None:
            rows = [json.loads(line) for line in (traces / load.trace).read_text().splitlines()]
        items = items_of(load, rows, self._vocab_size, self._next, self._scale)
        run(self.executor, load, items, self._next)
        self._next += len(items)
        groups: dict[str, list[Item]] = {}
        for one in items:
            groups.setdefault(one.group, []).append(one)
        return groups


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="small")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--load", action="append", help="only loads whose names contain this")
    parser.add_argument("--traces", type=Path, metavar="DIRECTORY", help="of Mooncake's traces")
    parser.add_argument(
        "--length-scale", type=float, default=1.0, help="multiplies lengths, except of traces"
    )
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the executor")
    arguments = parser.parse_args()
    options: dict[str, Any] = {"load_format": "dummy", "backend": "pytorch", "max_seq_len": MAX_LENGTH}
    for name, _, value in (one.partition("=") for one in arguments.option):
        options[name] = int(value) if value.isdecimal() else value
    subject = Subject(arguments.shape, arguments.device, options, arguments.length_scale)
    print(f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|", flush=True)
    for name, load in LOADS.items():
        wanted = not arguments.load or any(part in name for part in arguments.load)
        if not wanted or "n" in load.body or (load.trace is not None and arguments.traces is None):
            continue
        groups = subject.measure(load, arguments.traces)
        for group, items in groups.items():
            label = name if len(groups) == 1 else f"{name}: {group}"
            print(f"| {label} | {' | '.join(figures(items))} |", flush=True)
    subject.executor.shutdown()


if __name__ == "__main__":
    main()
