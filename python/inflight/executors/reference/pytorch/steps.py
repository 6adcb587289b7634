"""The device's half of an iteration: from plain arrays to logits and chosen tokens, queued on its stream.

Owns what lives on the device between iterations (the cache, block tables, the latest tokens) and the CUDA
graphs. Where a model is split, every rank takes the same steps on its part: `LedSteps` of rank 0 announces
them. Knows nothing of sequences or sampling: that is the `runner`'s.

An iteration is replayed from the graph of the next larger size, by generation rows or, with prompts, by
their tokens; spare rows write to a slot and a block that nobody reads. One that no graph fits, or whose
hidden states are asked for, is launched operation by operation. Graphs with LoRA adapters are captured as
they are first needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from inflight.executors.reference.core.prompt_tuning import Embedded
from inflight.executors.reference.core.scheduler import Limits
from inflight.executors.reference.model.lora import Adapter, widths
from inflight.executors.reference.parallel.team import Leader

from . import operations
from .adapters import Adapted, DeviceAdapters, Spans
from .capturing import no_collection
from .encoder import slots_of_rows
from .model import Rows, TorchModel
from .operations import CONTEXT_TILE, Context, Tensor
from .packing import Array, Packed, PackedShape, Spare, padded_generation
from .pieces import Pieces, layers_of_a_piece

#: Prompt tokens of an iteration up to which launching its operations takes longer than spare rows do.
_SMALL_PROMPTS = 512
#: How many times longer than launching it takes an iteration computes, at least, to be launched by hand
#: rather than from a graph with more spare rows than this share of its rows.
_HIDDEN, _SPARE_SHARE = 1.5, 1 / 16
#: Iterations by which that is measured.
_TIMED = 3
#: Sequences of iterations that can be given up, at most; those of batches are few while clients come.
_IDLE_ROWS = 16
#: Chunks of prompts that an iteration from a graph has room for, or more where there are many sequences.
_CHUNKS = 64

#: Graphs with adapters, at most: clients may send adapters of many ranks and sets of modules, and each kind
#: has its own. What comes later is launched by hand.
_ADAPTED_GRAPHS = 256


class DeviceSteps:
    """One rank's part of a model and its cache, which has one block more than is counted.

    The steps are taken inside of `queueing`.
    """

    def __init__(
        self,
        model: TorchModel,
        num_blocks: int,
        limits: Limits,
        num_host_blocks: int = 0,
        lora_fraction: float = 0.3,
        lora_host_bytes: int = 1 << 30,
    ) -> None:
        """LoRA adapters get ``lora_fraction`` of the GPU memory that the cache leaves free. On a CPU they get
        ``lora_host_bytes``, the size of the host's adapter cache."""
        self._model = model
        self.device = model.device
        self.cuda = self.device.type == "cuda"
        self._operations = model.operations
        self._size = model.shape.tokens_per_block
        self.spare = Spare(limits.max_batch_size, num_blocks, self._size)
        model.allocate_cache(num_blocks + 1, num_host_blocks)
        width = -(-model.shape.max_seq_len // self._size)
        self._block_tables = self._zeros(limits.max_batch_size + 1, width)
        #: Of a model that sees, what is added to the position of each slot's generation rows.
        self._offsets: Tensor = None if model.tower is None else self._zeros(limits.max_batch_size + 1)
        #: The tokens of the latest choosing rows, where the next iteration finds them.
        self.chosen = self._zeros(limits.rows)
        self._inputs = self._zeros(5 * limits.rows)
        # One for all graphs: an iteration's logits are read before the next one's are written.
        self._logits = torch.empty(
            (limits.rows, model.config.vocab_size), dtype=model.dtype, device=self.device
        )
        #: Of the latest iteration that no graph computed: ``[T, hidden]``.
        self._hidden: Tensor = None
        lora_bytes = self._lora_bytes(lora_fraction) if self.cuda else lora_host_bytes
        #: Adapters in plain operations, and in kernels where the model uses those.
        self._adapters = DeviceAdapters(self.device, model.dtype, lora_bytes)
        self._tables = self._adapter_tables(lora_bytes, limits)
        #: By place, and rank and modules of the adapters.
        self._adapted_graphs: dict[Any, Any] = {}
        # Before all else that runs on the device, such as copies of blocks from another worker.
        self.stream = torch.cuda.Stream(self.device, priority=-1) if self.cuda else None
        self._graphs: dict[int, Any] = {}
        #: By prompt tokens and generation rows.
        self._prompt_graphs: dict[tuple[int, int], Any] = {}
        #: By the same places as `_graphs` and `_prompt_graphs`: for iterations that nobody waits for.
        self._pieces: dict[Any, Pieces] = {}
        self._is_awaited: Callable[[], bool] | None = None
        self._pool: Any = None
        #: Rows of an iteration with prompts that compute as long as it takes to launch it by hand.
        self._launching_rows = math.inf
        self.wait_for_memory()
        # Plain operations look at values on the host, which no graph can.
        if self.cuda and self._operations is not operations:
            self._capture(limits)

    @property
    def table_width(self) -> int:
        """Blocks of the longest sequence."""
        return int(self._block_tables.shape[1])

    @contextmanager
    def queueing(self, is_awaited: Callable[[], bool] | None = None) -> Iterator[None]:
        """What runs inside is queued on the stream. An iteration that nobody waits for is given up once
        ``is_awaited``, where it has graphs in pieces: `GivenUp`."""
        self._is_awaited = is_awaited
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            yield

    def wait_for_memory(self) -> None:
        """Waits until what was made on PyTorch's stream is filled: `stream` would not wait for it."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    @property
    def buckets(self) -> list[int]:
        """The batch sizes that have a graph."""
        return list(self._graphs)

    def bucket(self, count: int, adapted: bool) -> int | None:
        """The graph that ``count`` generation rows take."""
        if adapted and self._tables is None:
            return None
        return next((one for one in self._graphs if one >= count), None)

    def places(self, bucket: int) -> tuple[Tensor, Tensor]:
        """Where a graph's positions and sequence slots are; spare ones, until it is used."""
        self._fill(bucket)
        inputs = self._inputs[: 5 * bucket].view(5, bucket)
        return inputs[2], inputs[3]

    def logits(self, bucket: int) -> Tensor:
        """Where a graph's logits are."""
        return self._logits[:bucket]

    def copy_blocks(self, pairs: Array) -> None:
        """Copies blocks, ``int64 [2, copies]``: sources and targets; no target is a source. Host blocks have
        the numbers after those of the cache."""
        first_host = self.spare.block
        if (pairs >= first_host).any():
            for source, target in pairs.T.tolist():
                if source >= first_host:
                    self._model.onboard_block(source - first_host, target)
                else:
                    self._model.offload_block(source, target - first_host)
            return
        places = self.upload(pairs)
        self._model.copy_blocks(places[0], places[1])

    def note_tables(self, places: Array) -> None:
        """Writes into the block tables, ``int32 [3, entries]``: slots, columns and blocks."""
        noted = self.upload(places)
        self._block_tables[noted[0].long(), noted[1].long()] = noted[2]

    def note_offsets(self, places: Array) -> None:
        """Writes what is added to positions, ``int32 [2, entries]``: slots and offsets."""
        noted = self.upload(places)
        self._offsets[noted[0].long()] = noted[1]

    def generate(self, inputs: Array, adapters: Sequence[Adapter | None] = ()) -> Tensor:
        """Logits of generation rows, by `operations.prepare`'s inputs; the best tokens are in ``chosen``.
        ``adapters`` are those of the rows, if there are any."""
        count = inputs.shape[1]
        bucket = self.bucket(count, bool(adapters))
        spans = [(one, row, 1) for row, one in enumerate(adapters)]
        if bucket is None:
            self._inputs[: 5 * count] = self.upload(inputs.reshape(-1))
            return self._generate(count, self._adapted(spans, count))
        padded = torch.from_numpy(self._pad(inputs, bucket)).pin_memory()
        self._inputs[: 5 * bucket].copy_(padded, non_blocking=True)
        if adapters:
            self._replay_adapted(bucket, spans, bucket, partial(self._generate, bucket))
        else:
            self._replay(self._graphs[bucket], bucket)
        return self._logits

    def mix(
        self,
        packed: Packed,
        probe_tables: Array | None,
        keeps_hidden: bool,
        adapters: Sequence[Adapter | None] = (),
        embedded: Embedded | None = None,
        pictured: Sequence[tuple[range, Tensor]] = (),
        turned: Array | None = None,
        heard: Array | None = None,
    ) -> Tensor:
        """Logits of an iteration with prompts; the best tokens of its choosing rows are in ``chosen``.

        ``probe_tables`` are block tables that are no sequence's own. With ``keeps_hidden``, `hidden_logits`
        of the packed rows can be asked for. ``adapters`` are those of the generation rows, then of the chunks
        and probes, if there are any; ``embedded`` are packed rows, and so are those ``pictured``, with the
        embeddings of images. ``turned [3, tokens]`` is what turns the prompts' tokens, where that is not
        their positions; ``heard [probes]`` is where the clips of those with ``probe_tables`` are.
        """
        keeps_hidden = keeps_hidden or probe_tables is not None
        by_hand = keeps_hidden or embedded is not None or turned is not None
        by_hand = by_hand or (bool(adapters) and self._tables is None)
        bucket = None if by_hand else self._prompt_bucket(packed.shape)
        if bucket is not None:
            shape = self._prompt_shape(*bucket)
            pinned = torch.from_numpy(packed.padded(shape, self.spare)).pin_memory()
            inputs = self._prompt_inputs[: len(pinned)].copy_(pinned, non_blocking=True)
            if adapters:
                spans = _spans(adapters, packed, shape)
                compute = partial(self._prompts, inputs, shape, (), None)
                self._replay_adapted(bucket, spans, shape.generation + shape.tokens, compute)
            else:
                self._replay(self._prompt_graphs[bucket], bucket)
            return self._logits
        shape = packed.shape.rounded()
        chunks = packed.moved_chunks(shape)
        tables = None if probe_tables is None else self.upload(probe_tables)
        buffer = self.upload(packed.padded(shape, self.spare))
        moved = shape.generation - packed.shape.generation
        virtual = self._embeddings(embedded, pictured, moved)
        turns = None
        if turned is not None:
            padding = ((0, 0), (0, shape.tokens - turned.shape[1]))
            turns = self.upload(np.pad(turned.astype(np.int32), padding))
        adapted = self._adapted(_spans(adapters, packed, shape), shape.generation + shape.tokens)
        places = None if heard is None else self.upload(heard)
        hidden, logits = self._prompts(buffer, shape, chunks, tables, adapted, virtual, turns, places)
        self._hidden = hidden if keeps_hidden else None
        return logits

    def _embeddings(
        self, embedded: Embedded | None, pictured: Sequence[tuple[range, Tensor]], moved: int
    ) -> tuple[Tensor, Tensor] | None:
        """`Rows.embedded` of packed rows, which are ``moved``."""
        rows = [np.array(own) for own, _ in pictured]
        values = [value for _, value in pictured]
        if embedded is not None:
            rows.append(embedded.rows)
            values.append(self.upload(embedded.values).to(self._model.dtype))
        return (self.upload(np.concatenate(rows) + moved), torch.cat(values)) if rows else None

    def hidden_logits(self, start: int, stop: int) -> Tensor:
        """Logits of rows of the latest `mix` that kept its hidden states, in its rounded shape."""
        return self._model.logits(self._hidden[start:stop])

    def hidden(self, start: int, stop: int) -> Tensor:
        """The rows' final hidden states themselves, whole on every rank."""
        return self._hidden[start:stop]

    def take(self, tokens: Tensor) -> None:
        """Tokens that rank 0 chose otherwise than by the best logit: int32 ``[rows]``."""
        self.chosen[: len(tokens)] = tokens
        self.share(len(tokens))

    def share(self, count: int) -> None:
        """Sends the first ``count`` of rank 0's ``chosen`` to all."""
        if self._model.communicator.size > 1:
            self._model.communicator.broadcast(self.chosen[:count])

    def upload(self, array: Any) -> Tensor:
        """An array on the device; the copy waits for nothing and nothing waits for it."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.cuda else tensor

    def _lora_bytes(self, fraction: float) -> int:
        """What adapters may take on a GPU."""
        return int(fraction * torch.cuda.mem_get_info(self.device)[0])

    def _adapter_tables(self, lora_bytes: int, limits: Limits) -> Any:
        """For the kernels."""
        config = self._model.config
        if self._operations is operations:
            return None
        from .adapter_tables import AdapterTables

        most, dtype = limits.max_batch_size, self._model.dtype
        rows = limits.max_num_tokens + limits.rows + 8  # with what rounding adds
        return AdapterTables(
            self.device,
            dtype,
            lora_bytes,
            most,
            config.num_layers,
            rows,
            widths(config),
            self.upload,
            config.num_experts,
        )

    def _adapted(self, spans: Spans, rows: int) -> Adapted | None:
        """What adapters do in an iteration of ``rows`` that no graph computes."""
        if not any(adapter is not None for adapter, *_ in spans):
            return None
        if self._tables is None:
            return self._adapters.rows(spans)
        adapted: Adapted = self._tables.rows(spans, rows)
        return adapted

    def _replay_adapted(self, place: Any, spans: Spans, rows: int, compute: Callable[[Adapted], Any]) -> None:
        """Computes an iteration whose inputs are there from a graph; the first of its kind by hand, after
        which the graph is captured."""
        adapted = self._tables.rows(spans, rows, lasting=True)
        kind = (place, adapted.kind)
        graph = self._adapted_graphs.get(kind)
        if graph is not None:
            graph.replay()
            return
        compute(adapted)
        if len(self._adapted_graphs) == _ADAPTED_GRAPHS:
            return
        graph = torch.cuda.CUDAGraph()
        with no_collection():
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            compute(adapted)
            graph.capture_end()
        self._adapted_graphs[kind] = graph

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self.device)

    def _replay(self, graph: Any, place: Any) -> None:
        """Computes what a graph holds, in pieces where that may be given up."""
        pieces = self._pieces.get(place)
        if pieces is None or self._is_awaited is None:
            graph.replay()
        else:
            pieces.replay(self._is_awaited)

    # Generation.

    def _pad(self, inputs: Any, bucket: int) -> Any:
        """`operations.prepare`'s inputs with spare rows, flat."""
        return padded_generation(inputs, bucket, self.spare).reshape(-1)

    def _fill(self, bucket: int) -> None:
        """Makes all rows of a graph spare ones."""
        spare = self._pad(np.zeros((5, 0), dtype=np.int32), bucket)
        self._inputs[: 5 * bucket] = self.upload(spare)

    def _generate(self, count: int, adapted: Adapted | None = None) -> Tensor:
        """One iteration of ``count`` generation rows, from ``_inputs`` to ``chosen``: what graphs hold."""
        inputs = self._inputs[: 5 * count].view(5, count)
        token_ids, cache_slots = self._operations.prepare(inputs, self.chosen, self._block_tables, self._size)
        turned = self._turned(inputs)
        encoder = self._model.encoder
        rows = Rows(
            token_ids,
            inputs[2],
            cache_slots,
            inputs[3],
            self._block_tables,
            adapted=adapted,
            turned=turned,
            listening=None if encoder is None else encoder.listening(inputs[3]),
        )
        return self._choose(self._model.forward(rows))

    def _turned(self, inputs: Tensor) -> Tensor | None:
        """What turns generation rows; None: their positions."""
        return None if self._offsets is None else inputs[2] + self._offsets[inputs[3].long()]

    def _choose(self, hidden: Tensor) -> Tensor:
        """Logits of choosing rows, and their best tokens to ``chosen``."""
        rows = len(hidden)
        logits = self._model.logits(hidden, self._logits[:rows])
        self.chosen[:rows] = logits.argmax(-1)
        return logits

    def _capture(self, limits: Limits) -> None:
        """Captures the graphs of all batch sizes, largest first, since they share their memory."""
        longest = limits.max_num_tokens
        sizes = generation_sizes(limits.rows)
        self._prompt_inputs = self._zeros(sum(self._prompt_shape(longest, sizes[-1]).sizes))
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            for place in product(reversed(prompt_buckets(longest)), reversed(sizes)):
                shape = self._prompt_shape(*place)
                spare = Packed.empty().padded(shape, self.spare)
                self._prompt_inputs[: len(spare)] = self.upload(spare)
                buffer = self._prompt_inputs[: len(spare)]
                self._prompt_graphs[place] = self.capture(partial(self._prompts, buffer, shape))
            # Ranks must choose alike, and each would measure another time.
            if self._model.communicator.size == 1:
                self._time_launching(longest, sizes[-1])
            for bucket in reversed(buckets(limits.rows)):
                self._fill(bucket)
                self._graphs[bucket] = self.capture(partial(self._generate, bucket))
            self._graphs = dict(sorted(self._graphs.items()))
            self._prompt_graphs = dict(sorted(self._prompt_graphs.items()))
            self._capture_pieces(limits)
            torch.cuda.synchronize(self.device)

    def _time_launching(self, tokens: int, generation: int) -> None:
        """Measures `_launching_rows` with spare rows alone."""
        shape = self._prompt_shape(tokens, generation)
        buffer = self.upload(Packed.empty().padded(shape, self.spare))
        self._prompts(buffer, shape)  # which gets its memory
        launching_s, done_s = [], []
        for _ in range(_TIMED):
            torch.cuda.synchronize(self.device)
            begun_s = time.perf_counter()
            self._prompts(buffer, shape)
            launching_s.append(time.perf_counter() - begun_s)
            torch.cuda.synchronize(self.device)
            done_s.append(time.perf_counter() - begun_s)
        # The fastest of each: others may use the device and the host meanwhile.
        self._launching_rows = min(launching_s) / min(done_s) * (tokens + generation)

    def capture(self, compute: Callable[[], Any]) -> Any:
        """A graph of what ``compute`` launches; inside of `queueing`."""
        compute()  # compiles kernels and picks algorithms, which a capture must not
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile, as the one that watches over NCCL does.
        mode = "thread_local"
        with (
            no_collection(),
            torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode=mode),
        ):
            compute()
        self._pool = graph.pool()
        return graph

    def _capture_pieces(self, limits: Limits) -> None:
        """Captures once more, in pieces, what few sequences take that nobody waits for."""
        model = self._model
        layers = layers_of_a_piece(model.memory_bytes, model.config.num_layers)
        # Ranks cannot agree in time on what they give up.
        if layers == model.config.num_layers or model.communicator.size > 1:
            return
        place = self._prompt_place(PackedShape(0, limits.idle_num_tokens, 0, 0))
        if place is not None:
            shape = self._prompt_shape(*place)
            spare = Packed.empty().padded(shape, self.spare)
            self._prompt_inputs[: len(spare)] = self.upload(spare)
            compute = partial(self._prompts, self._prompt_inputs[: len(spare)], shape)
            self._pieces[place] = Pieces(model, compute, layers, self._pool)
        for bucket in reversed([one for one in self._graphs if one <= _IDLE_ROWS]):
            self._fill(bucket)
            self._pieces[bucket] = Pieces(model, partial(self._generate, bucket), layers, self._pool)

    # Prompts.

    def _prompts(
        self,
        buffer: Tensor,
        shape: PackedShape,
        chunks: tuple[tuple[int, ...], ...] = (),
        probe_tables: Tensor | None = None,
        adapted: Adapted | None = None,
        embedded: tuple[Tensor, Tensor] | None = None,
        turns: Tensor | None = None,
        heard: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Hidden states and the logits of choosing rows, from a packed iteration: what graphs hold."""
        generation, ids, positions, slots, tiles, choosing = buffer.split(shape.sizes)
        inputs = generation.view(5, shape.generation)
        turned = self._turned(inputs)
        if turned is not None:
            # Of prompts without images, their positions.
            turned = torch.cat((turned, positions)) if turns is None else _joined(turned, turns)
        if shape.generation:
            token_ids, cache_slots = self._operations.prepare(
                inputs, self.chosen, self._block_tables, self._size
            )
            ids = torch.cat((token_ids, ids))
            positions = torch.cat((inputs[2], positions))
            slots = torch.cat((cache_slots, slots))
        tile_rows, tile_slots, firsts, counts = tiles.view(4, shape.tiles)
        context = Context(tile_rows, tile_slots, firsts, counts, chunks)
        tables = self._block_tables
        if probe_tables is not None:
            tables = torch.cat((tables, probe_tables))
        listening = None
        if self._model.encoder is not None:
            own = slots_of_rows(inputs[3], context, len(ids), self.spare.slot)
            listening = self._model.encoder.listening(own, heard)
        rows = Rows(ids, positions, slots, inputs[3], tables, context, adapted, embedded, turned, listening)
        hidden = self._model.forward(rows)
        return hidden, self._choose(hidden[choosing[: len(self.chosen)].long()])

    def _prompt_bucket(self, shape: PackedShape) -> tuple[int, int] | None:
        """The graph for an iteration of that shape, where its spare rows cost less than launching by hand."""
        place = self._prompt_place(shape)
        # What is launched by hand is not given up.
        if place is None or self._is_awaited is not None:
            return place
        rows = shape.tokens + shape.generation
        return None if pays_by_hand(rows, sum(place), self._launching_rows) else place

    def _prompt_place(self, shape: PackedShape) -> tuple[int, int] | None:
        """The graph with room for an iteration of that shape: the smallest of the next larger number of
        prompt tokens, unless that is much larger."""
        tokens = next((one for one, _ in self._prompt_graphs if one >= shape.tokens), None)
        if tokens is None or (tokens > _SMALL_PROMPTS and tokens > 1.25 * shape.tokens):
            return None
        places = (place for place in self._prompt_graphs if place[0] == tokens)
        return next((place for place in places if shape.fits(self._prompt_shape(*place))), None)

    def _prompt_shape(self, tokens: int, generation: int) -> PackedShape:
        """What the graph of so many prompt tokens and generation rows holds."""
        choosing = min(generation + _CHUNKS, len(self.chosen))
        tiles = tokens // CONTEXT_TILE + min(tokens, choosing)
        return PackedShape(generation, tokens, tiles, choosing).rounded()


class LedSteps(DeviceSteps):
    """Rank 0's part of a model that is split: announces each step to the other ranks before it takes it."""

    def __init__(
        self, model: TorchModel, num_blocks: int, limits: Limits, leader: Leader, num_host_blocks: int = 0
    ) -> None:
        super().__init__(model, num_blocks, limits, num_host_blocks)
        self._leader = leader

    def copy_blocks(self, pairs: Array) -> None:
        self._leader.call("copy_blocks", pairs)
        super().copy_blocks(pairs)

    def note_tables(self, places: Array) -> None:
        self._leader.call("note_tables", places)
        super().note_tables(places)

    def generate(self, inputs: Array, adapters: Sequence[Adapter | None] = ()) -> Tensor:
        _refuse(adapters)
        self._leader.call("generate", inputs)
        return super().generate(inputs)

    def mix(
        self,
        packed: Packed,
        probe_tables: Array | None,
        keeps_hidden: bool,
        adapters: Sequence[Adapter | None] = (),
        embedded: Embedded | None = None,
        pictured: Sequence[tuple[range, Tensor]] = (),
        turned: Array | None = None,
        heard: Array | None = None,
    ) -> Tensor:
        _refuse(adapters)
        if pictured or turned is not None or heard is not None:
            raise RuntimeError("towers and encoders are not split over ranks: such a model is refused")
        self._leader.call("mix", packed, probe_tables, keeps_hidden, (), embedded)
        return super().mix(packed, probe_tables, keeps_hidden, (), embedded)

    def hidden_logits(self, start: int, stop: int) -> Tensor:
        self._leader.call("hidden_logits", start, stop)
        return super().hidden_logits(start, stop)

    def share(self, count: int) -> None:
        self._leader.call("share", count)
        super().share(count)


def _spans(adapters: Sequence[Adapter | None], packed: Packed, shape: PackedShape) -> Spans:
    """The rows of each adapter once packed rows are padded to ``shape``."""
    places = [(row, 1) for row in range(packed.shape.generation)]
    places += [(row, count) for row, count, *_ in packed.moved_chunks(shape)]
    return [(one, *place) for one, place in zip(adapters, places, strict=False)]


def _joined(generation: Tensor, prompts: Tensor) -> Tensor:
    """What turns generation rows ``[R]``, and prompts' tokens ``[3, T]``: together, ``[3, R + T]``."""
    return torch.cat((generation.expand(3, -1), prompts), dim=1)


def _refuse(adapters: Sequence[Adapter | None]) -> None:
    if adapters:
        raise RuntimeError("adapters are not split over ranks: the engine refuses such requests")


def pays_by_hand(rows: int, graph_rows: int, launching_rows: float) -> bool:
    """Whether an iteration of ``rows`` is launched by hand though a graph of more rows has room for it: the
    device computes while the host launches, which takes as long as ``launching_rows`` do."""
    return rows > _HIDDEN * launching_rows and graph_rows - rows > _SPARE_SHARE * rows


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
