"""CUDA graphs of iterations: captured at the start, chosen by size, replayed with an iteration's inputs.

Owns which graphs there are, their inputs, and measuring what they save. Does not know what they hold, which
is `computation`'s, nor what an iteration is for. Spare rows of a graph write to a slot and a block that
nobody reads. Graphs with LoRA adapters, and those with prompts and rows that begin alike, are captured as
they are first needed, all others before the first iteration. Without a GPU, or with plain operations, nothing
is captured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from inflight.executors.reference.core.scheduler import Limits

from . import operations
from .adapters import Spans
from .capturing import no_collection
from .common_prefixes import LEAST_ROWS
from .computation import Computation
from .graph_sizes import Place, buckets, generation_sizes, pays_by_hand, place_with_room, prompt_buckets
from .operations import CONTEXT_TILE, Tensor
from .packing import Array, Packed, PackedShape, padded_generation
from .pieces import Pieces, layers_of_a_piece

#: Iterations by which it is measured what launching by hand takes.
_TIMED = 3
#: Sequences of iterations that can be given up, at most; those of batches are few while clients come.
_IDLE_ROWS = 16
#: Chunks of prompts that an iteration from a graph has room for, or more where there are many sequences.
_CHUNKS = 64

#: Graphs by kind to which one with adapters is added, at most: clients may send adapters of many ranks and
#: sets of modules, and each kind has its own. What comes later is launched by hand.
_ADAPTED_GRAPHS = 256


class Graphs:
    """Those of one `Computation`. What is computed is queued on its stream."""

    def __init__(self, computation: Computation, limits: Limits, tables: Any) -> None:
        """``tables`` are those of LoRA adapters (`AdapterTables`), where kernels are used."""
        self._computation = computation
        self._model = computation.model
        self._tables = tables
        self._graphs: dict[int, Any] = {}
        self._prompt_graphs: dict[Place, Any] = {}
        #: By place, whether rows begin alike, and rank and modules of the adapters.
        self._graphs_by_kind: dict[Any, Any] = {}
        #: By the same places as `_graphs` and `_prompt_graphs`: for iterations that nobody waits for.
        self._pieces: dict[Any, Pieces] = {}
        #: Whether somebody came for whom the current iteration is given up; None: it is not given up.
        self.is_awaited: Callable[[], bool] | None = None
        self._pool: Any = None
        #: Rows of an iteration with prompts that compute as long as it takes to launch it by hand.
        self._launching_rows = math.inf
        # Plain operations look at values on the host, which no graph can.
        if computation.cuda and self._model.operations is not operations:
            self._capture(limits)

    # Which graph.

    @property
    def buckets(self) -> list[int]:
        """The batch sizes that have a graph."""
        return list(self._graphs)

    def bucket(self, count: int) -> int | None:
        """The graph that ``count`` generation rows take."""
        return next((one for one in self._graphs if one >= count), None)

    def prompt_place(self, shape: PackedShape) -> Place | None:
        """The graph for an iteration of that shape, where its spare rows cost less than launching by hand."""
        place = place_with_room(self._prompt_graphs, shape, self._prompt_shape)
        # What is launched by hand is not given up.
        if place is None or self.is_awaited is not None:
            return place
        rows = shape.tokens + shape.generation
        return None if pays_by_hand(rows, sum(place), self._launching_rows) else place

    def _prompt_shape(self, tokens: int, generation: int) -> PackedShape:
        """What the graph of so many prompt tokens and generation rows holds."""
        choosing = min(generation + _CHUNKS, len(self._computation.chosen))
        tiles = tokens // CONTEXT_TILE + min(tokens, choosing)
        return PackedShape(generation, tokens, tiles, choosing).rounded()

    # Computing from them.

    def generation(self, bucket: int, inputs: Array, spans: Spans, begin_alike: bool) -> None:
        """Computes generation rows, by `operations.prepare`'s inputs; ``spans`` are those of adapters."""
        padded = torch.from_numpy(self._padded(inputs, bucket)).pin_memory()
        self._computation.inputs[: 5 * bucket].copy_(padded, non_blocking=True)
        if spans or self._takes_alike(bucket, begin_alike):
            compute = partial(self._computation.generation, bucket)
            self._replay_kind(bucket, spans, bucket, begin_alike, compute)
        else:
            self._replay(self._graphs[bucket], bucket)

    def prompts(
        self,
        place: Place,
        packed: Packed,
        spans_in: Callable[[PackedShape], Spans] | None,
        begin_alike: bool,
    ) -> None:
        """Computes an iteration with prompts; ``spans_in`` the graph's shape are those of adapters."""
        shape = self._prompt_shape(*place)
        pinned = torch.from_numpy(packed.padded(shape, self._computation.spare)).pin_memory()
        inputs = self._prompt_inputs[: len(pinned)].copy_(pinned, non_blocking=True)
        if spans_in is not None or self._takes_alike(place, begin_alike):
            compute = partial(self._computation.prompts, inputs, shape, (), None)
            spans = () if spans_in is None else spans_in(shape)
            self._replay_kind(place, spans, shape.generation + shape.tokens, begin_alike, compute)
        else:
            self._replay(self._prompt_graphs[place], place)

    def fill(self, bucket: int) -> None:
        """Makes all rows of a graph spare ones."""
        spare = self._padded(np.zeros((5, 0), dtype=np.int32), bucket)
        self._computation.inputs[: 5 * bucket] = self._computation.upload(spare)

    def _padded(self, inputs: Any, bucket: int) -> Any:
        """`operations.prepare`'s inputs with spare rows, flat."""
        return padded_generation(inputs, bucket, self._computation.spare).reshape(-1)

    def _replay(self, graph: Any, place: Any) -> None:
        """Computes what a graph holds, in pieces where that may be given up."""
        pieces = self._pieces.get(place)
        if pieces is None or self.is_awaited is None:
            graph.replay()
        else:
            pieces.replay(self.is_awaited)

    def _takes_alike(self, place: Any, begin_alike: bool) -> bool:
        """Whether rows that begin alike get a graph of their kind: not where they may be given up, since
        nobody waits for them, nor where ranks would have to capture it now."""
        if not begin_alike or (self.is_awaited is not None and place in self._pieces):
            return False
        return self._model.communicator.size == 1 or (place, True, None) in self._graphs_by_kind

    def _replay_kind(
        self, place: Any, spans: Spans, rows: int, begin_alike: bool, compute: Callable[..., Any]
    ) -> None:
        """Computes an iteration whose inputs are there from a graph, never in pieces; the first of its kind
        by hand, after which the graph is captured."""
        adapted = self._tables.rows(spans, rows, lasting=True) if spans else None
        kind = (place, begin_alike, None if adapted is None else adapted.kind)
        graph = self._graphs_by_kind.get(kind)
        if graph is not None:
            graph.replay()
            return
        compute(adapted, begin_alike=begin_alike)
        if adapted is not None and len(self._graphs_by_kind) >= _ADAPTED_GRAPHS:
            return
        graph = torch.cuda.CUDAGraph()
        with no_collection():
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            compute(adapted, begin_alike=begin_alike)
            graph.capture_end()
        self._graphs_by_kind[kind] = graph

    # Capturing them.

    def capture(self, compute: Callable[[], Any]) -> Any:
        """A graph of what ``compute`` launches on the stream."""
        compute()  # compiles kernels and picks algorithms, which a capture must not
        torch.cuda.synchronize(self._computation.device)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile, as the one that watches over NCCL does.
        mode = "thread_local"
        stream = self._computation.stream
        with (
            no_collection(),
            torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode=mode),
        ):
            compute()
        self._pool = graph.pool()
        return graph

    def _capture(self, limits: Limits) -> None:
        """Captures the graphs of all sizes, largest first, since they share their memory."""
        computation = self._computation
        longest = limits.max_num_tokens
        sizes = generation_sizes(limits.rows)
        self._prompt_inputs = computation.zeros(sum(self._prompt_shape(longest, sizes[-1]).sizes))
        with torch.inference_mode(), torch.cuda.stream(computation.stream):
            for place in product(reversed(prompt_buckets(longest)), reversed(sizes)):
                self._prompt_graphs[place] = self.capture(self._spare_prompts(place))
            # Ranks must choose alike, and each would measure another time.
            if self._model.communicator.size == 1:
                self._time_launching(longest, sizes[-1])
            for bucket in reversed(buckets(limits.rows)):
                self.fill(bucket)
                compute = partial(computation.generation, bucket)
                self._graphs[bucket] = self.capture(compute)
                if bucket >= LEAST_ROWS and self._model.prefix_keys is not None:
                    alike = self.capture(partial(compute, begin_alike=True))
                    self._graphs_by_kind[bucket, True, None] = alike
            self._graphs = dict(sorted(self._graphs.items()))
            self._prompt_graphs = dict(sorted(self._prompt_graphs.items()))
            self._capture_pieces(limits)
            torch.cuda.synchronize(computation.device)

    def _spare_prompts(self, place: Place) -> Callable[[], Any]:
        """What computes an iteration with prompts from where graphs have their inputs, which are spare rows
        for now."""
        computation, shape = self._computation, self._prompt_shape(*place)
        spare = Packed.empty().padded(shape, computation.spare)
        buffer: Tensor = self._prompt_inputs[: len(spare)]
        buffer.copy_(computation.upload(spare))
        return partial(computation.prompts, buffer, shape)

    def _time_launching(self, tokens: int, generation: int) -> None:
        """Measures `_launching_rows` with spare rows alone."""
        computation = self._computation
        shape = self._prompt_shape(tokens, generation)
        buffer = computation.upload(Packed.empty().padded(shape, computation.spare))
        computation.prompts(buffer, shape)  # which gets its memory
        launching_s, done_s = [], []
        for _ in range(_TIMED):
            torch.cuda.synchronize(computation.device)
            begun_s = time.perf_counter()
            computation.prompts(buffer, shape)
            launching_s.append(time.perf_counter() - begun_s)
            torch.cuda.synchronize(computation.device)
            done_s.append(time.perf_counter() - begun_s)
        # The fastest of each: others may use the device and the host meanwhile.
        self._launching_rows = min(launching_s) / min(done_s) * (tokens + generation)

    def _capture_pieces(self, limits: Limits) -> None:
        """Captures once more, in pieces, what few sequences take that nobody waits for."""
        model = self._model
        layers = layers_of_a_piece(model.memory_bytes, model.config.num_layers)
        # Ranks cannot agree in time on what they give up.
        if layers == model.config.num_layers or model.communicator.size > 1:
            return
        idle = PackedShape(0, limits.idle_num_tokens, 0, 0)
        place = place_with_room(self._prompt_graphs, idle, self._prompt_shape)
        if place is not None:
            self._pieces[place] = Pieces(model, self._spare_prompts(place), layers, self._pool)
        for bucket in reversed([one for one in self._graphs if one <= _IDLE_ROWS]):
            self.fill(bucket)
            compute = partial(self._computation.generation, bucket)
            self._pieces[bucket] = Pieces(model, compute, layers, self._pool)
