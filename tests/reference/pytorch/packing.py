"""Chunks of prompts as an iteration has them, and sequences' blocks in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inflight.executors.reference.pytorch.operations import CONTEXT_TILE, Context

Tensor = Any


def context_of(chunks: Sequence[tuple[int, int]], device: str, first_slot: int = 1) -> Context:
    """First positions and rows of chunks, in slots one after the other. As an iteration from a graph has it,
    there is room for more tiles."""
    places, start = [], 0
    for slot, (first, count) in enumerate(chunks, first_slot):
        places.append((start, count, slot, first))
        start += count
    tiles = [
        (row + offset, slot, first + offset, min(CONTEXT_TILE, count - offset))
        for row, count, slot, first in places
        for offset in range(0, count, CONTEXT_TILE)
    ]
    tiles += [(0, 0, 0, 0)] * 3
    given = torch.tensor(tiles, dtype=torch.int32, device=device).T.contiguous()
    return Context(given[0], given[1], given[2], given[3], tuple(places))


def scattered(lengths: Sequence[int], size: int, device: str) -> tuple[int, Tensor]:
    """How many blocks of ``size`` tokens sequences take with one more, which is nobody's, and their tables:
    slot 0 is nobody's either."""
    blocks = [-(-length // size) for length in lengths]
    width = max(blocks) + 1
    order = torch.randperm(sum(blocks), device=device, dtype=torch.int32)
    tables = torch.full((len(lengths) + 1, width), sum(blocks), dtype=torch.int32, device=device)
    for row, own in enumerate(order.split(blocks)):
        tables[row + 1, : len(own)] = own
    return sum(blocks) + 1, tables
