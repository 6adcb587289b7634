"""What one sequence took, for a request with ``return_perf_metrics``: TensorRT-LLM's `RequestPerfMetrics`.

Owns the names of Triton's outputs. Times are of a steady clock, as TensorRT-LLM's: only differences mean
anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from inflight.executors.base import NamedTensor

from .blocks import BlockTable
from .drafts import Drafts

_TYPES = {"INT64": "<i8", "INT32": "<i4", "FP32": "<f4"}


@dataclass(slots=True)
class SequenceMetrics:
    """Times in seconds of one clock, and counts since the sequence came."""

    arrival_s: float
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    #: Blocks of tables that it has given back.
    found_blocks: int = 0
    taken_blocks: int = 0

    def note_token(self, now_s: float) -> None:
        """The sequence got one or more tokens."""
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.last_token_s = now_s

    def note_blocks(self, table: BlockTable) -> None:
        """The sequence gives back a table."""
        self.found_blocks += table.found
        self.taken_blocks += table.taken

    def tensors(self, tables: Iterable[BlockTable], drafts: Drafts | None) -> list[NamedTensor]:
        """All of it, with what ``tables`` still hold; a time that has not come is left out.

        Without drafts their counts are zero, as TensorRT-LLM has them: clients read every name.
        """
        found, taken = self.found_blocks, self.taken_blocks
        for table in tables:
            found, taken = found + table.found, taken + table.taken
        told = [
            _tensor("kv_cache_alloc_total_blocks", "INT32", found + taken),
            _tensor("kv_cache_alloc_new_blocks", "INT32", taken),
            _tensor("kv_cache_reused_blocks", "INT32", found),
        ]
        for name in ("arrival", "first_scheduled", "first_token", "last_token"):
            seconds = getattr(self, f"{name}_s")
            if seconds is not None:
                told.append(_tensor(f"{name}_time_ns", "INT64", int(seconds * 1e9)))
        accepted, proposed = (drafts.accepted, drafts.proposed) if drafts else (0, 0)
        told += [
            _tensor("acceptance_rate", "FP32", accepted / max(1, proposed)),
            _tensor("total_accepted_draft_tokens", "INT32", accepted),
            _tensor("total_draft_tokens", "INT32", proposed),
        ]
        return told


def _tensor(name: str, datatype: str, value: float) -> NamedTensor:
    return NamedTensor(name, datatype, (1,), np.array([value], dtype=_TYPES[datatype]).tobytes())
