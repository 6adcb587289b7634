#!/usr/bin/env python3
"""Whether `inflight simulate` agrees with real processes: the first requests of a trace in real time, against
gateways and workers of the simulated executor, and the same requests and machine in virtual time.

    python tools/compare_simulation.py conversation_trace.jsonl --requests 1700 --rate 2
    python tools/compare_simulation.py conversation_trace.jsonl --requests 1700 --rate 2 --gateways 4 --spread

The machine is that of docs/ROUTING.md's table. Several gateways take turns in the order of the requests; the
p99 is compared for one alone. `--spread` moves each request by a random share of the time to the next one,
for both: in one instant real gateways take requests one after the other, and virtual ones all at once. Owns
the run and the comparison; what is simulated is `inflight simulate`'s.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shlex
import subprocess
import tempfile
import urllib.request
from itertools import islice
from pathlib import Path
from typing import Any

from real_loads import Server

BLOCK_TOKENS = 512
#: Of a prompt of `inflight simulate`'s default machine.
PROMPT_TOKENS_PER_S = 12_000
BLOCKS = 1490
#: Of an iteration, and what each answer adds to it: 256 of them take twice as long.
STEP_US = 10_000
STEP_US_PER_SEQUENCE = STEP_US / 256
#: Prompt tokens of an iteration, by time: of one prompt, and twice that of all.
MAX_PROMPT_MS = 50
#: Below the embedded model's vocabulary.
VOCAB_SIZE = 2048
TOPOLOGY = """
models:
  - name: m
    executor: simulated
    replicas: {workers}
    grpc_port: {grpc_port}
    metrics_port: {metrics_port}
    worker_options:
      enable_kv_cache_reuse: true
      max_batch_size: 1024
      max_num_tokens: 8192
      max_prompt_ms: {max_prompt_ms}
      max_queue_wait_s: 600
      max_seq_len: 1000000
      num_blocks: {blocks}
      prefill_us_per_token: {prefill_us}
      step_us: {step_us}
      step_us_per_sequence: {sequence_us}
      tokens_per_block: {block_tokens}
gateways: {{port: {{port}}, replicas: {gateways}}}
"""


def computed_tokens(text: str) -> float:
    """Prompt tokens that a worker computed, by its metrics: nearly, since what it finds is a share of blocks.

    Raises:
        ValueError: a metric is not among them.
    """

    def value(name: str) -> float:
        found = re.search(rf"^inflight_worker_{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"the worker has no metric `inflight_worker_{name}`")
        return float(found[1])

    return value("prompt_tokens_total") * (1 - value("kv_cache_hit_ratio"))


def unevenness(values: list[float]) -> float:
    """The standard deviation over the mean."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)) / mean


def spread(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Requests in the order in which they come then."""
    times = sorted({row["timestamp"] for row in rows})
    after = dict(zip(times, [*times[1:], times[-1]], strict=True))
    draw = random.Random(1)
    for row in rows:
        at = row["timestamp"]
        row["timestamp"] = round(at + draw.random() * (after[at] - at))
    return sorted(rows, key=lambda row: row["timestamp"])


def measured(options: argparse.Namespace, rows: Path, directory: Path) -> dict[str, float]:
    """What real processes did."""
    topology = directory / "topology.yaml"
    topology.write_text(
        TOPOLOGY.format(
            workers=options.workers,
            grpc_port=options.port,
            metrics_port=options.port + 1,
            max_prompt_ms=MAX_PROMPT_MS,
            blocks=options.blocks,
            prefill_us=1e6 / PROMPT_TOKENS_PER_S,
            step_us=STEP_US,
            sequence_us=STEP_US_PER_SEQUENCE,
            block_tokens=BLOCK_TOKENS,
            gateways=options.gateways,
        )
    )
    server = Server(f"{options.command} launch {{file:{topology}}}", directory / "model", directory / "log")
    try:
        server.wait_until_ready()
        reports = replayed(options, rows, server.address)
        computed = []
        for worker in range(options.workers):
            address = f"http://127.0.0.1:{options.port + 1 + 2 * worker}/metrics"
            with urllib.request.urlopen(address, timeout=10) as answer:
                computed.append(computed_tokens(answer.read().decode()))
    finally:
        server.stop()
    groups: list[dict[str, Any]] = [report["groups"]["requests"] for report in reports]
    if problems := [group["first_problem"] for group in groups if group["first_problem"] is not None]:
        raise SystemExit(f"a request failed: {problems[0]}")
    times = [group["time_to_first_token_ms"] for group in groups]
    found = {
        "hits": sum(group["cached_tokens"] for group in groups)
        / sum(group["prompt_tokens"] for group in groups),
        "mean_s": sum(time["mean"] for time in times) / len(times) / 1e3,
        "unevenness": unevenness(computed),
        "sent_late_ms": max(report["sent_late_ms"] for report in reports),
    }
    return found if len(times) > 1 else {**found, "p99_s": times[0]["p99"] / 1e3}


def replayed(options: argparse.Namespace, rows: Path, address: str) -> list[dict[str, Any]]:
    """The reports of all gateways, whose ports follow one another, each of its share of the requests."""
    host, port = address.split(":")
    lines = rows.read_text().splitlines(keepends=True)
    running = []
    for number in range(options.gateways):
        share = rows.with_suffix(f".{number}")
        share.write_text("".join(lines[number :: options.gateways]))
        command = [
            *shlex.split(options.command),
            "bench",
            "replay",
            f"{host}:{int(port) + number}",
            str(share),
        ]
        command += ["--json", "--speed", str(options.rate), "--vocab-size", str(VOCAB_SIZE)]
        running.append(subprocess.Popen([*command, "--timeout-s", "1200"], stdout=subprocess.PIPE, text=True))
    return [json.loads(process.communicate()[0]) for process in running]


def simulated(options: argparse.Namespace, rows: Path) -> dict[str, float]:
    """What virtual time says."""
    command = [*shlex.split(options.command), "simulate", str(rows), "--workers", str(options.workers)]
    command += ["--rate", str(options.rate), "--policy", "inflight", "--blocks", str(options.blocks)]
    command += ["--gateways", str(options.gateways)]
    command += ["--prompt-tokens-per-s", str(PROMPT_TOKENS_PER_S), "--token-ms", str(STEP_US / 1e3)]
    done = subprocess.run([*command, "--quiet", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, float] = json.loads(done.stdout)["policies"][0]
    return row


def main() -> None:
    """Prints a row for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--requests", type=int, default=1700, help="the first ones of the trace")
    parser.add_argument("--rate", type=float, default=2.0, help="how many times as fast as recorded")
    parser.add_argument("--spread", action="store_true", help="the requests of an instant until the next one")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="that a worker caches")
    parser.add_argument("--port", type=int, default=28_000, help="the first of two for each worker")
    parser.add_argument("--command", default="inflight")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        rows = directory / "rows.jsonl"
        with options.trace.open() as trace:
            found = [json.loads(line) for line in islice(trace, options.requests)]
        found = spread(found) if options.spread else found
        rows.write_text("".join(f"{json.dumps(row)}\n" for row in found))
        real = measured(options, rows, directory)
        virtual = simulated(options, rows)
    print(json.dumps({"real": real, "virtual": virtual}))
    name = options.trace.name.split("_")[0]
    for figure in sorted(real.keys() & virtual.keys()):
        of, to = real[figure], virtual[figure]
        print(f"| {name} | {options.rate} | {figure} | {of:.4f} | {to:.4f} | {to / of - 1:+.1%} |")


if __name__ == "__main__":
    main()
