"""Runs `inflight simulate` over all cells of one of docs/ROUTING.md's tables and prints the table.

    python tools/routing_table.py inflight simulate TRACES...
    python tools/routing_table.py --spread inflight simulate TRACES...
    python tools/routing_table.py --phases inflight simulate TRACES...

The second one spreads the requests of an instant until the next one, for one gateway and for several. The
third is about workers that compute prompts for others: a quarter of them.

A cell's load is that of 8 workers at the recorded times, for each worker: `--rate` is the rate times
workers / 8. Of the others it shows the best of each column, which are seldom of the same policy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import TypeVar

Cell = TypeVar("Cell")

OTHERS = ("round-robin", "least-requests", "session", "smg", "dynamo", "dynamo-lmetric", "llm-d")
WORKERS = (8, 64, 1000)
RATES = (1.0, 1.8, 2.3)
#: Gateways and the percentage of lost reports.
GATEWAYS = ((1, 0), (16, 0), (16, 10))
ARRIVALS = ("recorded", "think-time")
PHASES_WORKERS = (8, 64)
PHASES_RATES = (0.5, 1.0, 1.8)
PHASES = ("auto", "never", "always", "both")
#: A model of 8B on an H200: docs/PERFORMANCE.md.
PHASES_MACHINE = ("--prompt-tokens-per-s", "22000", "--token-ms", "5.6", "--blocks", "1600")
#: What `auto` may be worse than the better of `never` and `always`: the one with more requests in time.
PHASES_WORSE = 0.02
#: Shares of the ceiling, and times over the best other's, that count as reached.
LEAST_HITS, MOST_TIME = 0.97, 1.0


def run(command: list[str], cell: tuple[Path, int, float, tuple[int, int], str]) -> str:
    """A row of the table."""
    trace, workers, rate, (gateways, lost), arrivals = cell
    options = {
        "--workers": workers,
        "--rate": rate * workers / 8,
        "--gateways": gateways,
        "--lost": lost,
        "--arrivals": arrivals,
        "--policy": ",".join((*OTHERS, "inflight")),
    }
    words = [str(word) for pair in options.items() for word in pair]
    done = subprocess.run(
        [*command, str(trace), *words, "--quiet", "--json"], check=True, stdout=subprocess.PIPE, text=True
    )
    found = json.loads(done.stdout)
    rows = {row["policy"]: row for row in found["policies"]}
    ours = rows.pop("inflight")
    hits = ours["hits"] / found["ceiling"]
    cells = [trace.name.split("_")[0], workers, rate, gateways, lost, arrivals]
    cells += [_marked(f"{hits:.3f}", reached=hits >= LEAST_HITS)]
    for column in ("mean_s", "p99_s"):
        least, best = min((row[column], name) for name, row in rows.items())
        cells += [_marked(f"{ours[column]:.3f}", reached=ours[column] <= least * MOST_TIME)]
        cells += [f"{least:.3f} {best}"]
    cells += [f"{ours['unevenness']:.2f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def run_phases(command: list[str], cell: tuple[Path, int, float]) -> str:
    """A row of the table of phases: each figure of `auto`, then of the others in their order."""
    trace, workers, rate = cell
    contexts = workers // 4
    words = ["--workers", str(workers), "--rate", str(rate * workers / 8), "--context-workers", str(contexts)]
    done = subprocess.run(
        [*command, str(trace), *words, *PHASES_MACHINE, "--quiet", "--json"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    rows = {row["disaggregate"]: row for row in json.loads(done.stdout)["phases"]}
    better = max((rows["never"], rows["always"]), key=lambda row: row["within"])
    cells = [trace.name.split("_")[0], f"{contexts} of {workers}", rate, f"{rows['auto']['split'] * 100:.0f}"]
    for column, scale, digits, sign, is_held in (
        ("mean_s", 1, 3, 1, True),
        ("p99_s", 1, 2, 1, False),
        ("between_mean_s", 1e3, 2, 1, False),
        ("between_p99_s", 1e3, 1, 1, True),
        ("within", 100, 1, -1, True),
        ("whole_s", 1, 3, 1, False),
    ):
        worse = sign * (rows["auto"][column] / better[column] - 1)
        own, *others = (f"{rows[name][column] * scale:.{digits}f}" for name in PHASES)
        cells += [" / ".join((_marked(own, reached=not is_held or worse <= PHASES_WORSE), *others))]
    return "| " + " | ".join(map(str, cells)) + " |"


def _marked(text: str, *, reached: bool) -> str:
    return text if reached else f"**{text}**"


def main() -> None:
    """Cells in the order of the page, two at a time."""
    words = sys.argv[1:]
    is_of_phases, is_spread = (words[0] == name for name in ("--phases", "--spread"))
    words = words[is_of_phases or is_spread :]
    split = next(place for place, word in enumerate(words) if word.endswith(".jsonl"))
    command, traces = words[:split], [Path(word) for word in words[split:]]
    if is_of_phases:
        head = "trace | contexts | rate | split % | first s | p99 s | between ms | p99 ms"
        head += " | within % | answered s"
        print_rows(head, run_phases, command, list(product(traces, PHASES_WORKERS, PHASES_RATES)))
        return
    arrivals = ("spread",) if is_spread else ARRIVALS
    cells = list(product(traces, WORKERS, RATES, GATEWAYS[:2] if is_spread else GATEWAYS, arrivals))
    head = "trace | workers | rate | gateways | lost % | arrivals | hits / ceiling"
    head += " | mean s | best other | p99 s | best other | uneven"
    print_rows(head, run, command, cells)


def print_rows(
    head: str, row: Callable[[list[str], Cell], str], command: list[str], cells: Sequence[Cell]
) -> None:
    """The table, row by row."""
    print(f"| {head} |")
    print("|---" * (head.count("|") + 1) + "|")
    with ThreadPoolExecutor(2) as pool:
        for text in pool.map(lambda cell: row(command, cell), cells):
            print(text, flush=True)


if __name__ == "__main__":
    main()
