"""A decoder's forward pass on PyTorch: `numpy.model`'s order of operations, on device tensors.

Owns that order and the cache's storage. Every operation is in `operations`, or in `kernels` where the
device runs Triton. Knows nothing of requests, scheduling or sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as functional

from inflight.executors.reference.model.config import ModelConfig, RopeConfig
from inflight.executors.reference.model.layers import Layer, Loader, Weights, held
from inflight.executors.reference.model.lora import Part
from inflight.executors.reference.model.rope import inverse_frequencies, turn_scales

from . import latent, operations
from .adapters import Adapted, adapt_expert
from .communicator import DeviceCommunicator, OneDevice
from .encoder import Listening, TorchEncoder
from .operations import AttentionShape, Context, Tables, Tensor
from .vision import TorchTower

#: Blocks copied at once: 32 of Llama-3.1-8B's hold 128 MiB.
_COPIED_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Rows:
    """One iteration's rows on the device: generation rows first, then those of prompts. All int32."""

    #: ``[T]``
    token_ids: Tensor
    positions: Tensor
    #: Where each row's keys and values go: block x tokens_per_block + offset.
    cache_slots: Tensor
    #: The sequence slot of each generation row ``[R]``.
    generation_slots: Tensor
    #: Of all sequences in flight: ``[slots, blocks of the longest]``.
    block_tables: Tensor
    context: Context | None = None
    #: What LoRA adapters do.
    adapted: Adapted | None = None
    #: The rows that are virtual tokens or of images, ``int64 [rows]``, with their embeddings
    #: ``[rows, hidden]``; never inside a CUDA graph.
    embedded: tuple[Tensor, Tensor] | None = None
    #: Of a model that sees, what turns the rows: int32 ``[T]``, or by time, row and column ``[3, T]`` where
    #: the three may differ.
    turned: Tensor | None = None
    #: Of a model that hears.
    listening: Listening | None = None
    #: Whether many generation rows have the beginnings of their contexts in common.
    begin_alike: bool = False


class TorchModel:
    """A loaded model and its paged cache; the weights are immutable after construction."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights[Tensor],
        max_seq_len: int,
        tokens_per_block: int,
        kernels: ModuleType = operations,
        communicator: DeviceCommunicator | None = None,
        cache_dtype: str = "auto",
    ) -> None:
        """``config`` and ``weights`` are this rank's part where a ``communicator`` joins it with others. The
        cache is in the model's type, or in FP8 with ``cache_dtype`` `fp8`."""
        self.config = config
        self.communicator: DeviceCommunicator = communicator or OneDevice()
        self.operations = kernels
        loader = Loader(config, weights, operations, self.communicator)
        self._ends = loader.ends()
        self._layers = [loader.layer(index) for index in range(config.num_layers)]
        #: The type of cached numbers.
        self.cache_dtype = torch.float8_e4m3fn if cache_dtype == "fp8" else self.dtype
        scale = config.embedding_scale
        self._scale = None if scale == 1.0 else torch.tensor(scale, dtype=self.dtype, device=self.device)
        slopes = None
        if config.alibi_slopes is not None:
            slopes = torch.tensor(config.alibi_slopes, dtype=torch.float32, device=self.device)
        self.shape = AttentionShape(
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            tokens_per_block,
            max_seq_len,
            config.sink_tokens,
            slopes,
            bool(config.names.sink_scores),
            attention_scale=config.attention_scale,
            softcap=config.attention_softcap,
            value_dim=None if config.latent is None else config.latent.rank,
        )
        self._rope = self._tables(config.rope)
        #: Of layers with another rotary embedding.
        self._second_rope = None if config.sliding_rope is None else self._tables(config.sliding_rope)
        #: Of each pair of a head: time, row or column.
        self._turns_by: Tensor = None
        #: Of a model that sees.
        self.tower = None
        if config.vision is not None and config.rope is not None and config.rope.sections is not None:
            self.tower = TorchTower(config.vision, weights)
            sections = torch.tensor(config.rope.sections)
            self._turns_by = torch.arange(3).repeat_interleave(sections).to(self.device)
        #: Of a model that hears.
        self.encoder = None
        if config.hearing is not None:
            self.encoder = TorchEncoder(config.hearing, weights, kernels, tokens_per_block)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        #: Called with the index of each layer before it is queued.
        self.before_layer: Callable[[int], None] | None = None

    def _tables(self, rope: RopeConfig | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[positions, rotary_dim / 2]``."""
        size, longest = self.config.rotary_dim, self.shape.max_seq_len
        frequencies = torch.from_numpy(inverse_frequencies(rope, size))
        angles = torch.arange(longest, dtype=torch.float32)[:, None] * frequencies
        scales = torch.from_numpy(turn_scales(rope, size))
        return (scales * angles.cos()).to(self.device), (scales * angles.sin()).to(self.device)

    @property
    def device(self) -> Tensor:
        return self._ends.embedding.device

    @property
    def dtype(self) -> Tensor:
        return self._ends.embedding.dtype

    @property
    def memory_bytes(self) -> int:
        """What the weights take."""
        tables = sum(table.nbytes for table in (*self._rope, *(self._second_rope or ())))
        tables += 0 if self.tower is None else self.tower.memory_bytes
        tables += 0 if self.encoder is None else self.encoder.memory_bytes
        return int(tables + sum(tensor.nbytes for tensor in held(self._ends, *self._layers).values()))

    def allocate_cache(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Makes room for keys and values of ``num_blocks`` blocks, of all layers in one tensor, and for
        others in the host's memory."""
        layers, shape = self.config.num_layers, self.shape
        # Of FP8 blocks are copied as bytes: not all operations take it.
        copied = torch.uint8 if self.cache_dtype.itemsize == 1 else self.cache_dtype
        parts = 2 if shape.value_dim is None else 1
        self._cache = torch.zeros(
            (parts * layers, num_blocks, shape.kv_heads, shape.tokens_per_block, shape.head_dim),
            dtype=copied,
            device=self.device,
        )
        cache = self._cache.view(self.cache_dtype)
        self._keys, self._values = list(cache[:layers]), list(cache[layers:])
        if shape.value_dim is not None:
            self._values = [keys[..., : shape.value_dim] for keys in self._keys]
        self._host = torch.empty(
            (num_host_blocks, *self._cache[:, 0].shape),
            dtype=copied,
            # So that copies need not wait for one another.
            pin_memory=self.device.type == "cuda" and num_host_blocks > 0,
        )

    @property
    def cache(self) -> Tensor:
        """Keys of all layers, then values: ``[2 x layers, blocks, kv_heads, tokens_per_block, head_dim]``, or
        ``[layers, ...]`` where they are part of keys; of FP8 as bytes."""
        return self._cache

    def copy_blocks(self, sources: Tensor, targets: Tensor) -> None:
        """The keys and values of whole blocks, to other blocks; ``int64 [blocks]``, no target is a source.

        What a copy holds beyond the tokens it was made for is written anew before it is read.
        """
        for start in range(0, len(sources), _COPIED_BLOCKS):
            part = slice(start, start + _COPIED_BLOCKS)
            self._cache[:, targets[part]] = self._cache[:, sources[part]]

    def offload_block(self, source: int, target: int) -> None:
        """A block's keys and values, to a host block."""
        self._host[target].copy_(self._cache[:, source], non_blocking=True)

    def onboard_block(self, source: int, target: int) -> None:
        """A host block's keys and values, to a block."""
        self._cache[:, target] = self._host[source].to(self.device, non_blocking=True)

    @property
    def prefix_keys(self) -> int | None:
        """How many keys generation rows have in common, at least, to read them together; None: they never
        do."""
        if all(layer.window is not None for layer in self._layers):
            return None
        keys: int | None = self.operations.prefix_keys(self.shape)
        return keys

    def forward(self, rows: Rows) -> Tensor:
        """Runs all rows, writes keys and values to the cache; final hidden states ``[T, hidden]``."""
        config, shape, ops = self.config, self.shape, self.operations
        epsilon = config.norm_epsilon
        generating = rows.generation_slots.shape[0]
        tables = None
        if rows.begin_alike:
            tables = Tables(rows.generation_slots, rows.block_tables, len(self._keys[0]))
        plan = ops.plan_generation(rows.positions[:generating], shape, tables) if generating else None
        prompts = rows.context
        narrow = self.cache_dtype != self.dtype
        planned = None if prompts is None else ops.plan_context(prompts, shape, self.dtype.itemsize, narrow)
        turned, turns = self._turns(rows)
        second_turns = turns if self._second_rope is None else self._second_rope
        x = self._embed(rows)
        delta: Tensor | None = None
        more: Tensor | None = None
        delta_norm: Tensor | None = None
        for index, layer in enumerate(self._layers):
            if self.before_layer is not None:
                self.before_layer(index)
            normed = self._norm(x, delta, layer.input_norm, layer.input_norm_bias, more, delta_norm)
            norms = None
            if layer.query_norm is not None and layer.key_norm is not None:
                norms = (layer.query_norm, layer.key_norm)
            qkv, more = self._product(rows, index, "qkv", normed, layer.qkv, layer.qkv_bias)
            if layer.latent is not None and config.latent is not None:
                queries = latent.store(
                    qkv,
                    layer.latent,
                    config.latent,
                    epsilon,
                    turned,
                    turns,
                    rows.cache_slots,
                    self._keys[index],
                    ops,
                )
            else:
                queries = ops.rotate_and_store(
                    qkv,
                    turned,
                    rows.cache_slots,
                    second_turns if layer.turns_by_second else turns,
                    norms,
                    epsilon,
                    self._keys[index],
                    self._values[index],
                    shape,
                    more,
                )
            mixed = self._attend(queries, rows, index, generating, layer, plan, planned)
            if layer.latent is not None:
                mixed = latent.values(mixed, layer.latent)
            mixed = mixed.reshape(len(mixed), -1)
            delta, more = self._product(rows, index, "output", mixed, layer.output, layer.output_bias)
            delta = self.communicator.all_reduce(delta)
            if self.encoder is not None and rows.listening is not None:
                delta, more = self.encoder.listen(x, delta, index, rows.listening, more), None
            normed = self._norm(x, delta, layer.post_norm, layer.post_norm_bias, more, layer.output_norm)
            delta, more = self._mlp(normed, layer, rows, index)
            delta, delta_norm = self.communicator.all_reduce(delta), layer.down_norm
        return self._norm(x, delta, self._ends.norm, self._ends.norm_bias, more, delta_norm)

    def _turns(self, rows: Rows) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Which row of which tables turns each row: of the model's, or of other tables where pairs of
        a head are turned by different positions."""
        if rows.turned is None:
            return rows.positions, self._rope
        if rows.turned.ndim == 1:
            return rows.turned, self._rope
        # Contiguous, as kernels read tables: what is indexed by turned places would be turned as well.
        places = rows.turned.long()[self._turns_by].t().contiguous()
        pairs = torch.arange(places.shape[1], device=self.device)
        cosines, sines = (table[places, pairs] for table in self._rope)
        return torch.arange(len(places), dtype=torch.int32, device=self.device), (cosines, sines)

    def _embed(self, rows: Rows) -> Tensor:
        x = functional.embedding(rows.token_ids, self._ends.embedding)
        if rows.embedded is not None:
            x[rows.embedded[0]] = rows.embedded[1].to(x.dtype)
        if self._scale is not None:
            x *= self._scale
        if self._ends.positions is not None:
            x += functional.embedding(rows.positions, self._ends.positions)
        return x

    def _norm(
        self,
        x: Tensor,
        delta: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        more: Tensor | None,
        delta_norm: Tensor | None,
    ) -> Tensor:
        """``delta_norm`` norms what is added to ``x``, where RMS norms are."""
        epsilon = self.config.norm_epsilon
        if bias is None:
            return self.operations.add_rms_norm(x, delta, weight, epsilon, more, delta_norm)
        return self.operations.add_layer_norm(x, delta, weight, bias, epsilon, more)

    def _product(
        self, rows: Rows, index: int, part: Part, x: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """A linear layer, as `adapters.Adapted.product` with what adapters add to it."""
        compute = partial(self.operations.linear, x, weight, bias)
        return (compute(), None) if rows.adapted is None else rows.adapted.product(index, part, x, compute)

    def _mlp(self, x: Tensor, layer: Layer[Tensor], rows: Rows, index: int) -> tuple[Tensor, Tensor | None]:
        config, ops = self.config, self.operations
        if layer.router is not None:
            seen = x.to(layer.router.dtype)
            scores, more = self._product(rows, index, "router", seen, layer.router, layer.router_bias)
            scores = scores if more is None else scores + more
            chosen, activation = config.experts_per_token, config.activation
            normalized = config.normalized_experts
            adds = None if rows.adapted is None else rows.adapted.experts(index)
            biases = (layer.gate_up_bias, layer.down_bias)
            choice = None
            if config.mixture is not None:
                routing = config.mixture.routing
                choice = ops.choose_in_groups(scores, layer.choice_bias, chosen, routing)
            mixed = ops.experts(
                x, scores, layer.gate_up, layer.down, chosen, activation, normalized, adds, *biases, choice
            )
            for group in () if rows.adapted is None else rows.adapted.groups:
                deltas = group.adapter.layers[index]
                if "gate_up" in deltas or "down" in deltas:
                    mixed[group.rows] = operations.experts(
                        x[group.rows],
                        scores[group.rows],
                        layer.gate_up,
                        layer.down,
                        chosen,
                        activation,
                        normalized,
                        partial(adapt_expert, deltas),
                        *biases,
                        None if choice is None else tuple(part[group.rows] for part in choice),
                    )
            if layer.shared_expert is not None:
                inner = ops.activate(ops.linear(x, layer.shared_expert.gate_up), activation, True)
                mixed += ops.linear(inner, layer.shared_expert.down)
            return mixed, None
        inner, more = self._product(rows, index, "gate_up", x, layer.gate_up, layer.gate_up_bias)
        active = ops.activate(inner, config.activation, config.gated_mlp, more)
        return self._product(rows, index, "down", active, layer.down, layer.down_bias)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Logits ``[rows, vocab_size]`` of final hidden states, in the model's type; in ``out`` if given."""
        logits, softcap = self._head(hidden, out), self.config.logit_softcap
        return logits if softcap is None else self.operations.capped(logits, softcap)

    def _head(self, hidden: Tensor, out: Tensor | None) -> Tensor:
        """The product of `logits`."""
        if self.communicator.size > 1:
            part = self.operations.linear(hidden, self._ends.head)
            logits = self.communicator.all_gather(part)[:, : self.config.vocab_size]
            return logits if out is None else out.copy_(logits)
        if out is None:
            return self.operations.linear(hidden, self._ends.head)
        # The product with one row has a separate kernel, as has that with a compressed matrix.
        if len(hidden) == 1 or not isinstance(self._ends.head, torch.Tensor):
            return out.copy_(self.operations.linear(hidden, self._ends.head))
        return torch.matmul(hidden, self._ends.head.t(), out=out)

    def _attend(
        self,
        queries: Tensor,
        rows: Rows,
        index: int,
        generating: int,
        layer: Layer[Tensor],
        plan: Any,
        planned: Any,
    ) -> Tensor:
        """``plan`` is how generation rows are attended to, ``planned`` how prompts are."""
        keys, values = self._keys[index], self._values[index]
        window, sinks = layer.window, layer.sink_scores
        generation = None
        if generating:
            generation = self.operations.generation_attention(
                queries[:generating],
                keys,
                values,
                rows.block_tables,
                rows.generation_slots,
                rows.positions[:generating],
                window,
                self.shape,
                plan,
                sinks,
            )
        if rows.context is None:
            return generation
        mixed = queries.new_empty((*queries.shape[:2], values.shape[-1]))
        if generation is not None:
            mixed[:generating] = generation
        self.operations.context_attention(
            queries, keys, values, rows.block_tables, rows.context, window, self.shape, planned, mixed, sinks
        )
        return mixed
