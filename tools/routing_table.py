"""Runs `inflight simulate` over all cells of docs/ROUTING.md's table and prints the table.

    python tools/routing_table.py inflight simulate TRACES...

A cell's load is that of 8 workers at the recorded times, for each worker: `--rate` is the rate times
workers / 8. Of the others it shows the best of each column, which are seldom of the same policy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

OTHERS = ("round-robin", "least-requests", "session", "smg", "dynamo", "dynamo-lmetric", "llm-d")
WORKERS = (8, 64, 1000)
RATES = (1.0, 1.8, 2.3)
#: Gateways and the percentage of lost reports.
GATEWAYS = ((1, 0), (16, 0), (16, 10))
ARRIVALS = ("recorded", "think-time")
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


def _marked(text: str, *, reached: bool) -> str:
    return text if reached else f"**{text}**"


def main() -> None:
    """Cells in the order of the page, two at a time."""
    split = next(place for place, word in enumerate(sys.argv) if word.endswith(".jsonl"))
    command, traces = sys.argv[1:split], [Path(word) for word in sys.argv[split:]]
    cells = list(product(traces, WORKERS, RATES, GATEWAYS, ARRIVALS))
    # A thousand workers report to each of 16 gateways: minutes a policy.
    cells = [cell for cell in cells if cell[1] < 1000 or cell[3][0] == 1]
    head = "trace | workers | rate | gateways | lost % | arrivals | hits / ceiling"
    head += " | mean s | best other | p99 s | best other | uneven"
    print(f"| {head} |")
    print("|---" * (head.count("|") + 1) + "|")
    with ThreadPoolExecutor(2) as pool:
        for row in pool.map(lambda cell: run(command, cell), cells):
            print(row, flush=True)


if __name__ == "__main__":
    main()
