"""A model's tensors, gathered into what the forward pass computes with, for every family and array type.

Owns how the names of a family become layers: which matrices are joined, turned or scaled as they are loaded.
Knows nothing of files, and of arrays only what `Loading` offers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from .communicator import Communicator
from .config import ModelConfig

ArrayT = TypeVar("ArrayT")
ArrayT_co = TypeVar("ArrayT_co", covariant=True)


class Weights(Protocol[ArrayT_co]):
    """Where a model's tensors come from, as arrays of the implementation that computes."""

    def tensor(self, name: str) -> ArrayT_co:
        """The tensor of a name in `tensors.required_tensors`, in the shape that is stated there."""


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

    def rows_of(self, matrix: ArrayT, first: int, count: int) -> ArrayT:
        """``count`` rows from ``first`` on; those that the matrix does not have are zero."""


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
    #: ``[experts, in]`` of a mixture, whose matrices of the MLP are ``[experts, out, in]``.
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
        router = None
        if config.num_experts:
            router = self._weights.tensor(f"{prefix}.{names.router}.weight")
            experts = [f"{prefix}.{names.expert.format(expert)}" for expert in range(config.num_experts)]
            gate_up = self._loading.stacked([self._matrix(expert, names.gate_up) for expert in experts])
            down = self._loading.stacked([self._matrix(expert, (names.down,)) for expert in experts])
        else:
            gate_up, down = self._matrix(prefix, names.gate_up), self._matrix(prefix, (names.down,))
        return Layer(
            input_norm=self._norm(f"{prefix}.{names.input_norm}"),
            input_norm_bias=self._norm_bias(f"{prefix}.{names.input_norm}"),
            qkv=self._matrix(prefix, names.qkv),
            qkv_bias=self._bias(config.qkv_bias, prefix, names.qkv),
            query_norm=self._norm(f"{prefix}.{names.query_norm}") if config.qk_norm else None,
            key_norm=self._norm(f"{prefix}.{names.key_norm}") if config.qk_norm else None,
            output=self._matrix(prefix, (names.output,)),
            output_bias=self._bias(config.output_bias, prefix, (names.output,)),
            post_norm=self._norm(f"{prefix}.{names.post_norm}"),
            post_norm_bias=self._norm_bias(f"{prefix}.{names.post_norm}"),
            router=router,
            gate_up=gate_up,
            gate_up_bias=self._bias(config.mlp_bias, prefix, names.gate_up),
            down=down,
            down_bias=self._bias(config.mlp_bias, prefix, (names.down,)),
            window=config.windows[index],
            output_norm=self._norm(f"{prefix}.{names.output_norm}") if names.output_norm else None,
            down_norm=self._norm(f"{prefix}.{names.down_norm}") if names.down_norm else None,
            turns_by_second=index in config.sliding_layers,
        )

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


def held(*owners: Any) -> dict[int, Any]:
    """The arrays that ends and layers hold, each once, by their identity."""
    values = (getattr(owner, name) for owner in owners for name in owner.__slots__)
    return {id(value): value for value in values if hasattr(value, "nbytes")}
