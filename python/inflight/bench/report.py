"""What a run of requests amounts to: figures, thresholds, tables. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inflight.bench.run import Measured
from inflight.errors import UserMistake


@dataclass(frozen=True)
class Spread:
    """Of one kind of time, in milliseconds."""

    avg: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread | None:
        """`None` without any."""
        if not seconds:
            return None
        values = np.array(seconds) * 1e3
        p50, p90, p99 = (float(one) for one in np.percentile(values, [50, 90, 99]))
        return cls(float(values.mean()), p50, p90, p99, float(values.max()))


@dataclass(frozen=True)
class Summary:
    """The figures of a run; times and lengths are those of requests that were answered."""

    requests: int
    failed: int
    first_error: str | None
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    avg_input_tokens: float
    avg_output_tokens: float
    latency: Spread | None
    first_token: Spread | None
    per_token: Spread | None
    #: How late requests were sent, because as many as allowed were running.
    late: Spread | None

    def object(self) -> dict[str, Any]:
        """For `--json`."""
        spreads = {"latency_ms": self.latency, "first_token_ms": self.first_token}
        spreads |= {"per_token_ms": self.per_token, "late_ms": self.late}
        return {
            "requests": self.requests,
            "failed": self.failed,
            "first_error": self.first_error,
            "duration_s": self.duration_s,
            "requests_per_s": self.requests_per_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "avg_input_tokens": self.avg_input_tokens,
            "avg_output_tokens": self.avg_output_tokens,
            **{name: None if one is None else vars(one) for name, one in spreads.items()},
        }


def summarize(measured: Sequence[Measured]) -> Summary:
    """The figures of everything that has ended."""
    good = [one for one in measured if one.error is None]
    bad = [one for one in measured if one.error is not None]
    began = min((one.sent_s for one in measured), default=0.0)
    duration = max((one.end_s for one in measured), default=0.0) - began
    per_s = 1 / duration if duration > 0 else 0.0
    return Summary(
        requests=len(measured),
        failed=len(bad),
        first_error=bad[0].error if bad else None,
        duration_s=duration,
        requests_per_s=len(good) * per_s,
        output_tokens_per_s=sum(one.output_tokens for one in good) * per_s,
        avg_input_tokens=_mean([one.input_tokens for one in good]),
        avg_output_tokens=_mean([one.output_tokens for one in good]),
        latency=Spread.of([one.latency_s for one in good]),
        first_token=Spread.of([one.first_token_s for one in good if one.first_token_s is not None]),
        per_token=Spread.of([one.per_token_s for one in good if one.per_token_s is not None]),
        late=Spread.of([one.sent_s - one.due_s for one in good]),
    )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


#: Name of a threshold -> the spread that it is about.
_SPREADS = {"": "latency", "ttft-": "first_token", "itl-": "per_token"}
_QUANTILES = ("avg", "p50", "p90", "p99", "max")
#: What a threshold may be about.
METRICS = (
    *(prefix + quantile for prefix in _SPREADS for quantile in _QUANTILES),
    "failed",
    "requests-per-s",
    "output-tokens-per-s",
)


@dataclass(frozen=True)
class Threshold:
    """A figure that must not be above, or below, a bound. Times are in milliseconds."""

    metric: str
    bound: float
    is_upper: bool

    @classmethod
    def parse(cls, text: str, *, is_upper: bool) -> Threshold:
        """From `p99=2000`, `p99=2s` or `p99=2000ms`. Raises `UserMistake`."""
        metric, _, value = text.partition("=")
        unit = 1000.0 if value.endswith("s") and not value.endswith("ms") else 1.0
        try:
            bound = float(value.removesuffix("ms").removesuffix("s")) * unit
        except ValueError:
            bound = -1.0
        if metric not in METRICS or not 0 <= bound < float("inf"):
            raise UserMistake(
                f"`{text}` is not a threshold", f"write METRIC=VALUE with one of {', '.join(METRICS)}"
            )
        return cls(metric, bound, is_upper)

    def broken(self, summary: Summary) -> str | None:
        """What is said where it is not kept; a figure that there is none of does not keep it."""
        value = _figure(summary, self.metric)
        if value is None:
            return f"{self.metric} was not measured"
        if self.is_upper and value > self.bound:
            return f"{self.metric} is {value:.6g}, above {self.bound:g}"
        if not self.is_upper and value < self.bound:
            return f"{self.metric} is {value:.6g}, below {self.bound:g}"
        return None


def _figure(summary: Summary, metric: str) -> float | None:
    plain = {
        "failed": float(summary.failed),
        "requests-per-s": summary.requests_per_s,
        "output-tokens-per-s": summary.output_tokens_per_s,
    }
    if metric in plain:
        return plain[metric]
    head, dash, quantile = metric.rpartition("-")
    spread: Spread | None = getattr(summary, _SPREADS[head + dash])
    return None if spread is None else float(getattr(spread, quantile))


def table(summary: Summary) -> list[tuple[str, str]]:
    """Rows for people."""
    rows = [
        ("requests", f"{summary.requests}, {summary.failed} failed"),
        ("duration", f"{summary.duration_s:.2f} s"),
        ("requests a second", f"{summary.requests_per_s:.2f}"),
        ("output tokens a second", f"{summary.output_tokens_per_s:.1f}"),
        ("input tokens, average", f"{summary.avg_input_tokens:.1f}"),
        ("output tokens, average", f"{summary.avg_output_tokens:.1f}"),
    ]
    named = (
        ("latency", summary.latency),
        ("first token", summary.first_token),
        ("time per token", summary.per_token),
        ("sent late", summary.late),
    )
    for name, spread in named:
        if spread is not None and not (name == "sent late" and spread.max < 1):
            figures = ", ".join(f"{key} {getattr(spread, key):.1f}" for key in _QUANTILES)
            rows.append((f"{name}, ms", figures))
    if summary.first_error is not None:
        rows.append(("first error", summary.first_error))
    return rows


def as_csv(measured: Sequence[Measured]) -> str:
    """A row per request, by the time when it was due."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["due_s", "sent_s", "first_s", "end_s", "input_tokens", "output_tokens", "latency_s", "error"]
    )
    for one in sorted(measured, key=lambda one: one.due_s):
        first = "" if one.first_s is None else f"{one.first_s:.6f}"
        times = [f"{one.due_s:.6f}", f"{one.sent_s:.6f}", first, f"{one.end_s:.6f}"]
        writer.writerow(
            [*times, one.input_tokens, one.output_tokens, f"{one.latency_s:.6f}", one.error or ""]
        )
    return out.getvalue()
