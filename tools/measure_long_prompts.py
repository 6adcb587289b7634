"""Measures what a long prompt costs the gateway that most requests have in common.

    python tools/measure_long_prompts.py --gateway target/release/inflight-gateway [--clients 128]

The gateway runs on one core, its clients and a simulated worker on the others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import time
import urllib.request
from pathlib import Path

from measure_picker import WORDS, Process, wait_ready

#: No prompt is longer.
MAX_SEQ_LEN = 100_000


def request(model: str, shared: str, words: int, seed: int, host: str) -> bytes:
    """A chat for one token, as it travels."""
    draw = random.Random(seed)
    text = f"{shared} {' '.join(draw.choice(WORDS) for _ in range(words))}"
    messages = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": text}]
    body = json.dumps({"model": model, "messages": messages, "max_tokens": 1, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def client(address: str, requests: list[bytes], times: list[float]) -> None:
    """Sends requests over one connection in turn; seconds from the last byte to the head of the answer."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    while requests:
        writer.write(requests.pop())
        await writer.drain()
        sent = time.perf_counter()
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in answer, answer
        times.append(time.perf_counter() - sent)
        await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    writer.close()


def spent_ms(http: str, name: str) -> tuple[float, float]:
    """Observations of a metric so far, and their milliseconds in all."""
    text = urllib.request.urlopen(f"http://{http}/metrics").read().decode()
    found = [re.findall(rf"^{name}_{part}(?:{{.*}})? (\S+)", text, re.MULTILINE) for part in ("count", "sum")]
    count, total = (sum(map(float, values)) for values in found)
    return count, 1000 * total


async def measure(gateway: Process, http: str, given: argparse.Namespace) -> None:
    """Prints a row for each load."""
    draw = random.Random(1)
    shared = " ".join(draw.choice(WORDS) for _ in range(given.shared))
    for name, head, tail in (
        ("short", "Hello.", 12),
        ("all in common but the end", shared, given.fresh),
        ("nothing in common", "Hello.", given.shared + given.fresh),
    ):
        count = given.requests if head is shared or tail < given.fresh else given.requests // 8
        bodies = [request("m", head, tail, seed, http) for seed in range(count + 8)]
        warm: list[float] = []
        await client(http, bodies[:8], warm)
        del bodies[:8]
        metric = "inflight_gateway_tokenize_time_seconds"
        times: list[float] = []
        cpu, before, began = gateway.cpu_s(), spent_ms(http, metric), time.perf_counter()
        clients = min(given.clients, count)
        await asyncio.gather(*(client(http, bodies, times) for _ in range(clients)))
        took, after = time.perf_counter() - began, spent_ms(http, metric)
        inside = (after[1] - before[1]) / max(1.0, after[0] - before[0])
        cpu_ms = 1000 * (gateway.cpu_s() - cpu) / len(times)
        print(
            f"{name}: {len(times) / took:.0f} requests/s, {cpu_ms:.2f} ms of CPU each, "
            f"{inside:.2f} ms for the prompt; to the head of the answer p50 "
            f"{1000 * statistics.median(times):.1f} ms; {gateway.resident_mb():.0f} MB"
        )


def main() -> None:
    """Starts a worker and a gateway, and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=128)
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--shared", type=int, default=48_000, help="words")
    parser.add_argument("--fresh", type=int, default=4_000, help="words")
    given = parser.parse_args()
    # The worker inherits it.
    os.sched_setaffinity(0, set(range(1, os.cpu_count() or 2)))
    started: list[Process] = []
    try:
        inflight = str(Path(sys.executable).parent / "inflight")
        steps = ("--step-us=0", "--step-us-per-sequence=0", "--prefill-us-per-token=0")
        options = ("--executor=simulated", "--grpc-port=0", "--metrics-port=0", "--max-batch-size=1024")
        longest = f"--max-seq-len={MAX_SEQ_LEN}"
        worker = Process(inflight, "worker", "--served-model-name=m", longest, *options, *steps)
        started.append(worker)
        address = worker.address(r"grpc://(\S+)")
        gateway = Process("taskset", "-c", "0", str(given.gateway), f"--worker={address}", "--port=0")
        started.append(gateway)
        http = gateway.address(r"listening on http://(\S+)")
        wait_ready(http)
        asyncio.run(measure(gateway, http, given))
    finally:
        for one in started:
            one.process.kill()


if __name__ == "__main__":
    main()
