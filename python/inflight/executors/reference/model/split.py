"""Which part of each tensor a rank holds, and which models cannot be split. Pure.

As in Megatron-LM and TensorRT-LLM: of attention every rank has its heads, of the MLP, or of every expert, its
columns; what follows them is split along its inputs, so that the ranks' outputs add up. Where there are fewer
key heads than ranks, several ranks hold the same one. The head is split by the vocabulary; embeddings and
norms are whole everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from inflight.executors.reference.errors import OptionError, UnsupportedModelError
from inflight.model.latent import Latent

from .config import ModelConfig
from .latent import QUERY, QUERY_UP, UP
from .tensors import mlps

#: Ranks that a refusal tries for its advice.
_MOST_RANKS = 64


@dataclass(frozen=True, slots=True)
class Part:
    """What is left of a tensor: ranges along one axis, one behind the other, then zeros up to ``length``."""

    axis: int
    ranges: tuple[tuple[int, int], ...]
    length: int

    @classmethod
    def of(cls, axis: int, *ranges: tuple[int, int]) -> Part:
        return cls(axis, ranges, sum(stop - start for start, stop in ranges))

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The part's shape, from the whole tensor's."""
        return (*whole[: self.axis], self.length, *whole[self.axis + 1 :])


Parts = Mapping[str, Part]


def require_splittable(config: ModelConfig, ranks: int) -> None:
    """Raises `UnsupportedModelError` for a model that this executor does not split, `OptionError` for one
    that this number of ranks does not divide."""
    if config.vision is not None:
        raise UnsupportedModelError(
            f"`{config.architecture}` has a vision tower, which the reference executor does not split",
            "start one rank",
        )
    if config.hearing is not None:
        raise UnsupportedModelError(
            f"`{config.architecture}` has an encoder, which the reference executor does not split",
            "start one rank",
        )
    if config.quantization is not None:
        raise UnsupportedModelError(
            "the checkpoint is quantized, which the reference executor does not split over ranks",
            "start one rank, or use the unquantized checkpoint",
        )
    problem = _indivisible(config, ranks)
    if problem is not None:
        *others, most = [str(n) for n in range(1, _MOST_RANKS + 1) if _indivisible(config, n) is None]
        raise OptionError(
            f"the model's {problem} cannot be split over `{ranks}` ranks",
            f"start {', '.join(others)} or {most} ranks" if others else "start one rank",
        )


def _indivisible(config: ModelConfig, ranks: int) -> str | None:
    """What of the model the number of ranks does not divide."""
    if config.num_heads % ranks:
        return f"`{config.num_heads}` attention heads"
    if config.num_kv_heads % ranks and ranks % config.num_kv_heads:
        return f"`{config.num_kv_heads}` key and value heads"
    sizes = [config.intermediate_size]
    if config.mixture is not None:
        sizes += [config.mixture.dense_size, config.mixture.shared_size]
    for size in sizes:
        if size % ranks:
            return f"intermediate size `{size}`"
    return None


def local_config(config: ModelConfig, rank: int, ranks: int) -> ModelConfig:
    """The model as one rank computes it."""
    heads = config.num_heads // ranks
    slopes = config.alibi_slopes
    mixture = config.mixture
    if mixture is not None:
        mixture = replace(
            mixture,
            expert_size=mixture.expert_size // ranks,
            dense_size=mixture.dense_size // ranks,
            shared_size=mixture.shared_size // ranks,
        )
    return replace(
        config,
        num_heads=heads,
        alibi_slopes=None if slopes is None else slopes[rank * heads : (rank + 1) * heads],
        num_kv_heads=max(1, config.num_kv_heads // ranks),
        intermediate_size=config.intermediate_size // ranks,
        mixture=mixture,
    )


def vocabulary(config: ModelConfig, rank: int, ranks: int) -> Part:
    """The rows of the head that a rank holds; the last rank's are filled up, since all gather as many."""
    rows = -(-config.vocab_size // ranks)
    return Part(0, ((min(rank * rows, config.vocab_size), min((rank + 1) * rows, config.vocab_size)),), rows)


def parts(config: ModelConfig, rank: int, ranks: int) -> Parts:
    """The tensors that are not whole on a rank, by name."""
    return {} if ranks == 1 else dict(_parts(config, rank, ranks))


def _parts(config: ModelConfig, rank: int, ranks: int) -> Iterator[tuple[str, Part]]:
    names, size = config.names, config.head_dim
    if not config.tie_word_embeddings:
        yield f"{names.head}.weight", vocabulary(config, rank, ranks)
    local = local_config(config, rank, ranks)
    queries = _share(rank, local.num_heads * size)
    keys = _share(rank * config.num_kv_heads // ranks // local.num_kv_heads, local.num_kv_heads * size)
    inner = _share(rank, local.intermediate_size)
    heads = (
        (queries, config.num_heads * size),
        (keys, config.num_kv_heads * size),
        (keys, config.num_kv_heads * size),
    )
    own_values = queries
    if config.latent is not None:
        own_values = _share(rank, local.num_heads * config.latent.value_dim)
    for layer in range(config.num_layers):
        prefix = names.layer.format(layer)
        if config.latent is not None:
            yield from _latent(config.latent, prefix, rank, local.num_heads)
            yield from _inputs(config, prefix, names.output, own_values, rank)
        else:
            yield from _outputs(config, prefix, names.qkv, heads)
            yield from _inputs(config, prefix, names.output, queries, rank)
        if names.sink_scores:
            yield f"{prefix}.{names.sink_scores}", Part.of(0, _share(rank, local.num_heads))
        if names.stacked_experts:
            yield from _stacked_experts(config, f"{prefix}.{names.expert}", inner, rank)
            continue
        for place, size in mlps(config, layer, prefix):
            own = _share(rank, size // ranks)
            yield from _outputs(config, place, names.gate_up, ((own, size),) * (2 if config.gated_mlp else 1))
            yield from _inputs(config, place, names.down, own, rank)


def _latent(latent: Latent, prefix: str, rank: int, heads: int) -> Iterator[tuple[str, Part]]:
    """Of latent attention what belongs to heads; the vectors are whole on every rank."""
    query = QUERY_UP if latent.query_rank else QUERY
    yield f"{prefix}.{query}.weight", Part.of(0, _share(rank, heads * latent.query_dim))
    yield f"{prefix}.{UP}.weight", Part.of(0, _share(rank, heads * (latent.key_dim + latent.value_dim)))


def _outputs(
    config: ModelConfig,
    prefix: str,
    modules: Sequence[str],
    shares: Sequence[tuple[tuple[int, int], int]],
) -> Iterator[tuple[str, Part]]:
    """Modules of the same input, by their shares of so many outputs; those that are stored as one lie behind
    each other in it."""
    ranges, offset = [], 0
    for (start, stop), whole in shares:
        ranges.append((offset + start, offset + stop))
        if len(modules) == 1:
            offset += whole
    by_module = [tuple(ranges)] if len(modules) == 1 else [(one,) for one in ranges]
    for module, own in zip(modules, by_module, strict=True):
        yield f"{prefix}.{module}.weight", Part.of(1 if config.names.transposed else 0, *own)
        yield f"{prefix}.{module}.bias", Part.of(0, *own)


def _inputs(
    config: ModelConfig, prefix: str, module: str, share: tuple[int, int], rank: int
) -> Iterator[tuple[str, Part]]:
    """A module by its share of the inputs. The ranks' outputs are added up, and the bias only once: by rank
    0."""
    yield f"{prefix}.{module}.weight", Part.of(0 if config.names.transposed else 1, share)
    if rank > 0:
        yield f"{prefix}.{module}.bias", Part(0, (), config.hidden_size)


def _stacked_experts(
    config: ModelConfig, place: str, inner: tuple[int, int], rank: int
) -> Iterator[tuple[str, Part]]:
    """Of all experts ``[experts, in, out]``. Gate and up take turns among the outputs."""
    [gate_up], down = config.names.gate_up, config.names.down
    pairs = (2 * inner[0], 2 * inner[1])
    yield f"{place}.{gate_up}", Part.of(2, pairs)
    yield f"{place}.{gate_up}_bias", Part.of(1, pairs)
    yield f"{place}.{down}", Part.of(1, inner)
    if rank > 0:
        yield f"{place}.{down}_bias", Part(1, (), config.hidden_size)


def _share(place: int, width: int) -> tuple[int, int]:
    return place * width, (place + 1) * width
