"""Which sizes of iterations get a CUDA graph, and when one of them pays.

Pure: numbers in, numbers out. Knows nothing of what a graph holds or how it is captured; that is `graphs`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from .packing import PackedShape

#: Prompt tokens and generation rows of a graph.
Place = tuple[int, int]

#: Prompt tokens of an iteration up to which launching its operations takes longer than spare rows do.
_SMALL_PROMPTS = 512
#: How many times longer than launching it takes an iteration computes, at least, to be launched by hand
#: rather than from a graph with more spare rows than this share of its rows.
_HIDDEN, _SPARE_SHARE = 1.5, 1 / 16


def buckets(most: int) -> list[int]:
    """Batch sizes that get a graph: at most an eighth of the rows of a large one are spare."""
    sizes = [1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128]
    sizes += range(160, 513, 32)
    sizes += range(576, 1025, 64)
    return [*(size for size in sizes if size < most), most]


def generation_sizes(most: int) -> list[int]:
    """Generation rows of an iteration with prompts that get a graph: spare ones cost as much as tokens."""
    return [*(size for size in (64, 256) if size < most), most]


def prompt_buckets(most: int) -> list[int]:
    """Prompt tokens of an iteration that get a graph."""
    sizes = [64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384]
    return [*(size for size in sizes if size < most), most]


def place_with_room(
    places: Collection[Place], shape: PackedShape, shape_of: Callable[[int, int], PackedShape]
) -> Place | None:
    """The graph with room for an iteration of that shape: the smallest of the next larger number of prompt
    tokens, unless that is much larger. ``places`` are in order; ``shape_of`` one is what it holds."""
    tokens = next((one for one, _ in places if one >= shape.tokens), None)
    if tokens is None or (tokens > _SMALL_PROMPTS and tokens > 1.25 * shape.tokens):
        return None
    of_that_size = (place for place in places if place[0] == tokens)
    return next((place for place in of_that_size if shape.fits(shape_of(*place))), None)


def pays_by_hand(rows: int, graph_rows: int, launching_rows: float) -> bool:
    """Whether an iteration of ``rows`` is launched by hand though a graph of more rows has room for it: the
    device computes while the host launches, which takes as long as ``launching_rows`` do."""
    return rows > _HIDDEN * launching_rows and graph_rows - rows > _SPARE_SHARE * rows
