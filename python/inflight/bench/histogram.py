"""Histograms of token counts, from which the lengths of random requests are drawn. Owns their two forms.

- JSON: ``{"input": [[151, 175, 220], …], "output": [[6, 10, 76], …]}``;
- CSV: a line ``lengths,from,to,count``, then lines such as ``input,151,175,220``.

Each bucket is its first and its last number of tokens, and how many requests are in it: what
`benchmark_core_model.py token-from-histogram` of tensorrtllm_backend has in its code.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inflight.bench.workload import LONGEST
from inflight.errors import UserMistake

#: Requests that a file may ask for by its counts.
MOST = 1_000_000
COLUMNS = ["lengths", "from", "to", "count"]
KINDS = ("input", "output")


@dataclass(frozen=True)
class Histogram:
    """Buckets ``(first, last, count)`` of prompts and of answers."""

    input: tuple[tuple[int, int, float], ...]
    output: tuple[tuple[int, int, float], ...]

    def pairs(self, count: int | None, random: np.random.Generator) -> list[tuple[int, int]]:
        """Lengths of prompts and answers, drawn apart from each other and evenly within a bucket. With a
        `count`, the buckets' counts are shares of it. Without, they hold exactly, and the longer list is
        cut, as NVIDIA's script does it.
        """
        inputs, outputs = (_drawn(buckets, count, random) for buckets in (self.input, self.output))
        return list(zip(inputs, outputs, strict=False))


def read(path: Path) -> Histogram:
    """The histogram of a file. Raises `UserMistake` that names what cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        rows = _of_json(text) if text.lstrip().startswith("{") else _of_csv(text)
        found: dict[str, list[tuple[int, int, float]]] = {kind: [] for kind in KINDS}
        for kind, row in rows:
            found[kind].append(_bucket(kind, row))
        for kind, buckets in found.items():
            total = sum(count for _, _, count in buckets)
            if not 0 < total <= MOST:
                raise ValueError(f"the counts of `{kind}` are `{total:g}` together, not 1 to {MOST}")
    except (OSError, ValueError) as error:
        raise UserMistake(
            f"`{path}` cannot be read as a histogram: {error}",
            "docs/guides/benchmark.md has its forms, in JSON and in CSV",
        ) from None
    return Histogram(tuple(found["input"]), tuple(found["output"]))


def _of_json(text: str) -> Iterable[tuple[str, Any]]:
    whole = json.loads(text)
    if sorted(whole) != sorted(KINDS) or not all(isinstance(rows, list) for rows in whole.values()):
        raise ValueError("the lists `input` and `output` are missing")
    return [(kind, row) for kind in KINDS for row in whole[kind]]


def _of_csv(text: str) -> Iterable[tuple[str, Any]]:
    lines = [line for line in csv.reader(text.splitlines()) if line]
    if not lines or [name.strip() for name in lines[0]] != COLUMNS:
        raise ValueError(f"its first line is not `{','.join(COLUMNS)}`")
    rows = []
    for line in lines[1:]:
        kind, *row = (part.strip() for part in line)
        if kind not in KINDS:
            raise ValueError(f"`{kind}` is neither `input` nor `output`")
        rows.append((kind, [_number(part) for part in row]))
    return rows


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _bucket(kind: str, row: Any) -> tuple[int, int, float]:
    match row:
        case [int(first), int(last), int() | float() as count] if (
            1 <= first <= last <= LONGEST and 0 <= count < math.inf
        ):
            return first, last, count
    raise ValueError(f"`{row}` is not a bucket of `{kind}`: first and last number of tokens, and a count")


def _drawn(
    buckets: Sequence[tuple[int, int, float]], count: int | None, random: np.random.Generator
) -> list[int]:
    counts = np.array([one for _, _, one in buckets], float)
    if count is None:
        chosen = np.repeat(np.arange(len(buckets)), np.rint(counts).astype(int))
        random.shuffle(chosen)
    else:
        chosen = random.choice(len(buckets), size=count, p=counts / counts.sum())
    ends = np.array([(first, last) for first, last, _ in buckets])[chosen]
    return [int(one) for one in random.integers(ends[:, 0], ends[:, 1], endpoint=True)]
