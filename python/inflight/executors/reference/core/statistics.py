"""What each iteration did, under TensorRT-LLM's keys: kept as numbers, written out when somebody asks.

Owns the keys of `IterationStats.to_json_str`, with `numPartialCtxTokens`, which is ours, and how many
iterations are kept. There may be a thousand a second, and a question holds the interpreter's lock while
streams wait: of all but the latest, only what adds up is written out.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inflight.executors.base import IterationStats

from .blocks import BlockPool, CacheStats
from .fetches import Transfers
from .iteration import Iteration
from .scheduler import Limits

#: Iterations that are kept for the next question; TensorRT-LLM's default.
MAX_ITERATIONS = 1000


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of weights and cache, by where they are."""

    cpu: int = 0
    gpu: int = 0
    #: On the host, where a GPU copies from and to.
    pinned: int = 0


@dataclass(frozen=True, slots=True)
class _Recorded:
    number: int
    time_s: float
    seconds: float
    iteration: Iteration
    active: int
    waiting: int
    partial_tokens: int
    used_blocks: int
    used_host_blocks: int
    #: As they were before and after the iteration.
    before: CacheStats
    after: CacheStats


class Statistics:
    """The latest iterations. One thread records; `describe` may be called by another on what `take` gave."""

    def __init__(
        self,
        pool: BlockPool,
        limits: Limits,
        memory: Memory,
        max_seq_len: int,
        transfers: Transfers | None = None,
    ) -> None:
        """``transfers`` are those from other workers, where there may be any."""
        self._transfers = transfers
        self._pool, self._limits, self._memory = pool, limits, memory
        self._window = str(max_seq_len if pool.window is None else pool.window.tokens)
        self._recorded: deque[_Recorded] = deque(maxlen=MAX_ITERATIONS)
        self._count = 0
        self._latest = CacheStats()

    def record(
        self,
        iteration: Iteration,
        time_s: float,
        seconds: float,
        active: int,
        waiting: int,
        partial_tokens: int = 0,
    ) -> None:
        """Keeps an iteration that took ``seconds`` and ended at ``time_s`` of the wall clock, when
        ``partial_tokens`` were computed of prompts that are not complete."""
        self._count += 1
        before, self._latest = self._latest, copy.copy(self._pool.stats)
        self._recorded.append(
            _Recorded(
                self._count,
                time_s,
                seconds,
                iteration,
                active,
                waiting,
                partial_tokens,
                self._pool.used,
                self._pool.used_host,
                before,
                self._latest,
            )
        )

    def take(self) -> list[_Recorded]:
        """Iterations since the last call, oldest first."""
        taken = list(self._recorded)
        self._recorded.clear()
        return taken

    def describe(self, taken: list[_Recorded]) -> list[IterationStats]:
        """Iterations under the keys of TensorRT-LLM's ``IterationStats.to_json_str``, the last with all."""
        return [*map(self._sums, taken[:-1]), *map(self._all, taken[-1:])]

    def _sums(self, recorded: _Recorded) -> IterationStats:
        """What adds up over iterations, where there is something to add."""
        iteration = recorded.iteration
        sums: dict[str, Any] = {
            "iter": recorded.number,
            "iterLatencyMS": recorded.seconds * 1000.0,
            "inflightBatchingStats": {
                "numGenRequests": iteration.generation_requests,
                "numCtxTokens": iteration.context_tokens,
            },
        }
        if iteration.admitted:
            sums["newActiveRequestsQueueLatencyMS"] = iteration.queue_latency_s * 1000.0
            sums["numNewActiveRequests"] = iteration.admitted
        if iteration.completed:
            sums["numCompletedRequests"] = iteration.completed
        if iteration.draft_tokens:
            sums["specDecodingStats"] = self._drafting(recorded)
        return sums

    def _all(self, recorded: _Recorded) -> IterationStats:
        iteration, pool, limits = recorded.iteration, self._pool, self._limits
        transfers = self._transfers
        more = {} if transfers is None else {"disServingStats": _transferred(transfers)}
        return {
            **more,
            # In local time, as Triton's TensorRT-LLM backend reads it.
            "timestamp": datetime.fromtimestamp(recorded.time_s).strftime("%m-%d-%Y %H:%M:%S.%f"),
            "iter": recorded.number,
            "iterLatencyMS": recorded.seconds * 1000.0,
            "newActiveRequestsQueueLatencyMS": iteration.queue_latency_s * 1000.0,
            "numNewActiveRequests": iteration.admitted,
            "numActiveRequests": recorded.active,
            "numQueuedRequests": recorded.waiting,
            "numCompletedRequests": iteration.completed,
            "maxNumActiveRequests": limits.max_batch_size,
            # Nothing tunes sizes while it runs: what is configured holds.
            "maxBatchSizeStatic": limits.max_batch_size,
            "maxBatchSizeTunerRecommended": 0,
            "maxBatchSizeRuntime": limits.max_batch_size,
            "maxNumTokensStatic": limits.max_num_tokens,
            "maxNumTokensTunerRecommended": 0,
            "maxNumTokensRuntime": limits.max_num_tokens,
            "gpuMemUsage": self._memory.gpu,
            "cpuMemUsage": self._memory.cpu,
            "pinnedMemUsage": self._memory.pinned,
            "kvCacheStats": {
                "maxNumBlocks": pool.num_blocks,
                "freeNumBlocks": pool.num_blocks - recorded.used_blocks,
                "usedNumBlocks": recorded.used_blocks,
                "tokensPerBlock": pool.tokens_per_block,
                "allocTotalBlocks": recorded.after.alloc_total_blocks,
                "allocNewBlocks": recorded.after.alloc_new_blocks,
                "reusedBlocks": recorded.after.reused_blocks,
                "missedBlocks": recorded.after.missed_blocks,
                "cacheHitRate": recorded.after.hit_rate,
            },
            "kvCacheIterationStats": {self._window: self._cache_iteration(recorded)},
            "staticBatchingStats": None,
            "inflightBatchingStats": {
                "numScheduledRequests": iteration.context_requests + iteration.generation_requests,
                "numContextRequests": iteration.context_requests,
                "numGenRequests": iteration.generation_requests,
                "numPausedRequests": iteration.paused,
                "numCtxTokens": iteration.context_tokens,
                "numPartialCtxTokens": recorded.partial_tokens,
                "microBatchId": 0,
                "avgNumDecodedTokensPerIter": iteration.generated_tokens / max(1, iteration.decoded_requests),
            },
            "specDecodingStats": self._drafting(recorded),
        }

    def _drafting(self, recorded: _Recorded) -> IterationStats:
        iteration = recorded.iteration
        return {
            "numDraftTokens": iteration.draft_tokens,
            "numAcceptedTokens": iteration.accepted_tokens,
            "numRequestsWithDraftTokens": iteration.requests_with_drafts,
            # Tokens of a step, the one that the model chose itself included.
            "acceptanceLength": 1.0 + iteration.accepted_tokens / max(1, iteration.requests_with_drafts),
            "iterLatencyMS": recorded.seconds * 1000.0,
            "draftOverhead": iteration.draft_s / recorded.seconds if recorded.seconds else 0.0,
        }

    def _cache_iteration(self, recorded: _Recorded) -> IterationStats:
        """One iteration of the cache, as TensorRT-LLM reports it by window size since 1.3."""
        pool, before, after = self._pool, recorded.before, recorded.after
        reused = after.reused_blocks - before.reused_blocks
        missed = after.missed_blocks - before.missed_blocks
        return {
            "primaryMaxNumBlocks": pool.num_blocks,
            "primaryFreeNumBlocks": pool.num_blocks - recorded.used_blocks,
            "primaryUsedNumBlocks": recorded.used_blocks,
            "secondaryMaxNumBlocks": pool.num_host_blocks,
            "secondaryFreeNumBlocks": pool.num_host_blocks - recorded.used_host_blocks,
            "secondaryUsedNumBlocks": recorded.used_host_blocks,
            "iterAllocTotalBlocks": after.alloc_total_blocks - before.alloc_total_blocks,
            "iterAllocNewBlocks": after.alloc_new_blocks - before.alloc_new_blocks,
            "iterReusedBlocks": reused,
            "iterMissedBlocks": missed,
            "iterCacheHitRate": reused / (reused + missed) if reused + missed else 0.0,
            "iterOnboardBlocks": after.onboarded_blocks - before.onboarded_blocks,
            "iterOffloadBlocks": after.offloaded_blocks - before.offloaded_blocks,
        }


def _transferred(transfers: Transfers) -> dict[str, Any]:
    """Since the start; TensorRT-LLM has ``kvCacheTransferMS`` of each request."""
    return {
        "kvCacheTransferMS": transfers.seconds * 1000.0,
        "requestCount": transfers.count,
        "numBlocks": transfers.blocks,
        "fallbacks": dict(transfers.fallbacks),
    }
