"""Single options: whether the runtime takes them, and whether their numbers can be held."""

from __future__ import annotations

from inflight.build.options import BY_NAME, Values
from inflight.errors import Problem

#: TensorRT-LLM counts in 32 bits.
MOST = 2**31 - 1


def check_applicable(values: Values, runtime: str) -> list[Problem]:
    """Options given that `runtime` does not have."""
    return [
        Problem(
            f"`{BY_NAME[name].flag}` has no effect with runtime `{runtime}`",
            f"leave `{BY_NAME[name].flag}` out, or choose `--runtime {BY_NAME[name].runtimes[0]}`",
        )
        for name in values.given
        if runtime not in BY_NAME[name].runtimes
    ]


def check_magnitudes(values: Values) -> list[Problem]:
    """Numbers given that no runtime could hold."""
    return [
        Problem(f"`{BY_NAME[name].flag} {values[name]}` is too large", f"choose at most {MOST}")
        for name in values.given
        if isinstance(values[name], int) and values[name] > MOST
    ]
