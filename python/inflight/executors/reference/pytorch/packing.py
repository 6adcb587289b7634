"""An iteration's rows as one array of int32, so that they go to the device in one copy.

Owns the layout of an iteration with prompts and its padding: to the size of a graph, or to whole groups of 16
bytes, which keeps every part aligned. Pure NumPy; knows nothing of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from inflight.executors.reference.core.prompt_tuning import Embedded, join, take_virtual
from inflight.executors.reference.core.runner import KNOWN, Work

from .operations import CONTEXT_TILE

Array = Any  # numpy.ndarray of int32


@dataclass(frozen=True, slots=True)
class Spare:
    """Where padding rows write: a sequence slot and a cache block that nobody reads."""

    slot: int
    block: int
    tokens_per_block: int

    @property
    def cache_slot(self) -> int:
        return self.block * self.tokens_per_block


@dataclass(frozen=True, slots=True)
class PackedShape:
    """Generation rows, prompt tokens, context tiles, and rows that choose a token."""

    generation: int
    tokens: int
    tiles: int
    choosing: int

    @property
    def sizes(self) -> list[int]:
        """Elements of each part: generation, prompts' ids, positions and cache slots, tiles, choosing."""
        return [5 * self.generation, self.tokens, self.tokens, self.tokens, 4 * self.tiles, self.choosing]

    def fits(self, other: PackedShape) -> bool:
        """Whether ``other`` has room for all of it."""
        return (
            self.generation <= other.generation
            and self.tokens <= other.tokens
            and self.tiles <= other.tiles
            and self.choosing <= other.choosing
        )

    def rounded(self) -> PackedShape:
        """The next shape whose parts are all aligned."""
        return PackedShape(
            *(-(-size // 4) * 4 for size in (self.generation, self.tokens, self.tiles, self.choosing))
        )


@dataclass(frozen=True, slots=True)
class Packed:
    """The parts of an iteration with prompts. Rows count generation rows first, then prompt tokens."""

    #: `operations.prepare`'s inputs ``[5, generation]``.
    generation: Array
    ids: Array
    positions: Array
    slots: Array
    #: Row, sequence slot, first position and rows of each tile: ``[4, tiles]``.
    tiles: Array
    choosing: Array
    #: (first row, rows, sequence slot, first position) of each chunk, then of each probe.
    chunks: tuple[tuple[int, int, int, int], ...]

    @classmethod
    def of(cls, work: Work, generation: Array, tokens_per_block: int, probe_slot: int) -> Packed:
        """The rows of ``work``, whose generation rows are ``generation`` already. Probes have their
        own block tables: they count as sequence slots from ``probe_slot`` on."""
        positions, slots, chunks = [], [], []
        start = len(work.generation)
        choosing = list(range(start))
        spans = [
            (chunk.first, chunk.stop, chunk.sequence.blocks, chunk.sequence.slot, chunk.chooses)
            for chunk in work.chunks
        ]
        spans += [
            (probe.first, probe.first + len(probe.tokens), probe.blocks, probe_slot + place, False)
            for place, probe in enumerate(work.probes)
        ]
        for first, stop, blocks, slot, chooses in spans:
            own = np.arange(first, stop, dtype=np.int32)
            table = np.array(blocks, dtype=np.int32)
            positions.append(own)
            slots.append(table[own // tokens_per_block] * tokens_per_block + own % tokens_per_block)
            chunks.append((start, len(own), slot, first))
            start += len(own)
            if chooses:
                choosing.append(start - 1)
        tokens = [chunk.tokens for chunk in work.chunks] + [probe.tokens for probe in work.probes]
        tiles = [
            (row + offset, slot, first + offset, min(CONTEXT_TILE, count - offset))
            for row, count, slot, first in chunks
            for offset in range(0, count, CONTEXT_TILE)
        ]
        return cls(
            generation,
            np.fromiter(chain.from_iterable(tokens), dtype=np.int32),
            np.concatenate(positions),
            np.concatenate(slots),
            np.array(tiles, dtype=np.int32).T,
            np.array(choosing, dtype=np.int32),
            tuple(chunks),
        )

    def take_virtual(self, work: Work, vocab_size: int) -> Embedded | None:
        """The rows that are virtual tokens; replaces their ids with one of the vocabulary."""
        own, found = self.generation.shape[1], []
        for chunk, (row, count, *_) in zip(work.chunks, self.chunks, strict=False):
            tuning = chunk.sequence.owner.admitted.extras.prompt_tuning
            if tuning is not None:
                found.append(take_virtual(self.ids[row - own : row - own + count], row, tuning, vocab_size))
        return join(found)

    @classmethod
    def empty(cls) -> Packed:
        """No rows at all: padded, it is spare rows only."""
        none = np.zeros(0, dtype=np.int32)
        return cls(none.reshape(5, 0), none, none, none, none.reshape(4, 0), none, ())

    @property
    def shape(self) -> PackedShape:
        return PackedShape(self.generation.shape[1], len(self.ids), self.tiles.shape[1], len(self.choosing))

    def moved_chunks(self, shape: PackedShape) -> tuple[tuple[int, int, int, int], ...]:
        """``chunks`` as they are once `padded` to ``shape``."""
        moved = shape.generation - self.shape.generation
        return tuple((row + moved, *rest) for row, *rest in self.chunks)  # type: ignore[misc]

    def padded(self, shape: PackedShape, spare: Spare) -> Array:
        """All parts in one array of ``shape``; spare rows write to ``spare``, spare tiles are empty."""
        own = self.shape
        moved = shape.generation - own.generation
        flat = np.zeros(sum(shape.sizes), dtype=np.int32)
        generation, ids, positions, slots, tiles, choosing = np.split(flat, np.cumsum(shape.sizes)[:-1])
        generation.reshape(5, -1)[:] = padded_generation(self.generation, shape.generation, spare)
        ids[: own.tokens], positions[: own.tokens] = self.ids, self.positions
        slots[:] = spare.cache_slot
        slots[: own.tokens] = self.slots
        by_tile = tiles.reshape(4, -1)
        by_tile[:, : own.tiles] = self.tiles
        by_tile[0, : own.tiles] += moved
        choosing[: own.choosing] = self.choosing
        choosing[own.generation : own.choosing] += moved
        return flat


def padded_generation(inputs: Array, rows: int, spare: Spare) -> Array:
    """`operations.prepare`'s inputs ``[5, R]`` with spare rows up to ``[5, rows]``."""
    padded = np.zeros((5, rows), dtype=np.int32)
    padded[1], padded[3], padded[4] = KNOWN, spare.slot, spare.block
    padded[:, : inputs.shape[1]] = inputs
    return padded
