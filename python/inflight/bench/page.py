"""The HTML report of a run: one file that loads nothing, with its curves as SVG. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inflight.bench.report import Summary, table
from inflight.bench.run import Measured

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 44
#: Curves of more points are thinned: a page is looked at, not computed with.
MOST_POINTS = 400
COLORS = ("#2f6fde", "#c8501e", "#2c8a4b")

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1400px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .25rem .75rem .25rem 0; text-align: left; border-bottom: 1px solid #8884; }
td { font-variant-numeric: tabular-nums; }
main { display: flex; flex-wrap: wrap; gap: 1.5rem; }
figure { margin: 0; }
figcaption { font-weight: 600; }
svg { max-width: 100%; height: auto; }
svg text { font-size: 11px; fill: currentColor; }
svg .grid { stroke: #8884; }
"""

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """A line of a chart."""

    name: str
    points: Points


def page(measured: Sequence[Measured], summary: Summary, asked: Sequence[tuple[str, str]]) -> str:
    """The report; `asked` is what the run was asked for."""
    good = sorted((one for one in measured if one.error is None), key=lambda one: one.due_s)
    charts = [
        _chart(
            "Share of requests answered within a time",
            "ms",
            "%",
            [
                Curve("latency", _shares([one.latency_s for one in good])),
                Curve("first token", _shares([t for one in good if (t := one.first_token_s) is not None])),
            ],
        ),
        _chart(
            "Time per token, by share of requests",
            "ms",
            "%",
            [Curve("time per token", _shares([t for one in good if (t := one.per_token_s) is not None]))],
        ),
        _chart(
            "Latency over the run",
            "s, when the request was due",
            "ms",
            [
                Curve("latency", [(one.due_s, one.latency_s * 1e3) for one in good]),
                Curve(
                    "first token",
                    [(one.due_s, t * 1e3) for one in good if (t := one.first_token_s) is not None],
                ),
            ],
        ),
        _chart("Requests that run at the same time", "s", "", [Curve("requests", _running(measured))]),
    ]
    figures = "".join(f"<tr><th>{_(name)}</th><td>{_(value)}</td></tr>" for name, value in table(summary))
    options = "".join(f"<tr><th>{_(name)}</th><td>{_(value)}</td></tr>" for name, value in asked)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Requests under load</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>Requests under load</h1>\n<table>{figures}</table>\n"
        f"<main>{''.join(charts)}</main>\n<h2>Asked for</h2>\n<table>{options}</table>\n</body></html>\n"
    )


def _(text: str) -> str:
    return html.escape(text)


def _shares(seconds: Sequence[float]) -> Points:
    """How many per cent are within each time, in milliseconds."""
    values = np.sort(np.array(seconds) * 1e3)
    return [(float(value), 100 * (place + 1) / len(values)) for place, value in enumerate(values)]


def _running(measured: Sequence[Measured]) -> Points:
    """How many requests have been sent and not ended, as steps."""
    changes = [(one.sent_s, 1) for one in measured] + [(one.end_s, -1) for one in measured]
    # A request that starts and ends at the same time counts as started first.
    changes.sort(key=lambda change: (change[0], -change[1]))
    points: Points = []
    count = 0
    for at, change in changes:
        points.append((at, float(count)))
        count += change
        points.append((at, float(count)))
    return points


def _thinned(points: Points) -> Points:
    if len(points) <= MOST_POINTS:
        return points
    places = np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)
    return [points[place] for place in places]


def _ticks(most: float) -> list[float]:
    """About five round numbers from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(most / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if most / (step * factor) <= 5)
    return [step * place for place in range(math.ceil(most / step - 1e-9) + 1)]


def _chart(title: str, x_unit: str, y_unit: str, curves: Sequence[Curve]) -> str:
    drawn = [Curve(curve.name, _thinned(curve.points)) for curve in curves if curve.points]
    if not drawn:
        return ""
    xs = _ticks(max(x for curve in drawn for x, _y in curve.points))
    ys = _ticks(max(y for curve in drawn for _x, y in curve.points))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + wide * x / xs[-1], TOP + high * (1 - y / ys[-1])

    parts = []
    for tick in xs:
        x, bottom = place(tick, 0)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{tick:g}</text>')
    for tick in ys:
        left, y = place(0, tick)
        parts.append(f'<line class="grid" x1="{left:.1f}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 8}" text-anchor="middle">{_(x_unit)}</text>')
    parts.append(f'<text x="8" y="{TOP - 4}">{_(y_unit)}</text>')
    for number, curve in enumerate(drawn):
        color = COLORS[number % len(COLORS)]
        points = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in curve.points)
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{points}"/>')
        if len(drawn) > 1:
            parts.append(
                f'<text x="{WIDTH - RIGHT}" y="{TOP + 14 * (number + 1)}" text-anchor="end" '
                f'style="fill:{color}">{_(curve.name)}</text>'
            )
    return (
        f"<figure><figcaption>{_(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">{"".join(parts)}'
        "</svg></figure>"
    )
