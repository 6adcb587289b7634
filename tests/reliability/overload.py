"""Overload: 1, 2 and 10 times what an executor can do, from clients that leave after 5 s.

A part of the suite, and a command of its own for other loads: `PYTHONPATH=tests python -m
reliability.overload`. It starts a worker with the simulated executor (16 sequences at once, 0.75 s each) and
a gateway in front of it, sends requests at an even rate, and prints what became of them in each 5 s. Broken
promises, and exit status 1: fewer completions than 95 % of the peak, refusals that took 50 ms or more at
the median, clients that left, or memory that grew.

The load is open, and each request has a connection of its own: whoever is refused does not slow down the
next.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from reliability.report import Report, Scale
from reliability.site import memory_mib
from support.processes import InflightProcess
from support.servers import wait_ready

PLACES = 16
TOKENS = 50
STEP_US = 15_000
SERVICE_S = TOKENS * STEP_US / 1e6
PEAK_PER_S = PLACES / SERVICE_S
PATIENCE_S = 5.0
INTERVAL_S = 5.0
LOADS = (1.0, 2.0, 10.0)
#: Places for all, and cache blocks for as many sequences as `PLACES`: 3 for each.
LITTLE_MEMORY = ["--max-batch-size=256", f"--num-blocks={3 * PLACES}"]


@dataclass
class Interval:
    """Requests by the time of their end."""

    completed: int = 0
    refused: int = 0
    left: int = 0
    broken: int = 0


@dataclass
class Outcome:
    """What became of one load."""

    intervals: list[Interval]
    refusals_s: list[float] = field(default_factory=list)
    retry_after: set[str] = field(default_factory=set)
    memory_mib: list[float] = field(default_factory=list)
    interval_s: float = INTERVAL_S


async def ask(address: str) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own: status, headers, body."""
    host, port = address.rsplit(":", 1)
    body = json.dumps({"model": "inflight-demo", "prompt": "a b c", "max_tokens": TOKENS}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(head.encode() + body)
        answer = await reader.read(-1)
    finally:
        writer.close()
    lines, _, content = answer.partition(b"\r\n\r\n")
    status, *fields = lines.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in fields)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return int(status.split()[1]), headers, content


async def client(address: str, outcome: Outcome, start: float) -> None:
    """One client: asks once, and leaves after its patience."""
    began = time.monotonic()
    try:
        status, headers, body = await asyncio.wait_for(ask(address), PATIENCE_S)
    except TimeoutError:
        status, headers, body = 0, {}, b""
    except OSError:
        status, headers, body = -1, {}, b""
    now = time.monotonic()
    place = min(int((now - start) / outcome.interval_s), len(outcome.intervals) - 1)
    interval = outcome.intervals[place]
    if status == 200 and b'"finish_reason":"length"' in body:
        interval.completed += 1
    elif status in (429, 503):
        interval.refused += 1
        outcome.refusals_s.append(now - began)
        outcome.retry_after.add(headers.get("retry-after", "none"))
    elif status == 0:
        interval.left += 1
    else:
        interval.broken += 1


async def send(address: str, load: float, seconds: float, pids: list[int], interval_s: float) -> Outcome:
    """Sends `load` times the peak for `seconds`."""
    intervals = [Interval() for _ in range(round(seconds / interval_s))]
    outcome = Outcome(intervals, interval_s=interval_s)
    start = time.monotonic()
    tasks: set[asyncio.Task[None]] = set()
    sent = 0
    sampled = start
    while (now := time.monotonic()) < start + seconds:
        due = int((now - start) * load * PEAK_PER_S)
        for _ in range(due - sent):
            task = asyncio.create_task(client(address, outcome, start))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        sent = due
        if now >= sampled + 1:
            sampled = now
            outcome.memory_mib.append(sum(map(memory_mib, pids)))
        await asyncio.sleep(0.005)
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return outcome


@contextmanager
def servers(options: list[str]) -> Iterator[tuple[str, list[int]]]:
    """A worker and a gateway; the gateway's address and the process ids."""
    processes: list[InflightProcess] = []
    try:
        worker = InflightProcess(
            *("worker", "--executor=simulated", "--grpc-port=0", "--metrics-port=0"),
            *(f"--max-batch-size={PLACES}", f"--step-us={STEP_US}"),
            *("--step-us-per-sequence=0", "--prefill-us-per-token=0"),
            *options,
        )
        processes.append(worker)
        gateway = InflightProcess("gateway", "--port=0", f"--worker={worker.address('grpc')}")
        processes.append(gateway)
        address = wait_ready(gateway)
        yield address, [process.pid for process in processes]
    finally:
        for process in reversed(processes):
            process.stop()


def judge(load: float, outcome: Outcome) -> list[str]:
    """What is wrong with it."""
    problems = []
    # The first interval fills the batch; the last one ends while requests run.
    inner = outcome.intervals[1:-1]
    completed = sum(interval.completed for interval in inner)
    peak = PEAK_PER_S * outcome.interval_s * len(inner)
    # Sequences end together, so a count over a short time is off by up to a batch.
    margin = PLACES if outcome.interval_s < INTERVAL_S else 0
    if completed < 0.95 * peak * min(load, 1.0) - margin:
        problems.append(f"{completed} completed of {peak:.0f} at the peak")
    if any(interval.left or interval.broken for interval in outcome.intervals):
        problems.append("clients left or were cut off")
    if outcome.refusals_s and statistics.median(outcome.refusals_s) >= 0.05:
        problems.append("refusals are late")
    half = len(outcome.memory_mib) // 2
    if half > 3 and max(outcome.memory_mib[half:]) > max(outcome.memory_mib[:half]) * 1.1 + 8:
        problems.append("memory grew")
    return problems


def show(load: float, outcome: Outcome) -> None:
    """Prints one load's table."""
    per = outcome.interval_s
    print(f"{load:g} x: per {per:g} s, {PEAK_PER_S * per:.0f} at the peak")
    for name in ("completed", "refused", "left", "broken"):
        values = (getattr(interval, name) for interval in outcome.intervals)
        print(f"  {name:10}" + "".join(f"{value:6d}" for value in values))
    if outcome.refusals_s:
        ordered = sorted(outcome.refusals_s)
        late = ordered[int(len(ordered) * 0.99)]
        median = statistics.median(ordered)
        times = ", ".join(sorted(outcome.retry_after))
        print(
            f"  refused in {median * 1e3:.1f} ms (median), {late * 1e3:.1f} ms (99 %); Retry-After: {times}"
        )
    if outcome.memory_mib:
        print(f"  memory {min(outcome.memory_mib):.0f} to {max(outcome.memory_mib):.0f} MiB")


def run(scale: Scale, report: Report) -> None:
    """The suite's form: three loads and an executor that is limited by its memory, or 10 s of one load."""
    if scale.is_short:
        one(report, "twice the peak", 2.0, 10.0, 2.5, [])
        return
    for load in LOADS:
        one(report, f"{load:g} times the peak", load, 30.0, INTERVAL_S, [])
    one(report, "twice the peak, with memory for 16 of 256 places", 2.0, 30.0, INTERVAL_S, LITTLE_MEMORY)


def one(
    report: Report, name: str, load: float, seconds: float, interval_s: float, options: list[str]
) -> None:
    """One load of the suite."""
    with servers(options) as (address, pids):
        outcome = asyncio.run(send(address, load, seconds, pids, interval_s))
    inner = outcome.intervals[1:-1]
    completed = sum(interval.completed for interval in inner) / (interval_s * len(inner))
    report.attempt(f"requests at {name}", sum(map(ended, outcome.intervals)))
    for interval in outcome.intervals:
        report.lose("requests refused with 429 or 503", interval.refused)
    report.measure(f"completed at {name}", f"{completed:.1f}/s of {PEAK_PER_S:.1f}/s at the peak")
    if outcome.refusals_s:
        median = statistics.median(outcome.refusals_s)
        report.measure(f"refused at {name} in", f"{median * 1e3:.1f} ms (median)")
    for problem in judge(load, outcome):
        report.breaks(f"{name}: {problem}")


def ended(interval: Interval) -> int:
    """Requests that ended in an interval, in whatever way."""
    return interval.completed + interval.refused + interval.left + interval.broken


def main() -> int:
    """Runs all loads; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS)
    parser.add_argument("--worker-option", action="append", default=[], help="for the worker; repeat")
    arguments = parser.parse_args()
    failed = False
    for load in arguments.loads:
        with servers(arguments.worker_option) as (address, pids):
            outcome = asyncio.run(send(address, load, arguments.seconds, pids, INTERVAL_S))
        show(load, outcome)
        for problem in judge(load, outcome):
            failed = True
            print(f"  FAILED: {problem}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
