"""Which part of each tensor a rank holds, and which models cannot be split. Pure.

As in Megatron-LM and TensorRT-LLM: of attention every rank has its heads, of the MLP its columns; what
follows them is split along its inputs, so that the ranks' outputs add up. Where there are fewer key heads
than ranks, several ranks hold the same one. The head is split by the vocabulary; embeddings and norms are
whole everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from inflight.executors.reference.errors import OptionError, UnsupportedModelError

from .config import ModelConfig

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
    if config.num_experts:
        raise UnsupportedModelError(
            f"`{config.architecture}` is a mixture of experts, which the reference executor does not split",
            "start one rank",
        )
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
    if config.intermediate_size % ranks:
        return f"intermediate size `{config.intermediate_size}`"
    return None


def local_config(config: ModelConfig, rank: int, ranks: int) -> ModelConfig:
    """The model as one rank computes it."""
    heads = config.num_heads // ranks
    slopes = config.alibi_slopes
    return replace(
        config,
        num_heads=heads,
        alibi_slopes=None if slopes is None else slopes[rank * heads : (rank + 1) * heads],
        num_kv_heads=max(1, config.num_kv_heads // ranks),
        intermediate_size=config.intermediate_size // ranks,
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
    # Modules of the same input that are stored as one lie behind each other in it.
    outputs = {
        names.qkv: ((queries, config.num_heads), (keys, config.num_kv_heads), (keys, config.num_kv_heads)),
        names.gate_up: ((inner, config.intermediate_size),) * (2 if config.gated_mlp else 1),
    }
    widths = {names.qkv: size, names.gate_up: 1}
    rows, columns = (1, 0) if names.transposed else (0, 1)
    for layer in range(config.num_layers):
        prefix = names.layer.format(layer)
        for modules, shares in outputs.items():
            ranges, offset = [], 0
            for (start, stop), count in shares:
                ranges.append((offset + start, offset + stop))
                if len(modules) == 1:
                    offset += count * widths[modules]
            by_module = [tuple(ranges)] if len(modules) == 1 else [(one,) for one in ranges]
            for module, own in zip(modules, by_module, strict=True):
                yield f"{prefix}.{module}.weight", Part.of(rows, *own)
                yield f"{prefix}.{module}.bias", Part.of(0, *own)
        for module, share in ((names.output, queries), (names.down, inner)):
            yield f"{prefix}.{module}.weight", Part.of(columns, share)
            if rank > 0:
                # The ranks' outputs are added up, and the bias only once: by rank 0.
                yield f"{prefix}.{module}.bias", Part(0, (), config.hidden_size)


def _share(place: int, width: int) -> tuple[int, int]:
    return place * width, (place + 1) * width
