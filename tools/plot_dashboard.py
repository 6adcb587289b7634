#!/usr/bin/env python3
"""Draws the dashboard for Grafana from what a Prometheus has: a picture for each of its questions. Owns the
layout and units of pictures; panels and queries are the dashboard's.

    pip install --group plots && tools/plot_dashboard.py http://127.0.0.1:9090 --minutes 5 --into docs/images
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

DASHBOARD = Path(__file__).parents[1] / "deploy/monitoring/dashboards/inflight.json"
COLUMNS = 3
#: Inches, at 80 dots each.
WIDTH, HEIGHT, DOTS = 4.6, 2.7, 80
#: Enough to see a line's form.
POINTS = 120
MOST_LINES = 10
COLORS = pyplot.colormaps["tab10"].colors
#: By panel unit: what a number is multiplied with, and what stands behind it.
UNITS = {"s": (1, " s"), "percentunit": (100, " %"), "reqps": (1, "/s"), "none": (1, "")}

Line = tuple[str, list[float], list[float]]


def variables(minutes: float) -> dict[str, str]:
    return {"$__rate_interval": f"{max(15, int(minutes * 4))}s", "$gateways": ".*", "$workers": ".*"}


def series(address: str, target: dict[str, Any], minutes: float) -> Iterator[Line]:
    """Legend, minutes before now, and numbers of each series of a query."""
    query = target["expr"]
    for variable, value in variables(minutes).items():
        query = query.replace(variable, value)
    now = time.time()
    span = minutes * 60
    arguments = {"query": query, "start": now - span, "end": now, "step": span / POINTS}
    with urlopen(f"{address}/api/v1/query_range?{urlencode(arguments)}", timeout=30) as answer:
        result = json.load(answer)["data"]["result"]
    for one in result:
        labels = one["metric"]
        legend = target["legendFormat"]
        for label in re.findall(r"\{\{(\w+)\}\}", legend):
            legend = legend.replace(f"{{{{{label}}}}}", labels.get(label, ""))
        points = [(float(at), float(value)) for at, value in one["values"]]
        points = [(at, value) for at, value in points if math.isfinite(value)]
        yield legend, [(at - now) / 60 for at, _ in points], [value for _, value in points]


def draw(axes: Axes, panel: dict[str, Any], lines: list[Line], minutes: float) -> None:
    factor, suffix = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    # Only what happens: a line at zero for each label would fill the legend.
    lines = [line for line in lines if any(line[2])] or lines
    for (legend, times, values), color in zip(lines[:MOST_LINES], COLORS, strict=False):
        scaled = [value * factor for value in values]
        axes.plot(
            times, scaled, label=textwrap.shorten(legend, 44, placeholder="…"), color=color, linewidth=1.2
        )
    axes.set_title(panel["title"], fontsize=9, loc="left", weight="bold")
    axes.set_xlim(-minutes, 0)
    top = axes.get_ylim()[1]
    axes.set_ylim(0, max(top, 1e-3) if any(any(values) for _, _, values in lines) else 1)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}{suffix}"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} min"))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if lines:
        axes.legend(fontsize=6, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=2, frameon=False)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes, color="gray")


def questions(dashboard: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The plots below each row."""
    found: dict[str, list[dict[str, Any]]] = {}
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            found[panel["title"]] = []
        elif found:
            next(reversed(found.values())).append(panel)
    return found


def picture(address: str, title: str, panels: list[dict[str, Any]], minutes: float, path: Path) -> None:
    rows = math.ceil(len(panels) / COLUMNS)
    size = (COLUMNS * WIDTH, rows * HEIGHT + 0.4)
    figure, places = pyplot.subplots(rows, COLUMNS, figsize=size, layout="constrained", squeeze=False)
    figure.suptitle(title, fontsize=13, weight="bold", x=0.01, ha="left")
    for axes, panel in zip(places.flat, panels, strict=False):
        lines = [line for target in panel["targets"] for line in series(address, target, minutes)]
        draw(axes, panel, lines, minutes)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DOTS)
    pyplot.close(figure)
    # Lines and letters need few colors: a third of the bytes.
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)


def draw_all(address: str, minutes: float, folder: Path) -> list[Path]:
    """Draws each question's plots into a file of its own."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    paths = []
    for title, panels in questions(dashboard).items():
        name = re.sub(r"\W+", "-", title.lower()).strip("-")
        paths.append(folder / f"watch-{name}.png")
        picture(address, title, panels, minutes, paths[-1])
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the dashboard from a Prometheus' answers.")
    parser.add_argument("address", help="URL of the Prometheus")
    parser.add_argument("--minutes", type=float, default=60, help="Minutes to draw, up to now")
    parser.add_argument("--into", type=Path, default=Path(), help="Directory for the pictures")
    options = parser.parse_args()
    for path in draw_all(options.address.rstrip("/"), options.minutes, options.into):
        print(path)


if __name__ == "__main__":
    main()
