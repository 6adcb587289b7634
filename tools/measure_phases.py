#!/usr/bin/env python3
"""What long prompts do to streams that run beside them: with workers that do all, and with one for prompts.

    python tools/measure_phases.py
    python tools/measure_phases.py --executor reference --model DIRECTORY --prompt 8000 --every 2

Starts `inflight launch` three times: nothing but the streams, then long prompts next to them at two workers
that do all, then the same at one worker for contexts and one for what follows. Prints the time between the
streams' tokens, and the first token of the long prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table

PORT = 8190
URL = f"http://127.0.0.1:{PORT}"
NAME = "measured"
WARM_UP_S = 3.0


def topology(arguments: argparse.Namespace, phases: tuple[str, ...]) -> dict[str, Any]:
    """As a topology file has it."""
    model: dict[str, Any] = {"name": NAME, "executor": arguments.executor}
    if arguments.model:
        model["path"] = arguments.model
    if arguments.executor == "simulated":
        model["worker_options"] = {
            "prefill_us_per_token": 50,
            "transfer_us_per_token": 5,
            "max_seq_len": 65536,
            "num_blocks": 65536,
            "max_num_tokens": 2048,
            "max_queue_wait_s": 60,
        }
    models = [{**model, "phases": one} for one in phases]
    if phases == ("both",):
        models[0]["replicas"] = 2
    return {"models": models, "gateways": {"port": PORT}}


async def read(client: AsyncOpenAI, prompt: list[int], tokens: int) -> list[float]:
    """The times at which a stream's tokens came."""
    answer = await client.completions.create(
        model=NAME, prompt=prompt, max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
    )
    return [time.perf_counter() async for chunk in answer if chunk.choices]


async def streams(client: AsyncOpenAI, until: float, gaps: list[float]) -> None:
    """One stream after another; keeps the times between their tokens."""
    while time.perf_counter() < until:
        times = await read(client, random.sample(range(33, 127), 20), 400)
        gaps += [after - before for before, after in pairwise(times)]


async def prompts(
    client: AsyncOpenAI, arguments: argparse.Namespace, until: float, firsts: list[float]
) -> None:
    """A long prompt every few seconds; keeps the times to their first tokens."""
    running = []

    async def one() -> None:
        prompt = [random.randrange(33, 127) for _ in range(arguments.prompt)]
        started = time.perf_counter()
        times = await read(client, prompt, 16)
        firsts.append(times[0] - started)

    while time.perf_counter() < until:
        running.append(asyncio.create_task(one()))
        await asyncio.sleep(arguments.every)
    await asyncio.gather(*running)


def wait_until_ready(fleet: subprocess.Popen[bytes]) -> None:
    """Waits until every worker is. Raises `SystemExit` where the fleet has ended."""
    while fleet.poll() is None:
        try:
            with urlopen(f"{URL}/health/ready", timeout=5) as answer:
                if all(worker["ready"] for worker in json.load(answer)["workers"]):
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit("the fleet has ended; start `inflight launch` alone to see why")


async def measure(arguments: argparse.Namespace, *, disturbed: bool) -> tuple[list[float], list[float]]:
    """Times between tokens, and to first tokens."""
    gaps: list[float] = []
    firsts: list[float] = []
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120) as client:
        until = time.perf_counter() + WARM_UP_S
        await asyncio.gather(*(streams(client, until, []) for _ in range(4)))
        until = time.perf_counter() + arguments.seconds
        tasks = [streams(client, until, gaps) for _ in range(arguments.streams)]
        if disturbed:
            tasks.append(prompts(client, arguments, until, firsts))
        await asyncio.gather(*tasks)
    return gaps, firsts


def milliseconds(times: list[float], share: float) -> str:
    """A quantile."""
    if not times:
        return "–"
    return f"{1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))]:.1f}"


def main() -> None:
    """Prints a row for each arm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--executor", default="simulated", choices=("simulated", "reference"))
    parser.add_argument("--model", help="a checkpoint, for the reference executor")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=32_000, help="tokens of a long prompt")
    parser.add_argument("--every", type=float, default=2.5, help="seconds between long prompts")
    parser.add_argument("--seconds", type=float, default=30)
    arguments = parser.parse_args()
    random.seed(1)
    table = Table(title=f"{arguments.streams} streams, prompts of {arguments.prompt} tokens, ms")
    for column in ("arm", "tokens", "between p50", "p99", "most", "first token p50", "p99", "handed over"):
        table.add_column(column)
    arms = [
        ("alone", ("both",), False),
        ("whole", ("both",), True),
        ("apart", ("context", "generation"), True),
    ]
    for name, phases, disturbed in arms:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump(topology(arguments, phases), file)
            file.flush()
            command = [str(Path(sys.executable).with_name("inflight")), "launch", file.name]
            fleet = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                wait_until_ready(fleet)
                gaps, firsts = asyncio.run(measure(arguments, disturbed=disturbed))
                with urlopen(f"{URL}/metrics") as answer:
                    page = answer.read().decode()
            finally:
                fleet.terminate()
                fleet.wait()
        moved = [
            line for line in page.splitlines() if line.startswith("inflight_gateway_hand_over_seconds_count")
        ]
        table.add_row(
            name,
            str(len(gaps)),
            f"{1000 * statistics.median(gaps):.1f}",
            milliseconds(gaps, 0.99),
            milliseconds(gaps, 1),
            milliseconds(firsts, 0.5),
            milliseconds(firsts, 0.99),
            moved[0].rpartition(" ")[2] if moved else "–",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
