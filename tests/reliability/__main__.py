"""Runs the reliability suite: `make soak`, or `PYTHONPATH=tests python -m reliability [SCENARIO …]`.

Each scenario prints what it tried, what was lost, and which promises broke; a table ends the run. The exit
status is 1 if a promise broke. The same `--seed` tries the same things again.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from reliability.report import Report, Scale, Scenario
from reliability.scenarios import SCENARIOS

#: Between two lines of progress.
PROGRESS_S = 10.0


@contextmanager
def progress(report: Report) -> Iterator[None]:
    """Prints how far a scenario is while it runs."""
    ended = threading.Event()
    begun = time.monotonic()

    def tell() -> None:
        while not ended.wait(PROGRESS_S):
            tried, lost, broken = report.tried.total(), report.lost.total(), len(report.broken)
            print(
                f"  {time.monotonic() - begun:4.0f} s: {tried:,} tried, {lost:,} lost, {broken} broken",
                flush=True,
            )

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def perform(scenario: Scenario, scale: Scale) -> tuple[Report, float]:
    """Runs one; what it raises is a broken promise. Returns the report and the seconds it took."""
    report = Report()
    begun = time.monotonic()
    try:
        with progress(report):
            scenario(scale, report)
    except Exception as error:
        report.breaks(f"ended early: {type(error).__name__}: {error}")
    return report, time.monotonic() - begun


def table(done: dict[str, tuple[Report, float]]) -> list[str]:
    """One row for each scenario."""
    rows = [("scenario", "tried", "lost", "bystander s", "seconds", "promises")]
    for name, (report, seconds) in done.items():
        verdict = f"{len(report.broken)} BROKEN" if report.broken else "kept"
        tried, lost = report.tried.total(), report.lost.total()
        slowest = f"{report.slowest_s:.2f}" if report.slowest_s else "-"
        rows.append((name, f"{tried:,}", f"{lost:,}", slowest, f"{seconds:.0f}", verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = []
    for name, *numbers, verdict in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:], strict=False)]
        lines.append("  ".join([name.ljust(widths[0]), *cells, verdict]))
    return lines


def main() -> int:
    """Runs all scenarios, or those that are named; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scenario", nargs="*", default=list(SCENARIOS), help=", ".join(SCENARIOS))
    parser.add_argument("--seed", type=int, default=1, help="what is random follows from it")
    parser.add_argument("--short", action="store_true", help="seconds for each scenario, as CI does")
    parser.add_argument("--times", type=int, default=1, help="do the long form's rounds so many times")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.scenario if name not in SCENARIOS]
    if unknown:
        parser.error(f"unknown scenario `{unknown[0]}`; choose from {', '.join(SCENARIOS)}")
    if arguments.times < 1:
        parser.error(f"--times {arguments.times} must be 1 or more")
    scale = Scale(arguments.seed, arguments.short, arguments.times)
    done: dict[str, tuple[Report, float]] = {}
    for number, name in enumerate(arguments.scenario, 1):
        print(f"[{number}/{len(arguments.scenario)}] {name}", flush=True)
        report, seconds = done[name] = perform(SCENARIOS[name], scale)
        print("\n".join([*report.lines(), f"  {seconds:.0f} s"]), flush=True)
    print("\n" + "\n".join(table(done)))
    return int(any(report.broken for report, _ in done.values()))


if __name__ == "__main__":
    sys.exit(main())
