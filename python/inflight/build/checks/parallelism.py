"""How ranks share a model: whether heads, layers and experts divide, and whether the GPUs suffice."""

from __future__ import annotations

from inflight.build.options import BY_NAME, Values
from inflight.build.steps import Mapping4D
from inflight.errors import Problem
from inflight.machine import Installed
from inflight.model.config import ModelFacts

#: Ranks of one model: more than anybody has, and few enough to list a step for each.
MOST_RANKS = 4096


def resolve_mapping(values: Values, facts: ModelFacts) -> tuple[Mapping4D, list[Problem]]:
    """The mapping that the options ask for, sizes of experts filled in, and what is wrong with it."""
    tp, pp, cp = values["tp_size"], values["pp_size"], values["cp_size"]
    moe_tp, moe_ep = values["moe_tp_size"], values["moe_ep_size"]
    problems: list[Problem] = []
    if facts.num_experts:
        if moe_tp is None and moe_ep is None:
            moe_tp, moe_ep = tp, 1
        elif moe_tp is None:
            moe_tp = max(1, tp // moe_ep)
        elif moe_ep is None:
            moe_ep = max(1, tp // moe_tp)
        if moe_tp * moe_ep != tp:
            problems.append(
                Problem(
                    f"`--moe-tp-size {moe_tp}` times `--moe-ep-size {moe_ep}` is not `--tp-size {tp}`",
                    "choose two sizes whose product is `--tp-size`",
                )
            )
        if facts.num_experts % moe_ep:
            problems.append(
                Problem(
                    f"`--moe-ep-size {moe_ep}` does not divide the model's `{facts.num_experts}` experts",
                    f"choose a divisor of {facts.num_experts}",
                )
            )
    else:
        for name in ("moe_tp_size", "moe_ep_size"):
            if values.is_given(name):
                flag = BY_NAME[name].flag
                problems.append(
                    Problem(
                        f"`{flag} {values[name]}` is given, but `{facts.architecture}` has no experts",
                        f"leave `{flag}` out",
                    )
                )
        moe_tp = moe_ep = None
    world = values["world_size"]
    if world not in (None, tp * pp * cp):
        problems.append(
            Problem(
                f"`--world-size {world}` is not `--tp-size {tp}` times `--pp-size {pp}`"
                + (f" times `--cp-size {cp}`" if cp > 1 else ""),
                "leave `--world-size` out",
            )
        )
    problems += check_division(tp, pp, facts)
    if tp * pp * cp > MOST_RANKS:
        problems.append(
            Problem(
                f"`--tp-size {tp}`, `--pp-size {pp}` and `--cp-size {cp}` make `{tp * pp * cp}` ranks",
                f"choose at most {MOST_RANKS} in all",
            )
        )
        # Refused anyway: a plan for one rank shows the other problems.
        return Mapping4D(), problems
    return Mapping4D(tp, pp, cp, moe_tp, moe_ep), problems


def check_division(tp: int, pp: int, facts: ModelFacts) -> list[Problem]:
    """Whether that many ranks can share the model's heads and layers."""
    problems = []
    if facts.num_heads % tp:
        problems.append(
            Problem(
                f"`--tp-size {tp}` does not divide the model's `{facts.num_heads}` attention heads",
                f"choose a divisor of {facts.num_heads}",
            )
        )
    if facts.num_kv_heads % tp and tp % facts.num_kv_heads:
        problems.append(
            Problem(
                f"`--tp-size {tp}` neither divides the model's `{facts.num_kv_heads}` key-value heads"
                " nor is a multiple of them",
                "choose a size that does",
            )
        )
    if facts.num_layers < pp:
        problems.append(
            Problem(
                f"`--pp-size {pp}` is more than the model's `{facts.num_layers}` layers",
                f"choose at most {facts.num_layers}",
            )
        )
    return problems


def check_workers(values: Values, installed: Installed) -> list[Problem]:
    """More builders than GPUs; unknown GPUs count as enough."""
    workers = values["workers"]
    if installed.gpus and workers > len(installed.gpus):
        return [
            Problem(
                f"`--workers {workers}` is more than this machine's `{len(installed.gpus)}` GPUs",
                f"choose at most {len(installed.gpus)}",
            )
        ]
    return []
