"""The executor's statistics as Triton's custom metrics, under the names of NVIDIA's backend.

The worker decides which number becomes which gauge (`inflight._native.executor_gauges`). Lengths of prompts
and answers are counted here: no statistics have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inflight._native import executor_gauges
from inflight.triton.models.python_backend import pb_utils

#: Upper bounds of the histograms' buckets, as in NVIDIA's backend.
_BUCKETS = [10.0, 50.0, 100.0, 500.0, 1000.0]


class Lengths:
    """Histograms of the tokens of requests that ended. Raises where this Triton has none."""

    def __init__(self, model: str, version: str) -> None:
        self._families = [
            (
                pb_utils.MetricFamily(
                    name=f"nv_llm_{side}_token_len",
                    description=f"Tokens of {what}",
                    kind=pb_utils.MetricFamily.HISTOGRAM,
                ),
                {"model": model, "version": version, "response_metric_type": f"total_{side}_tokens"},
            )
            for side, what in (("input", "prompts"), ("output", "answers"))
        ]
        self._metrics = [family.Metric(labels=labels, buckets=_BUCKETS) for family, labels in self._families]

    def ended(self, prompt: int, generated: int) -> None:
        """Counts a request: the tokens of its prompt, and of all its sequences."""
        for metric, value in zip(self._metrics, (prompt, generated), strict=True):
            metric.observe(float(value))


class Gauges:
    """One model's gauges. Raises where Triton's metrics are switched off."""

    def __init__(self, model: str, version: str) -> None:
        self._labels = {"model": model, "version": version}
        self._set: dict[tuple[str, str], float] = {}
        # Kept: a family that is garbage-collected takes its metrics along.
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, str], Any] = {}
        self.report(None, 0)

    def report(self, stats: Mapping[str, Any] | None, active: int) -> None:
        """Sets those gauges that changed to the latest iteration's numbers with `active` live requests."""
        text = None if stats is None else json.dumps(dict(stats))
        for name, description, label, values in executor_gauges(text, active):
            for kind, value in values:
                if self._set.get((name, kind)) != value:
                    self._metric(name, description, label, kind).set(value)
                    self._set[name, kind] = value

    def _metric(self, name: str, description: str, label: str, kind: str) -> Any:
        if name not in self._families:
            gauge = pb_utils.MetricFamily.GAUGE
            self._families[name] = pb_utils.MetricFamily(name=name, description=description, kind=gauge)
        if (name, kind) not in self._metrics:
            labels = {**self._labels, label: kind}
            self._metrics[name, kind] = self._families[name].Metric(labels=labels)
        return self._metrics[name, kind]
