"""Datasets in the forms that NVIDIA's tools write and read. Owns the forms; tokenizes nothing.

- a JSON list of `input`, `instruction`, `output`: `benchmark_core_model.py dataset` of tensorrtllm_backend;
- a JSON object with `samples` of `input_ids` and `output_len`: TensorRT-LLM's `prepare_dataset.py`;
- JSON lines with `prompt` or `input_ids` and `output_tokens`: `trtllm-bench`;
- JSON lines with `input_length`, `output_length` and `timestamp`: traces, as AIPerf and Mooncake have them.
  A `timestamp` in milliseconds may be in any of the forms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inflight.bench.workload import LONGEST, Planned
from inflight.errors import UserMistake

#: Tokens in a word of an expected answer, where the dataset has only its text; NVIDIA's default.
TOKENS_PER_WORD = 1.3


def read(path: Path, vocab_size: int, random: np.random.Generator, per_word: float) -> list[Planned]:
    """The requests of a file. Raises `UserMistake` that names the row which cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserMistake(f"`{path}` cannot be read: {error}", "pass a dataset in JSON") from error
    rows = _rows(path, text)
    if not rows:
        raise UserMistake(f"`{path}` has no requests", "pass a dataset with at least one")
    found = []
    for number, row in enumerate(rows, 1):
        try:
            found.append(_row(row, vocab_size, random, per_word))
        except (KeyError, TypeError, ValueError) as error:
            said = f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error)
            raise UserMistake(
                f"`{path}`: request {number} cannot be read: {said}",
                "docs/guides/benchmark.md lists the forms of datasets",
            ) from None
    return found


def _rows(path: Path, text: str) -> list[Any]:
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and isinstance(whole.get("samples"), list):
        return list(whole["samples"])
    if isinstance(whole, list):
        return whole
    if isinstance(whole, dict):
        return [whole]
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserMistake(
                f"`{path}`: line {number} is not JSON: {error}", "pass a dataset in JSON"
            ) from None
    return rows


def _row(row: Any, vocab_size: int, random: np.random.Generator, per_word: float) -> Planned:
    if not isinstance(row, Mapping):
        raise ValueError("it is not an object")
    due_s = None if row.get("timestamp") is None else float(row["timestamp"]) / 1000
    if due_s is not None and not 0 <= due_s < 1e12:
        raise ValueError(f"`timestamp` is `{row['timestamp']}`")
    if "instruction" in row:
        words = len(str(row["output"]).split(" "))
        prompt = f"{row['input']} {row['instruction']}"
        return Planned(_count(int(words * per_word)), text=prompt, due_s=due_s)
    if "input_length" in row:
        ids = random.integers(0, vocab_size, _count(row["input_length"]))
        return Planned(_count(row["output_length"]), tuple(int(one) for one in ids), due_s=due_s)
    output = _count(row["output_tokens"] if "output_tokens" in row else row["output_len"])
    given = row.get("input_ids", row.get("logits"))
    if given:
        return Planned(output, tuple(int(one) for one in given), due_s=due_s)
    return Planned(output, text=str(row["prompt"]), due_s=due_s)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LONGEST:
        raise ValueError(f"`{value}` is not a number of tokens")
    return max(value, 1)
