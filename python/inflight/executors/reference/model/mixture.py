"""DeepSeek's mixtures: layers without experts before those with them, experts that all tokens share, and a
choice by groups. Owns what a config says of these. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight.executors.reference.errors import UnsupportedModelError
from inflight.model.values import bad_value, flag, integer, number


@dataclass(frozen=True, slots=True)
class GroupedRouting:
    """DeepSeek's: experts are chosen within the best groups of them, and their shares are scaled."""

    #: Experts lie in so many groups, of which so many are chosen from.
    groups: int = 1
    chosen_groups: int = 1
    #: A group is as good as the sum of so many of its experts.
    counted: int = 1
    #: Whether a score becomes a share by a sigmoid, and not by a softmax of all.
    by_sigmoid: bool = False
    #: Whether the router has a bias that counts in the choice, and not in the shares.
    has_bias: bool = False
    #: Whether the shares of the chosen sum to 1 before they are multiplied with ``factor``.
    normalized: bool = False
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Mixture:
    """What a family's mixtures have besides experts that are chosen."""

    routing: GroupedRouting
    #: Of an expert's MLP.
    expert_size: int
    #: The first layers have one MLP each, of this size.
    dense_layers: int
    dense_size: int
    #: Of the MLP that all tokens share, next to the experts; 0: there is none.
    shared_size: int


#: By `topk_method`: experts of a group that count, whether by a sigmoid, whether with a bias.
_WAYS: Mapping[str, tuple[int, bool, bool]] = {
    "greedy": (1, False, False),
    "group_limited_greedy": (1, False, False),
    "noaux_tc": (2, True, True),
}


def parse_mixture(values: Mapping[str, Any], experts: int, method: str) -> Mixture:
    """From the values of a config; ``method`` holds where it has no `topk_method`. Errors: `CheckpointError`,
    `UnsupportedModelError`."""
    size = integer(values, "moe_intermediate_size")
    return Mixture(
        routing=_routing(values, experts, method),
        expert_size=size,
        dense_layers=integer(values, "first_k_dense_replace", 0, minimum=0),
        dense_size=integer(values, "intermediate_size"),
        shared_size=size * integer(values, "n_shared_experts", 0, minimum=0),
    )


def _routing(values: Mapping[str, Any], experts: int, method: str) -> GroupedRouting:
    method = str(values.get("topk_method") or method)
    if method not in _WAYS:
        raise UnsupportedModelError(
            f"`topk_method` in `config.json` is `{method}`, which the reference executor does not support",
            f"use a checkpoint with one of {', '.join(_WAYS)}",
        )
    counted, by_sigmoid, has_bias = _WAYS[method]
    scoring = values.get("scoring_func") or ("sigmoid" if by_sigmoid else "softmax")
    if scoring != ("sigmoid" if by_sigmoid else "softmax"):
        raise UnsupportedModelError(
            f"`scoring_func` `{scoring}` with `topk_method` `{method}` is not supported by the reference"
            " executor",
            "use another checkpoint",
        )
    groups = 1 if method == "greedy" else integer(values, "n_group", 1)
    if experts % groups:
        raise bad_value("n_group", groups, f"a divisor of the number of experts ({experts})")
    return GroupedRouting(
        groups=groups,
        chosen_groups=groups if groups == 1 else integer(values, "topk_group", maximum=groups),
        counted=min(counted, experts // groups),
        by_sigmoid=by_sigmoid,
        has_bias=has_bias,
        # transformers reads it for the sigmoid only.
        normalized=by_sigmoid and flag(values, "norm_topk_prob", True),
        factor=number(values, "routed_scaling_factor", 1.0),
    )
