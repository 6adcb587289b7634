"""A decoder's forward pass over one ragged batch.

Owns the order of operations, which all of `families` share; every operation itself is in `arrays`. One pass
serves all sequences of an iteration. Knows nothing of requests, scheduling or sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from inflight.executors.reference.model import split
from inflight.executors.reference.model.array_types import Float32, Int
from inflight.executors.reference.model.communicator import Alone, Communicator
from inflight.executors.reference.model.config import ModelConfig, RopeConfig, load_config
from inflight.executors.reference.model.layers import Layer, Loader, Weights, held
from inflight.executors.reference.model.lora import LayerDeltas, Part
from inflight.executors.reference.model.rope import inverse_frequencies, turn_scales
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights

from . import arrays, experts, invariant, latent
from .batch import Batch
from .cache import PagedCache
from .encoder import NumpyEncoder
from .vision import NumpyTower


class NumpyModel:
    """A loaded model: weights and rotary tables, immutable after construction."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights[Float32],
        max_seq_len: int,
        communicator: Communicator[Float32] | None = None,
        batch_invariant: bool = False,
    ) -> None:
        """``config`` and ``weights`` are this rank's part where a ``communicator`` joins it with others."""
        self.config = config
        self.is_batch_invariant = batch_invariant
        self._linear = invariant.linear if batch_invariant else arrays.linear
        self._by_head = invariant.by_head if batch_invariant else arrays.by_head
        self._ranks: Communicator[Float32] = communicator or Alone()
        loader = Loader(config, weights, arrays, self._ranks)
        #: Of a model that sees.
        self.tower = None if config.vision is None else NumpyTower(config.vision, weights)
        #: Of a model that hears.
        self.encoder = None if config.hearing is None else NumpyEncoder(config.hearing, weights)
        self._ends = loader.ends()
        self._layers = tuple(loader.layer(index) for index in range(config.num_layers))
        self._slopes = None
        if config.alibi_slopes is not None:
            self._slopes = np.array(config.alibi_slopes, dtype=np.float32)
        self._cosines, self._sines = self._tables(config.rope, max_seq_len)
        #: Of layers with another rotary embedding.
        self._second_tables: tuple[Float32, Float32] | None = None
        if config.sliding_rope is not None:
            self._second_tables = self._tables(config.sliding_rope, max_seq_len)

    def _tables(self, rope: RopeConfig | None, positions: int) -> tuple[Float32, Float32]:
        """Cosines and sines of all positions."""
        size = self.config.rotary_dim
        frequencies = inverse_frequencies(rope, size)
        return arrays.rope_tables(frequencies, positions, turn_scales(rope, size))

    @property
    def memory_bytes(self) -> int:
        """What the weights take."""
        tables = self._cosines.nbytes + self._sines.nbytes
        tables += sum(table.nbytes for table in self._second_tables or ())
        tables += 0 if self.tower is None else self.tower.memory_bytes
        tables += 0 if self.encoder is None else self.encoder.memory_bytes
        return tables + sum(int(array.nbytes) for array in held(self._ends, *self._layers).values())

    def forward(self, batch: Batch, cache: PagedCache, output_rows: Int) -> Float32:
        """Runs all rows, writes keys and values to ``cache``; final hidden states of ``output_rows``."""
        turns = self._turns(batch)
        second_turns = turns
        if self._second_tables is not None:
            second_turns = (self._second_tables[0][batch.positions], self._second_tables[1][batch.positions])
        attend: Callable[..., Float32] = partial(self._attend, batch)
        if self.is_batch_invariant:
            attend = partial(self._attend_by_run, invariant.parts(batch, cache.tokens_per_block))
        x = self._embed(batch)
        for index, layer in enumerate(self._layers):
            normed = self._norm(x, layer.input_norm, layer.input_norm_bias)
            qkv = self._linear(normed, layer.qkv, layer.qkv_bias)
            self._adapt(batch, index, "qkv", normed, qkv)
            own_turns = second_turns if layer.turns_by_second else turns
            queries = self._store(qkv, layer, batch, cache, index, own_turns)
            mixed = attend(queries, cache, index, layer.window, layer.sink_scores)
            if layer.latent is not None:
                mixed = latent.values(mixed, layer.latent, self._by_head)
            mixed = mixed.reshape(len(mixed), -1)
            projected = self._linear(mixed, layer.output, layer.output_bias)
            self._adapt(batch, index, "output", mixed, projected)
            x += self._given(projected, layer.output_norm)
            if self.encoder is not None:
                for own, heard in batch.heard:
                    x[own] += self.encoder.listen(x[own], index, heard)
            normed = self._norm(x, layer.post_norm, layer.post_norm_bias)
            x += self._given(self._mlp(normed, layer, batch, index), layer.down_norm)
        return self._norm(x[output_rows], self._ends.norm, self._ends.norm_bias)

    def _given(self, part: Float32, norm: Float32 | None) -> Float32:
        """What all ranks together add to the hidden states, from this one's part."""
        given = self._ranks.all_reduce(part)
        return given if norm is None else arrays.rms_norm(given, norm, self.config.norm_epsilon)

    def _store(
        self,
        qkv: Float32,
        layer: Layer[Float32],
        batch: Batch,
        cache: PagedCache,
        index: int,
        turns: tuple[Float32, Float32],
    ) -> Float32:
        """Writes the keys and values of all rows to the cache; their queries ``[T, heads, head_dim]``."""
        config, epsilon, query_heads = self.config, self.config.norm_epsilon, self.config.num_heads
        if layer.latent is not None and config.latent is not None:
            queries, keys = latent.queries_and_keys(
                qkv, layer.latent, config.latent, turns, epsilon, self._linear, self._by_head
            )
            # Values are part of keys.
            arrays.scatter(cache.keys[index], batch.slots, keys)
            return queries
        rotating_heads = query_heads + config.num_kv_heads
        heads = qkv.reshape(len(qkv), -1, config.head_dim)
        rotating, values = heads[:, :rotating_heads], heads[:, rotating_heads:]
        if layer.query_norm is not None and layer.key_norm is not None:
            rotating[:, :query_heads] = arrays.rms_norm(rotating[:, :query_heads], layer.query_norm, epsilon)
            rotating[:, query_heads:] = arrays.rms_norm(rotating[:, query_heads:], layer.key_norm, epsilon)
        rotated = arrays.rope(rotating, *turns)
        arrays.scatter(cache.keys[index], batch.slots, rotated[:, query_heads:])
        arrays.scatter(cache.values[index], batch.slots, values)
        return rotated[:, :query_heads]

    def _turns(self, batch: Batch) -> tuple[Float32, Float32]:
        """Cosines and sines of each row ``[T, head_dim / 2]``: of some pairs by its time, of some by its
        row, of some by its column, where an image has them."""
        sections = None if self.config.rope is None else self.config.rope.sections
        if batch.turned is None or sections is None:
            return self._cosines[batch.positions], self._sines[batch.positions]
        by = np.repeat(np.arange(3), sections)
        pairs = np.arange(len(by))
        places = batch.turned[by].T
        return self._cosines[places, pairs], self._sines[places, pairs]

    def logits(self, hidden: Float32) -> Float32:
        """Logits ``[rows, vocab_size]`` of final hidden states."""
        logits = self._ranks.all_gather(self._linear(hidden, self._ends.head))[:, : self.config.vocab_size]
        softcap = self.config.logit_softcap
        return logits if softcap is None else arrays.capped(logits, softcap)

    def _embed(self, batch: Batch) -> Float32:
        x = arrays.embed(self._ends.embedding, batch.token_ids)
        if batch.embedded is not None:
            x[batch.embedded.rows] = batch.embedded.values
        if self.config.embedding_scale != 1.0:
            x *= np.float32(self.config.embedding_scale)
        if self._ends.positions is not None:
            x += arrays.embed(self._ends.positions, batch.positions)
        return x

    def _norm(self, x: Float32, weight: Float32, bias: Float32 | None) -> Float32:
        if bias is None:
            return arrays.rms_norm(x, weight, self.config.norm_epsilon)
        return arrays.layer_norm(x, weight, bias, self.config.norm_epsilon)

    def _mlp(self, x: Float32, layer: Layer[Float32], batch: Batch, index: int) -> Float32:
        config = self.config
        if layer.router is not None:
            return self._mixture(x, layer, layer.router, batch, index)
        inner = self._linear(x, layer.gate_up, layer.gate_up_bias)
        self._adapt(batch, index, "gate_up", x, inner)
        active = arrays.activate(inner, config.activation, config.gated_mlp)
        out = self._linear(active, layer.down, layer.down_bias)
        self._adapt(batch, index, "down", active, out)
        return out

    def _mixture(
        self, x: Float32, layer: Layer[Float32], router: Float32, batch: Batch, index: int
    ) -> Float32:
        config, product = self.config, self._linear
        scores = product(x, router, layer.router_bias)
        self._adapt(batch, index, "router", x, scores)
        if config.mixture is None:
            best, shares = experts.choose(scores, config.experts_per_token, config.normalized_experts)
        else:
            best, shares = experts.choose_in_groups(
                scores, layer.choice_bias, config.experts_per_token, config.mixture.routing
            )
        compute = partial(
            experts.experts,
            gate_up=layer.gate_up,
            down=layer.down,
            activation=config.activation,
            product=product,
            gate_up_bias=layer.gate_up_bias,
            down_bias=layer.down_bias,
        )
        mixed = compute(x, (best, shares))
        for rows, adapter in batch.adapted:
            deltas = adapter.layers[index]
            if "gate_up" in deltas or "down" in deltas:
                adapt = partial(_adapt_expert, product, deltas)
                mixed[rows] = compute(x[rows], (best[rows], shares[rows]), adapt=adapt)
        if layer.shared_expert is not None:
            inner = arrays.activate(product(x, layer.shared_expert.gate_up), config.activation, True)
            mixed += product(inner, layer.shared_expert.down)
        return mixed

    def _attend(
        self,
        batch: Batch,
        queries: Float32,
        cache: PagedCache,
        layer: int,
        window: int | None,
        sink_scores: Float32 | None,
    ) -> Float32:
        keys, values, size = cache.keys[layer], cache.values[layer], cache.tokens_per_block
        scale, softcap = self.config.scale, self.config.attention_softcap
        mixed = np.empty((*queries.shape[:2], values.shape[-1]), dtype=np.float32)
        for group in batch.generation:
            mixed[group.rows] = arrays.generation_attention(
                queries[group.rows],
                arrays.gather(keys, size, group.block_table)[:, : group.padded],
                arrays.gather(values, size, group.block_table)[:, : group.padded],
                group.mask(window),
                scale,
                self._slopes,
                None if self._slopes is None else group.distances,
                sink_scores,
                softcap=softcap,
            )
        for span in batch.context:
            mixed[span.start : span.stop] = arrays.context_attention(
                queries[span.start : span.stop],
                arrays.gather(keys, size, span.block_table)[0, : span.keys],
                arrays.gather(values, size, span.block_table)[0, : span.keys],
                span.first_position,
                window,
                scale,
                None if span.places is None else span.places[: span.keys],
                span.sink_tokens,
                self._slopes,
                sink_scores,
                softcap=softcap,
            )
        return mixed

    def _attend_by_run(
        self,
        parts: Sequence[invariant.Part],
        queries: Float32,
        cache: PagedCache,
        layer: int,
        window: int | None,
        sink_scores: Float32 | None,
    ) -> Float32:
        """As `_attend`, by the same products for all rows."""
        size = cache.tokens_per_block
        mixed = np.empty((*queries.shape[:2], cache.values[layer].shape[-1]), dtype=np.float32)
        for part in parts:
            mixed[part.rows] = invariant.attention(
                queries[part.rows],
                arrays.gather(cache.keys[layer], size, part.block_table),
                arrays.gather(cache.values[layer], size, part.block_table),
                part,
                self.config.scale,
                window,
                self._slopes,
                sink_scores,
                softcap=self.config.attention_softcap,
            )
        return mixed

    def _adapt(self, batch: Batch, layer: int, part: Part, x: Float32, out: Float32) -> None:
        """Adds what LoRA adapters make of ``x`` to their rows of ``out``."""
        for rows, adapter in batch.adapted:
            for delta in adapter.layers[layer].get(part, ()):
                added = self._linear(self._linear(x[rows], delta.down), delta.up)
                out[rows, delta.slot.start : delta.slot.stop] += added


def _adapt_expert(
    product: arrays.Linear, deltas: LayerDeltas, part: Part, expert: int, x: Float32, out: Float32
) -> None:
    """As `NumpyModel._adapt`, for rows of one adapter that an expert computes."""
    for delta in deltas.get(part, ()):
        if delta.slot.expert == expert:
            out[:, delta.slot.start : delta.slot.stop] += product(product(x, delta.down), delta.up)


def load_model(
    model_dir: Path,
    max_seq_len: int | None = None,
    config: ModelConfig | None = None,
    communicator: Communicator[Float32] | None = None,
    batch_invariant: bool = False,
) -> NumpyModel:
    """Loads a Hugging Face checkpoint directory, or this rank's part of it, as it is or with another
    ``config`` of the whole model. Raises `CheckpointError`, `UnsupportedModelError`."""
    config = config or load_config(model_dir)
    rank, size = (communicator.rank, communicator.size) if communicator else (0, 1)
    weights = CheckpointWeights.of(config, find_weights(model_dir), split.parts(config, rank, size))
    longest = max_seq_len or config.max_position_embeddings
    local = split.local_config(config, rank, size)
    return NumpyModel(local, weights, longest, communicator, batch_invariant)
