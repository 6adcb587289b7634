"""How long answers paused when they continued elsewhere, by the gateway's own histogram."""

from __future__ import annotations

import re
from collections import Counter

from reliability.report import Report
from support.metrics import scrape

BUCKET = re.compile(r'inflight_gateway_resume_pause_seconds_bucket\{le="([^"]+)"\}')


def pauses(address: str) -> Counter[float]:
    """Upper bound of a bucket in seconds -> pauses within it, those of smaller buckets included."""
    found = ((BUCKET.fullmatch(name), count) for name, count in scrape(address).items())
    return Counter({float(match[1]): int(count) for match, count in found if match})


def report_pauses(report: Report, what: str, counted: Counter[float]) -> None:
    """Writes down how many there were, and the bound of a half, of 99 % and of all."""
    most = max(counted.values(), default=0)
    bounds = sorted(counted.items())
    within = [
        next((bound for bound, count in bounds if count >= share * most), 0.0) for share in (0.5, 0.99, 1)
    ]
    half, nearly, longest = (f"{1000 * bound:g}" for bound in within)
    report.measure(what, f"{most}; half within {half} ms, 99 % within {nearly}, all within {longest}")
