"""The ragged batch of one iteration: flat token rows and how they attend.

Owns the layout: generation rows first, then the rows of each prompt chunk. Built once per iteration and
shared by all layers. Knows nothing of weights, sampling or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from inflight.executors.reference.core.blocks import GONE
from inflight.executors.reference.core.prompt_tuning import Embedded, PromptTuning, join, take_virtual
from inflight.executors.reference.model.array_types import Float32, Int
from inflight.executors.reference.model.lora import Adapter

from . import arrays
from .encoder import Heard

#: Cached tokens that one group of generation rows gathers: two mebibytes of keys in the demo model.
_GROUP_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence; ``blocks`` hold its tokens up to and with these, but for those that
    are `GONE`."""

    tokens: Sequence[int]
    first_position: int
    blocks: Sequence[int]
    adapter: Adapter | None = None
    prompt_tuning: PromptTuning | None = None
    #: The embeddings of its tokens that are of images, by rows counted from its first; and what turns its
    #: tokens ``[3, tokens]`` where that is not their positions alone.
    pictured: Embedded | None = None
    turned: Int | None = None
    #: What its sequence hears.
    heard: Heard | None = None


@dataclass(slots=True)
class GenerationGroup:
    """Generation rows of like length, padded to the longest: one batched attention."""

    rows: Int
    lengths: Int
    block_table: Int
    padded: int
    #: The position of each key ``[rows, padded]``, where it is not its place.
    places: Int | None = None
    sink_tokens: int = 0
    _masks: dict[int | None, Float32 | None] = field(default_factory=dict)

    def mask(self, window: int | None) -> Float32 | None:
        """What hides the padding and all before the window; made once per window."""
        if window is not None and int(self.lengths.max()) <= window:
            window = None  # nothing has left it yet
        if window not in self._masks:
            self._masks[window] = arrays.generation_mask(
                self.lengths, self.padded, window, self.places, self.sink_tokens
            )
        return self._masks[window]

    @property
    def distances(self) -> Float32:
        """How far each key ``[rows, padded]`` is from its query: 0 or less."""
        places = np.arange(self.padded) if self.places is None else self.places
        return (places + 1 - self.lengths[:, None]).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ContextSpan:
    """The rows ``start..stop`` are one chunk of a prompt."""

    start: int
    stop: int
    first_position: int
    block_table: Int
    #: Keys that the table holds, and the position of each of its places where that is not the place itself.
    keys: int
    places: Int | None = None
    sink_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """All rows of an iteration: ids, positions and cache slots ``[T]``, and the attention plan."""

    token_ids: Int
    positions: Int
    slots: Int
    generation: tuple[GenerationGroup, ...]
    context: tuple[ContextSpan, ...]
    #: Which rows are computed with which LoRA adapter.
    adapted: tuple[tuple[Int, Adapter], ...] = ()
    #: Which rows are virtual tokens, or tokens of images.
    embedded: Embedded | None = None
    #: What turns each row by time, row and column ``[3, T]``; None: its position.
    turned: Int | None = None
    #: Which rows hear which clip.
    heard: tuple[tuple[Int, Heard], ...] = ()


def build_batch(
    generation: Sequence[Span],
    context: Sequence[Span],
    tokens_per_block: int,
    *,
    windowed: bool = False,
    sink_tokens: int = 0,
    vocab_size: int = 0,
    keeps_places: bool = False,
    sees: bool = False,
) -> Batch:
    """Lays out spans of one token each, then spans of prompts. ``windowed``: some blocks may be `GONE`; the
    first ``sink_tokens`` are seen beyond any window. Ids from ``vocab_size`` on are virtual tokens. With
    ``keeps_places`` a block is laid out where it is in its sequence, whatever is gone; ``sees``: some spans
    may be turned otherwise than by their positions."""
    token_ids: list[int] = [span.tokens[0] for span in generation]
    positions: list[int] = [span.first_position for span in generation]
    slots: list[int] = [
        span.blocks[span.first_position // tokens_per_block] * tokens_per_block
        + span.first_position % tokens_per_block
        for span in generation
    ]
    id_parts = [np.array(token_ids, dtype=np.int64)]
    position_parts = [np.array(positions, dtype=np.int64)]
    slot_parts = [np.array(slots, dtype=np.int64)]
    chunks: list[ContextSpan] = []
    embedded: list[Embedded] = []
    start = len(generation)
    # Without sinks what left the window is a beginning: the rest is laid out as if the sequence began there.
    by_place = bool(sink_tokens) or (windowed and keeps_places)
    shifted = windowed and not by_place
    for span in context:
        table = np.array(span.blocks, dtype=np.int64)
        own = np.arange(span.first_position, span.first_position + len(span.tokens))
        ids = np.array(span.tokens, dtype=np.int64)
        if span.prompt_tuning is not None:
            embedded.append(take_virtual(ids, start, span.prompt_tuning, vocab_size))
        if span.pictured is not None:
            embedded.append(Embedded(start + span.pictured.rows, span.pictured.values))
        id_parts.append(ids)
        position_parts.append(own)
        slot_parts.append(table[own // tokens_per_block] * tokens_per_block + own % tokens_per_block)
        first, table = _kept(span, table, tokens_per_block) if shifted else (span.first_position, table)
        keys, places = first + len(own), None
        table = table[: -(-keys // tokens_per_block)]
        if by_place:
            kept = np.flatnonzero(table != GONE)
            table, places = table[kept], _positions(kept, tokens_per_block)
            keys = int(np.count_nonzero(places < keys))
        chunks.append(ContextSpan(start, start + len(own), first, table[None, :], keys, places, sink_tokens))
        start += len(own)
    return Batch(
        np.concatenate(id_parts),
        np.concatenate(position_parts),
        np.concatenate(slot_parts),
        _group(
            [_shifted(span, tokens_per_block) for span in generation] if shifted else generation,
            tokens_per_block,
            by_place,
            sink_tokens,
        ),
        tuple(chunks),
        _adapted([*generation, *context]),
        join(embedded),
        _turned([*generation, *context]) if sees else None,
        _by_clip([*generation, *context]),
    )


def _turned(spans: Sequence[Span]) -> Int | None:
    """`Batch.turned` of all rows, if some are not turned by their positions."""
    if all(span.turned is None for span in spans):
        return None
    parts = [
        np.tile(np.arange(span.first_position, span.first_position + len(span.tokens)), (3, 1))
        if span.turned is None
        else span.turned
        for span in spans
    ]
    return np.concatenate(parts, axis=1)


def _adapted(spans: Sequence[Span]) -> tuple[tuple[Int, Adapter], ...]:
    """The rows of each adapter, so that its products are taken once."""
    rows: dict[Adapter, list[int]] = {}
    start = 0
    for span in spans:
        if span.adapter is not None:
            rows.setdefault(span.adapter, []).extend(range(start, start + len(span.tokens)))
        start += len(span.tokens)
    return tuple((np.array(own, dtype=np.int64), adapter) for adapter, own in rows.items())


def _by_clip(spans: Sequence[Span]) -> tuple[tuple[Int, Heard], ...]:
    """The rows of each clip, likewise."""
    rows: dict[Heard, list[int]] = {}
    start = 0
    for span in spans:
        if span.heard is not None:
            rows.setdefault(span.heard, []).extend(range(start, start + len(span.tokens)))
        start += len(span.tokens)
    return tuple((np.array(own, dtype=np.int64), heard) for heard, own in rows.items())


def _positions(blocks: Int, tokens_per_block: int) -> Int:
    """The positions of the tokens in blocks, given by their places in the sequence."""
    positions: Int = (blocks[:, None] * tokens_per_block + np.arange(tokens_per_block)).reshape(-1)
    return positions


def _kept(span: Span, table: Int, tokens_per_block: int) -> tuple[int, Int]:
    """A span's first position and its table, counted from its first block that is not `GONE`."""
    gone = span.blocks.count(GONE)
    return span.first_position - gone * tokens_per_block, table[gone:]


def _shifted(span: Span, tokens_per_block: int) -> Span:
    """As `_kept`, for a span of one token. Attention asks only how far tokens are from each other."""
    gone = span.blocks.count(GONE)
    if not gone:
        return span
    return replace(
        span, first_position=span.first_position - gone * tokens_per_block, blocks=span.blocks[gone:]
    )


def _group(
    generation: Sequence[Span], tokens_per_block: int, by_place: bool, sink_tokens: int
) -> tuple[GenerationGroup, ...]:
    """Groups by the magnitude of the number of blocks, so that padding at most doubles the work, and cuts
    the groups so that what is gathered is still in the processor's cache when it is used."""
    by_magnitude: dict[int, list[int]] = {}
    for row, span in enumerate(generation):
        count = span.first_position // tokens_per_block + 1
        if by_place:
            count -= span.blocks.count(GONE)
        by_magnitude.setdefault(count.bit_length(), []).append(row)
    groups = []
    for magnitude, rows in by_magnitude.items():
        most = max(1, _GROUP_TOKENS // (tokens_per_block << magnitude))
        for start in range(0, len(rows), most):
            part = rows[start : start + most]
            if by_place:
                groups.append(_padded_places(generation, part, tokens_per_block, sink_tokens))
            else:
                groups.append(_padded(generation, part, tokens_per_block))
    return tuple(groups)


def _padded_places(
    generation: Sequence[Span], rows: list[int], tokens_per_block: int, sink_tokens: int
) -> GenerationGroup:
    """One group of the given rows, of the blocks that each still has."""
    lengths = np.array([generation[row].first_position + 1 for row in rows], dtype=np.int64)
    kept = []
    for row, length in zip(rows, lengths.tolist(), strict=True):
        table = np.asarray(generation[row].blocks[: -(-length // tokens_per_block)], dtype=np.int64)
        blocks = np.flatnonzero(table != GONE)
        kept.append((table[blocks], _positions(blocks, tokens_per_block)))
    width = max(len(table) for table, _ in kept)
    tables = np.zeros((len(rows), width), dtype=np.int64)
    # Padding is after the end of its row, where the mask hides it.
    places = np.repeat(lengths[:, None], width * tokens_per_block, axis=1)
    for index, (table, positions) in enumerate(kept):
        tables[index, : len(table)] = table
        places[index, : len(positions)] = positions
    return GenerationGroup(
        np.array(rows, dtype=np.int64), lengths, tables, width * tokens_per_block, places, sink_tokens
    )


def _padded(generation: Sequence[Span], rows: list[int], tokens_per_block: int) -> GenerationGroup:
    """One group of the given rows, as wide as its longest."""
    lengths = np.array([generation[row].first_position + 1 for row in rows], dtype=np.int64)
    longest = int(lengths.max())
    width = -(-longest // tokens_per_block)
    table = np.zeros((len(rows), width), dtype=np.int64)
    for index, row in enumerate(rows):
        blocks = generation[row].blocks[:width]
        table[index, : len(blocks)] = blocks
    return GenerationGroup(np.array(rows, dtype=np.int64), lengths, table, longest)
