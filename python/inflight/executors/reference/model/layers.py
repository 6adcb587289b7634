"""A model's tensors, gathered into what the forward pass computes with, for every family and array type.

Owns how the names of a family become layers: which matrices are joined, turned or scaled as they are loaded.
Knows nothing of files, and of arrays only what `Loading` offers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from inflight.model.latent import Latent

from .communicator import Communicator
from .config import ModelConfig
from .latent import DOWN, NORM, QUERY, QUERY_DOWN, QUERY_NORM, QUERY_UP, UP

ArrayT = TypeVar("ArrayT")
ArrayT_co = TypeVar("ArrayT_co", covariant=True)


class Weights(Protocol[ArrayT_co]):
    """Where a model's tensors come from, as arrays of the implementation that computes."""

    def tensor(self, name: str) -> ArrayT_co:
        """The tensor of a name in `tensors.required_tensors`, in the shape that is stated there."""

    def wide(self, name: str) -> ArrayT_co:
        """The same in float32, whatever the model computes in."""


class Loading(Protocol[ArrayT]):
    """What loading asks of an array module."""

    def joined(self, parts: Sequence[ArrayT]) -> ArrayT:
        """One array of all rows."""

    def stacked(self, parts: Sequence[ArrayT]) -> ArrayT:
        """One array with a new first axis."""

    def turned(self, matrix: ArrayT) -> ArrayT:
        """The transposed matrix, as a copy."""

    def unit_rows(self, matrix: ArrayT) -> ArrayT:
        """Each row divided by its length."""

    def added(self, weight: ArrayT, offset: float) -> ArrayT:
        """``weight + offset``, in float32."""

    def no_bias(self, matrix: ArrayT) -> ArrayT:
        """A zero for each row of a matrix ``[out, in]``."""

    def of_experts(self, matrices: ArrayT) -> ArrayT:
        """Matrices ``[experts, in, out]`` as ``[experts, out, in]``. Compressed ones are so already."""

    def heads_of(self, matrix: ArrayT, like: ArrayT, heads: int) -> ArrayT:
        """A matrix ``[heads x out, in]`` as ``[heads, out, in]``, uncompressed in the type of ``like``."""

    def in_order(self, rows: ArrayT, order: Sequence[int]) -> ArrayT:
        """The rows in another order: the first is that of ``order``'s first number."""

    def rows_of(self, matrix: ArrayT, first: int, count: int) -> ArrayT:
        """``count`` rows from ``first`` on; those that the matrix does not have are zero."""


@dataclass(frozen=True, slots=True)
class LatentLayer(Generic[ArrayT]):
    """What latent attention has besides; `Layer.qkv` makes queries, or their vector, and then the keys'."""

    norm: ArrayT
    #: ``[heads, key_dim, rank]`` and ``[heads, value_dim, rank]``.
    key_up: ArrayT
    value_up: ArrayT
    query_norm: ArrayT | None
    query_up: ArrayT | None


@dataclass(frozen=True, slots=True)
class SharedExpert(Generic[ArrayT]):
    """An MLP of all tokens, next to experts."""

    gate_up: ArrayT
    down: ArrayT


@dataclass(frozen=True, slots=True)
class Layer(Generic[ArrayT]):
    """One decoder layer; matrices are ``[out, in]``, projections of the same input are joined."""

    input_norm: ArrayT
    input_norm_bias: ArrayT | None
    qkv: ArrayT
    qkv_bias: ArrayT | None
    query_norm: ArrayT | None
    key_norm: ArrayT | None
    output: ArrayT
    output_bias: ArrayT | None
    post_norm: ArrayT
    post_norm_bias: ArrayT | None
    #: ``[experts, in]`` of a mixture, whose matrices of the MLP are ``[experts, out, in]`` and their biases
    #: ``[experts, out]``; in float32 where experts are chosen in groups.
    router: ArrayT | None
    #: Gate before up, or up alone.
    gate_up: ArrayT
    gate_up_bias: ArrayT | None
    down: ArrayT
    down_bias: ArrayT | None
    window: int | None
    #: Of what attention and the MLP give, before it is added, where it is normed.
    output_norm: ArrayT | None = None
    down_norm: ArrayT | None = None
    #: Whether the second of the model's rotary embeddings turns its heads.
    turns_by_second: bool = False
    router_bias: ArrayT | None = None
    #: By head, float32: what counts in the softmax of its scores besides its keys, and has no value.
    sink_scores: ArrayT | None = None
    latent: LatentLayer[ArrayT] | None = None
    shared_expert: SharedExpert[ArrayT] | None = None
    #: By expert, float32: what counts in their choice besides the scores.
    choice_bias: ArrayT | None = None


@dataclass(frozen=True, slots=True)
class Ends(Generic[ArrayT]):
    """What comes before the layers and after them."""

    #: ``[vocabulary, hidden]``
    embedding: ArrayT
    #: ``[positions, hidden]`` where positions are learned.
    positions: ArrayT | None
    norm: ArrayT
    norm_bias: ArrayT | None
    #: ``[vocabulary, hidden]``, of which a rank holds its rows; the embedding itself where they are tied.
    head: ArrayT


class Loader(Generic[ArrayT]):
    """Reads a model's tensors."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights[ArrayT],
        loading: Loading[ArrayT],
        communicator: Communicator[ArrayT],
    ) -> None:
        self._config = config
        self._communicator = communicator
        self._weights = weights
        self._loading = loading

    def ends(self) -> Ends[ArrayT]:
        """Embeddings, final norm and head."""
        config, names = self._config, self._config.names
        embedding = self._weights.tensor(f"{names.embedding}.weight")
        ranks = self._communicator
        if not config.tie_word_embeddings:
            head = self._weights.tensor(f"{names.head}.weight")
        elif ranks.size == 1:
            head = embedding
        else:
            count = -(-config.vocab_size // ranks.size)
            head = self._loading.rows_of(embedding, ranks.rank * count, count)
        learned = config.positions == "learned"
        return Ends(
            embedding=embedding,
            positions=self._weights.tensor(f"{names.positions}.weight") if learned else None,
            norm=self._norm(names.final_norm),
            norm_bias=self._norm_bias(names.final_norm),
            head=self._loading.unit_rows(head) if config.unit_head else head,
        )

    def layer(self, index: int) -> Layer[ArrayT]:
        """One layer."""
        config, names = self._config, self._config.names
        prefix = names.layer.format(index)
        has_experts = config.has_experts(index)
        gate_up, gate_up_bias, down, down_bias = self._mlp(prefix, has_experts)
        qkv = names.qkv if config.latent is None else _latent_inputs(config.latent)
        return Layer(
            input_norm=self._norm(f"{prefix}.{names.input_norm}"),
            input_norm_bias=self._norm_bias(f"{prefix}.{names.input_norm}"),
            qkv=self._turned(self._matrix(prefix, qkv)),
            qkv_bias=self._turned(self._bias(config.qkv_bias, prefix, names.qkv)),
            query_norm=self._norm(f"{prefix}.{names.query_norm}") if config.qk_norm else None,
            key_norm=self._norm(f"{prefix}.{names.key_norm}") if config.qk_norm else None,
            output=self._matrix(prefix, (names.output,)),
            output_bias=self._bias(config.output_bias, prefix, (names.output,)),
            post_norm=self._norm(f"{prefix}.{names.post_norm}"),
            post_norm_bias=self._norm_bias(f"{prefix}.{names.post_norm}"),
            router=self._router(f"{prefix}.{names.router}.weight") if has_experts else None,
            gate_up=gate_up,
            gate_up_bias=gate_up_bias,
            down=down,
            down_bias=down_bias,
            window=config.windows[index],
            output_norm=self._norm(f"{prefix}.{names.output_norm}") if names.output_norm else None,
            down_norm=self._norm(f"{prefix}.{names.down_norm}") if names.down_norm else None,
            turns_by_second=index in config.sliding_layers,
            router_bias=self._bias(config.router_bias, prefix, (names.router,)),
            sink_scores=self._weights.wide(f"{prefix}.{names.sink_scores}") if names.sink_scores else None,
            latent=None if config.latent is None else self._latent(prefix, config.latent),
            shared_expert=self._shared_expert(prefix) if has_experts else None,
            choice_bias=self._choice_bias(f"{prefix}.{names.choice_bias}") if has_experts else None,
        )

    def _turned(self, rows: ArrayT | None) -> Any:
        """Outputs of queries, keys and values, those that turn in the order in which they are computed."""
        config = self._config
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        order = None if rows is None else config.row_order(0, width)
        return rows if order is None or rows is None else self._loading.in_order(rows, order)

    def _mlp(self, prefix: str, has_experts: bool) -> tuple[ArrayT, ArrayT | None, ArrayT, ArrayT | None]:
        """Gate and up, then down, each with its bias: of the layer, or of all its experts."""
        config, names = self._config, self._config.names
        if names.stacked_experts:
            place = f"{prefix}.{names.expert}"
            return (*self._experts(f"{place}.{names.gate_up[0]}"), *self._experts(f"{place}.{names.down}"))
        if has_experts:
            experts = [f"{prefix}.{names.expert.format(expert)}" for expert in range(config.num_experts)]
            gate_up = self._loading.stacked([self._matrix(expert, names.gate_up) for expert in experts])
            down = self._loading.stacked([self._matrix(expert, (names.down,)) for expert in experts])
            return gate_up, None, down, None
        prefix = f"{prefix}.{names.dense}" if names.dense else prefix
        return (
            self._matrix(prefix, names.gate_up),
            self._bias(config.mlp_bias, prefix, names.gate_up),
            self._matrix(prefix, (names.down,)),
            self._bias(config.mlp_bias, prefix, (names.down,)),
        )

    def _experts(self, place: str) -> tuple[ArrayT, ArrayT | None]:
        """The matrices and biases of all experts that one tensor each has."""
        bias = self._weights.tensor(f"{place}_bias") if self._config.mlp_bias else None
        return self._loading.of_experts(self._weights.tensor(place)), bias

    def _latent(self, prefix: str, latent: Latent) -> LatentLayer[ArrayT]:
        norm = self._weights.tensor(f"{prefix}.{NORM}.weight")
        query_norm = query_up = None
        if latent.query_rank:
            query_norm = self._weights.tensor(f"{prefix}.{QUERY_NORM}.weight")
            query_up = self._weights.tensor(f"{prefix}.{QUERY_UP}.weight")
        up: Any = self._loading.heads_of(
            self._weights.tensor(f"{prefix}.{UP}.weight"), norm, self._config.num_heads
        )
        key_up, value_up = up[:, : latent.key_dim], up[:, latent.key_dim :]
        return LatentLayer(norm, key_up, value_up, query_norm, query_up)

    def _shared_expert(self, prefix: str) -> SharedExpert[ArrayT] | None:
        mixture, names = self._config.mixture, self._config.names
        if mixture is None or not mixture.shared_size:
            return None
        place = f"{prefix}.{names.shared_expert}"
        return SharedExpert(self._matrix(place, names.gate_up), self._matrix(place, (names.down,)))

    def _router(self, name: str) -> ArrayT:
        """DeepSeek's models choose by scores in float32."""
        return self._weights.tensor(name) if self._config.mixture is None else self._weights.wide(name)

    def _choice_bias(self, name: str) -> ArrayT | None:
        mixture = self._config.mixture
        return self._weights.wide(name) if mixture is not None and mixture.routing.has_bias else None

    def _matrix(self, prefix: str, parts: Sequence[str]) -> ArrayT:
        matrices = [self._weights.tensor(f"{prefix}.{part}.weight") for part in parts]
        if self._config.names.transposed:
            matrices = [self._loading.turned(matrix) for matrix in matrices]
        return matrices[0] if len(matrices) == 1 else self._loading.joined(matrices)

    def _bias(self, present: bool, prefix: str, parts: Sequence[str]) -> ArrayT | None:
        if not present:
            return None
        biases = [self._part_bias(f"{prefix}.{part}", part) for part in parts]
        return self._loading.joined(biases)

    def _part_bias(self, place: str, part: str) -> ArrayT:
        if part in self._config.names.unbiased:
            return self._loading.no_bias(self._weights.tensor(f"{place}.weight"))
        return self._weights.tensor(f"{place}.bias")

    def _norm(self, name: str) -> ArrayT:
        weight = self._weights.tensor(f"{name}.weight")
        offset = self._config.norm_offset
        return self._loading.added(weight, offset) if offset else weight

    def _norm_bias(self, name: str) -> ArrayT | None:
        return self._weights.tensor(f"{name}.bias") if self._config.norm == "layer" else None


def _latent_inputs(latent: Latent) -> tuple[str, str]:
    """What reads the hidden state in latent attention."""
    return (QUERY_DOWN if latent.query_rank else QUERY, DOWN)


def held(*owners: Any) -> dict[int, Any]:
    """The arrays that ends and layers hold, each once, by their identity."""
    found: dict[int, Any] = {}
    for value in (getattr(owner, name) for owner in owners for name in owner.__slots__):
        if isinstance(value, (LatentLayer, SharedExpert)):
            found |= held(value)
        elif hasattr(value, "nbytes"):
            found[id(value)] = value
    return found
