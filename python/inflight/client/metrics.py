"""What a gateway's and workers' metrics say about now: two readings, and what happened between them.

Owns the names of the metrics that people look at. Pure but for nothing: pages are fetched elsewhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
GATEWAY = "inflight_gateway_"
#: How the routes begin that orchestrators, Prometheus and `inflight top` itself poll.
POLLED = ("/metrics", "/health", "/v2/health", "/ping")

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Page:
    """One reading of a Prometheus page."""

    #: Seconds on any clock that does not jump.
    at_s: float
    samples: Mapping[str, Mapping[Labels, float]]

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels; 0 without any."""
        wanted = set(labels.items())
        return sum(value for found, value in self.samples.get(name, {}).items() if wanted <= found)

    def by(self, name: str, label: str) -> dict[str, float]:
        """The samples by one label."""
        found: dict[str, float] = {}
        for labels, value in self.samples.get(name, {}).items():
            key = dict(labels).get(label)
            if key is not None:
                found[key] = found.get(key, 0.0) + value
        return found


def parse(text: str, at_s: float) -> Page:
    """Reads a page in Prometheus' text format; lines that are none are passed over."""
    samples: dict[str, dict[Labels, float]] = {}
    for line in text.splitlines():
        found = None if line.startswith("#") else _SAMPLE.match(line)
        if found is None:
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        labels = frozenset((name, _unescaped(value)) for name, value in _LABEL.findall(found["labels"] or ""))
        samples.setdefault(found["name"], {})[labels] = value
    return Page(at_s, samples)


def rate(before: Page, now: Page, name: str) -> float:
    """Events in a second, of a counter; one that began anew counts from 0."""
    seconds = now.at_s - before.at_s
    grown = now.total(name) - before.total(name)
    return (grown if grown >= 0 else now.total(name)) / seconds if seconds > 0 else 0.0


def quantile(before: Page, now: Page, name: str, share: float) -> float | None:
    """The value below which `share` of what a histogram counted in between lies, as Prometheus interpolates
    it; `None` where it counted nothing.
    """
    old, new = before.by(f"{name}_bucket", "le"), now.by(f"{name}_bucket", "le")
    bounds = sorted((math.inf if le == "+Inf" else float(le), le) for le in new)
    counts = [(bound, max(new[le] - old.get(le, 0.0), 0.0)) for bound, le in bounds]
    if not counts or counts[-1][1] <= 0:
        return None
    rank = share * counts[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in counts:
        if count >= rank:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (rank - below) / max(count - below, 1e-12)
        lower, below = bound, count
    return lower


@dataclass(frozen=True)
class WorkerRow:
    """A worker as a gateway sees it."""

    address: str
    is_ready: bool
    active: int
    #: What it does, where it is not ready.
    reason: str


@dataclass(frozen=True)
class Figures:
    """What happened between two readings of a gateway."""

    requests_per_s: float
    failed_per_s: float
    open_requests: int
    tokens_in_per_s: float
    tokens_out_per_s: float
    #: 50th and 99th percentiles in seconds; `None`: nothing ended.
    first_token_s: tuple[float | None, float | None]
    between_tokens_s: tuple[float | None, float | None]


def figures(before: Page, now: Page) -> Figures:
    """Of a gateway's pages. Requests are those of clients, without probes and scrapes."""

    def both(name: str) -> tuple[float | None, float | None]:
        return quantile(before, now, GATEWAY + name, 0.5), quantile(before, now, GATEWAY + name, 0.99)

    seconds = max(now.at_s - before.at_s, 1e-9)
    requests = GATEWAY + "requests_total"
    before, now = _without_polls(before, requests), _without_polls(now, requests)
    new, old = (page.by(requests, "status") for page in (now, before))
    failed = sum(max(count - old.get(status, 0.0), 0.0) for status, count in new.items() if status[:1] == "5")
    return Figures(
        requests_per_s=rate(before, now, requests),
        failed_per_s=failed / seconds,
        open_requests=round(now.total(GATEWAY + "active_requests")),
        tokens_in_per_s=rate(before, now, GATEWAY + "prompt_tokens_total"),
        tokens_out_per_s=rate(before, now, GATEWAY + "generated_tokens_total"),
        first_token_s=both("time_to_first_token_seconds"),
        between_tokens_s=both("inter_token_time_seconds"),
    )


def _without_polls(page: Page, name: str) -> Page:
    """The page without the samples of `name` for routes that are polled."""
    kept = {
        labels: value
        for labels, value in page.samples.get(name, {}).items()
        if not dict(labels).get("route", "").startswith(POLLED)
    }
    return replace(page, samples={**page.samples, name: kept})


def cache_use(worker: Page) -> float | None:
    """The share of a worker's KV cache that is in use."""
    name = "nv_trt_llm_kv_cache_block_metrics"
    values = list(_with(worker, name, "kv_cache_block_type", "fraction"))
    return values[0] if values else None


def _with(page: Page, name: str, label: str, value: str) -> Iterator[float]:
    return (number for labels, number in page.samples.get(name, {}).items() if (label, value) in labels)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)
