#!/usr/bin/env python3
"""Attention over the paged cache alone, in Llama-3.1-8B's shape, as the kernels compute it.

    python tools/measure_attention.py

Of one new token a sequence: microseconds, and the rate at which keys and values are read. Of prompts:
microseconds, and operations a second, counting what a causal mask leaves. Then how far the result is from
plain operations in float32, relative to its size: about 0.003 for bfloat16. In brackets, without a plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from inflight.executors.reference.pytorch import kernels, operations
from inflight.executors.reference.pytorch.operations import CONTEXT_TILE, AttentionShape, Context, Tables

SIZE = 32
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
#: Lengths of the sequences.
GENERATION: dict[str, Sequence[int]] = {
    "1 of 256": [256],
    "1 of 32,768": [32768],
    "8 of 256": [256] * 8,
    "16 of 32,768": [32768] * 16,
    "32 of 512": [512] * 32,
    "64 of 256": [256] * 64,
    "64 of 4,224": [4224] * 64,
    "63 of 256 and one of 32,768": [256] * 63 + [32768],
    "64 of 128 to 8,192": [128 * (1 + place) for place in range(64)],
    "256 of 256": [256] * 256,
    "256 of 64 to 4,096": [16 * (4 + place) for place in range(256)],
    "1,024 of 256": [256] * 1024,
}
#: Sequences, and tokens that they have in common and alone.
PREFIXES: dict[str, tuple[int, int, int]] = {
    "16 of 32,960, 32,768 in common": (16, 32768, 192),
    "64 of 4,288, 4,096 in common": (64, 4096, 192),
    "256 of 2,304, 2,048 in common": (256, 2048, 256),
    "64 of 1,280, 1,024 in common": (64, 1024, 256),
    "4 of 8,448, 8,192 in common": (4, 8192, 256),
}
#: (First position, rows) of each chunk.
CONTEXTS: dict[str, Sequence[tuple[int, int]]] = {
    "64 of 128": [(0, 128)] * 64,
    "8 of 1,024": [(0, 1024)] * 8,
    "8,192 at 0": [(0, 8192)],
    "8,192 at 24,576": [(24576, 8192)],
    "2,048 at 30,720": [(30720, 2048)],
    "1,056 at 24,576": [(24576, 1056)],
    "256 at 8,192": [(8192, 256)],
    "128 at 32,768": [(32768, 128)],
    "16 of 128 at 32,768": [(32768, 128)] * 16,
    "64 of 128 at 4,096": [(4096, 128)] * 64,
}


def median_us(compute: Callable[[], Any]) -> float:
    """Of replays from a graph, as an iteration has it; the caches of the chip hold little of 10 of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        compute()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(10):
                compute()
        times = []
        for _ in range(10):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            stream.synchronize()
            times.append(start.elapsed_time(end) * 100)
    return float(sorted(times)[5])


class Cache:
    """One layer's keys and values, and block tables of sequences of these lengths, blocks in any order; the
    blocks of the first tokens may be common to all."""

    def __init__(self, lengths: Sequence[int], in_common: int = 0) -> None:
        width = -(-max(lengths) // SIZE)
        blocks = sum(-(-length // SIZE) for length in lengths)
        self.shape = AttentionShape(HEADS, KV_HEADS, HEAD_DIM, SIZE, width * SIZE)
        made = (2, blocks, KV_HEADS, SIZE, HEAD_DIM)
        self.keys, self.values = torch.randn(made, device="cuda", dtype=torch.bfloat16)
        order = torch.randperm(blocks, device="cuda", dtype=torch.int32)
        self.tables = torch.zeros((len(lengths), width), dtype=torch.int32, device="cuda")
        taken = 0
        for row, length in enumerate(lengths):
            count = -(-length // SIZE)
            self.tables[row, :count] = order[taken : taken + count]
            taken += count
        self.tables[:, : in_common // SIZE] = self.tables[0, : in_common // SIZE]
        self.slots = torch.arange(len(lengths), dtype=torch.int32, device="cuda")


def error(found: Any, right: Any) -> float:
    """How far apart, relative to what is right."""
    return float((found.float() - right).norm() / right.norm())


def generation(lengths: Sequence[int], in_common: int = 0) -> str:
    """A line of the report."""
    cache = Cache(lengths, in_common)
    queries = torch.randn((len(lengths), HEADS, HEAD_DIM), device="cuda", dtype=torch.bfloat16)
    positions = torch.tensor(lengths, dtype=torch.int32, device="cuda") - 1
    tables = Tables(cache.slots, cache.tables, len(cache.keys)) if in_common else None
    plan = kernels.plan_generation(positions, cache.shape, tables)

    def compute(plan: Any = plan) -> Any:
        return kernels.generation_attention(
            queries, cache.keys, cache.values, cache.tables, cache.slots, positions, None, cache.shape, plan
        )

    found = compute()
    few = sorted({0, len(lengths) // 2, len(lengths) - 1})
    right = operations.generation_attention(
        queries[few].float(),
        cache.keys.float(),
        cache.values.float(),
        cache.tables,
        cache.slots[few],
        positions[few],
        None,
        cache.shape,
        None,
    )
    apart = error(found[few], right)
    del right
    us = median_us(compute)
    again = error(compute(), found.float())
    uncut = median_us(lambda: compute(None))
    planning = median_us(lambda: kernels.plan_generation(positions, cache.shape, tables)) if plan else 0.0
    rate = sum(lengths) * KV_HEADS * HEAD_DIM * 4 / us / 1e6
    return (
        f"{us:9.1f} us ({uncut:9.1f}) {rate:6.2f} TB/s   plan {planning:5.1f} us   "
        f"error {apart:.4f}, again {again:.4f}"
    )


def context(chunks: Sequence[tuple[int, int]]) -> str:
    """A line of the report."""
    cache = Cache([first + count for first, count in chunks])
    rows = sum(count for _, count in chunks)
    queries = torch.randn((rows, HEADS, HEAD_DIM), device="cuda", dtype=torch.bfloat16)
    places, start = [], 0
    for slot, (first, count) in enumerate(chunks):
        places.append((start, count, slot, first))
        start += count
    tiles = [
        (row + offset, slot, first + offset, min(CONTEXT_TILE, count - offset))
        for row, count, slot, first in places
        for offset in range(0, count, CONTEXT_TILE)
    ]
    given = torch.tensor(tiles, dtype=torch.int32, device="cuda").T.contiguous()
    packed = Context(given[0], given[1], given[2], given[3], tuple(places))
    out = torch.empty_like(queries)

    plan = kernels.plan_context(packed, cache.shape, queries.element_size())

    def compute() -> Any:
        kernels.context_attention(
            queries, cache.keys, cache.values, cache.tables, packed, None, cache.shape, plan, out
        )
        return out

    row, count, slot, first = places[-1]
    # Of all rows the plain operations would hold a square of scores.
    few = min(count, 256)
    last = replace(packed, chunks=((row + count - few, few, slot, first + count - few),))
    right = torch.zeros_like(queries, dtype=torch.float32)
    operations.context_attention(
        queries.float(),
        cache.keys.float(),
        cache.values.float(),
        cache.tables,
        last,
        None,
        cache.shape,
        None,
        right,
    )
    apart = error(compute()[-few:], right[-few:])
    del right
    us = median_us(compute)
    pairs = sum(count * first + count * (count + 1) / 2 for first, count in chunks)
    return f"{us:9.1f} us {4 * HEADS * HEAD_DIM * pairs / us / 1e6:6.0f} TFLOP/s   error {apart:.4f}"


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("error: no GPU was found")
    with torch.inference_mode():
        for name, lengths in GENERATION.items():
            print(f"generation, {name:30}", generation(lengths), flush=True)
        for name, (count, in_common, alone) in PREFIXES.items():
            print(f"generation, {name:30}", generation([in_common + alone] * count, in_common), flush=True)
        for name, chunks in CONTEXTS.items():
            print(f"prompts, {name:33}", context(chunks), flush=True)


if __name__ == "__main__":
    main()
