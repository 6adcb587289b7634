"""What `tools/compare_simulation.py` reads of workers' metrics."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from compare_simulation import computed_tokens, unevenness

METRICS = """
# TYPE inflight_worker_prompt_tokens_total counter
inflight_worker_prompt_tokens_total{model="m"} 4000
inflight_worker_kv_cache_hit_ratio{model="m"} 0.25
"""


def test_computed_tokens_are_those_that_were_not_cached() -> None:
    assert computed_tokens(METRICS) == 3000
    with pytest.raises(ValueError, match="prompt_tokens_total"):
        computed_tokens("")


def test_unevenness_is_the_deviation_over_the_mean() -> None:
    assert unevenness([2.0, 2.0]) == 0
    assert unevenness([1.0, 3.0]) == 0.5
