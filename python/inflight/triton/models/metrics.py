"""The executor's statistics as Triton's custom metrics, under the names of NVIDIA's backend.

Owns which number of an iteration becomes which gauge; the Rust twin is `crates/worker/src/metrics/page.rs`.
Triton's Python interface has no histograms, so the lengths of prompts and answers are not among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.triton.models.python_backend import pb_utils

#: Family -> its label, its help, and for each value of the label where the number is in the statistics.
FAMILIES: dict[str, tuple[str, str, dict[str, str]]] = {
    "nv_trt_llm_request_metrics": (
        "request_type",
        "Requests in the executor",
        {
            "active": "active",
            "max": "maxNumActiveRequests",
            "scheduled": "inflightBatchingStats.numScheduledRequests",
            "context": "inflightBatchingStats.numContextRequests",
            "waiting": "waiting",
        },
    ),
    "nv_trt_llm_runtime_memory_metrics": (
        "memory_type",
        "Bytes the runtime has allocated",
        {"cpu": "cpuMemUsage", "gpu": "gpuMemUsage", "pinned": "pinnedMemUsage"},
    ),
    "nv_trt_llm_kv_cache_block_metrics": (
        "kv_cache_block_type",
        "Blocks of the KV cache",
        {
            "max": "kvCacheStats.maxNumBlocks",
            "free": "kvCacheStats.freeNumBlocks",
            "used": "kvCacheStats.usedNumBlocks",
            "tokens_per": "kvCacheStats.tokensPerBlock",
            "reused": "kvCacheStats.reusedBlocks",
            "fraction": "fraction",
        },
    ),
    "nv_trt_llm_inflight_batcher_metrics": (
        "inflight_batcher_specific_metric",
        "The latest iteration's batch",
        {
            "total_context_tokens": "inflightBatchingStats.numCtxTokens",
            "generation_requests": "inflightBatchingStats.numGenRequests",
            "micro_batch_id": "inflightBatchingStats.microBatchId",
            "paused_requests": "inflightBatchingStats.numPausedRequests",
        },
    ),
    "nv_trt_llm_general_metrics": (
        "general_type",
        "The latest iteration",
        {"iteration_counter": "iter"},
    ),
}
#: What a finished iteration scheduled is over once nothing is active.
_RUNNING = frozenset(
    {"scheduled", "context", "total_context_tokens", "generation_requests", "paused_requests"}
)


def values(stats: Mapping[str, Any], active: int) -> dict[tuple[str, str], float]:
    """Each gauge's value, by family and value of its label; those that the statistics lack are left out."""
    known = {name: value for name, value in stats.items() if not isinstance(value, Mapping)}
    for part, inner in stats.items():
        if isinstance(inner, Mapping):
            known |= {f"{part}.{name}": value for name, value in inner.items()}
    scheduled = known.get("inflightBatchingStats.numScheduledRequests", 0) if active else 0
    known |= {"active": active, "waiting": max(active - scheduled, 0)}
    if known.get("kvCacheStats.maxNumBlocks"):
        known["fraction"] = known["kvCacheStats.usedNumBlocks"] / known["kvCacheStats.maxNumBlocks"]
    return {
        (family, kind): 0.0 if kind in _RUNNING and not active else float(known[path])
        for family, (_, _, kinds) in FAMILIES.items()
        for kind, path in kinds.items()
        if path in known
    }


class Gauges:
    """One model's gauges; sets those that changed. Raises where Triton has its metrics switched off."""

    def __init__(self, model: str, version: str) -> None:
        self._set: dict[tuple[str, str], float] = {}
        # Kept: a family that is forgotten takes its metrics along.
        self._families = {}
        self._metrics = {}
        for name, (label, text, kinds) in FAMILIES.items():
            family = pb_utils.MetricFamily(name=name, description=text, kind=pb_utils.MetricFamily.GAUGE)
            self._families[name] = family
            for kind in kinds:
                labels = {"model": model, "version": version, label: kind}
                self._metrics[name, kind] = family.Metric(labels=labels)

    def report(self, stats: Mapping[str, Any], active: int) -> None:
        """Sets the gauges to the latest iteration's numbers with `active` live requests."""
        for key, value in values(stats, active).items():
            if self._set.get(key) != value:
                self._metrics[key].set(value)
                self._set[key] = value
