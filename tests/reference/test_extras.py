"""What arrives in a request's tensors, and what of it is refused."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.executors.base import NamedTensor, StatusCode
from inflight.executors.reference.core.extras import Extras, read_extras
from inflight.executors.reference.core.refusal import Refused
from inflight.executors.reference.core.reuse import Retention

from .support import request


def ints(name: str, *values: int) -> NamedTensor:
    return NamedTensor(name, "INT32", (len(values),), np.array(values, dtype="<i4").tobytes())


def ranges(starts: list[int], ends: list[int], priorities: list[int], *durations: int) -> list[NamedTensor]:
    prefix = "retention_token_range_"
    tensors = [ints(f"{prefix}starts", *starts), ints(f"{prefix}ends", *ends)]
    tensors.append(ints(f"{prefix}priorities", *priorities))
    return [*tensors, ints(f"{prefix}durations_ms", *durations)] if durations else tensors


def priority(value: float) -> NamedTensor:
    return NamedTensor("priority", "FP32", (1,), np.array([value], dtype="<f4").tobytes())


def test_no_tensors_mean_the_defaults() -> None:
    assert read_extras(request(1, [5])) == Extras()


def test_a_plan_tells_what_each_block_is_worth() -> None:
    tensors = [
        *ranges([0, 8], [8, -1], [90, 10], -1, 2000),
        ints("retention_decode_priority", 5),
        ints("retention_decode_duration_ms", 100),
    ]
    plan = read_extras(request(1, [5] * 16, tensors=tensors)).retention
    assert [plan.at(position, 16) for position in (0, 7, 8, 15, 16)] == [
        Retention(90),
        Retention(90),
        Retention(10, 2.0),
        Retention(10, 2.0),
        Retention(5, 0.1),
    ]
    gap = read_extras(request(1, [5] * 16, tensors=ranges([4], [8], [90]))).retention
    assert [gap.at(position, 16).priority for position in (0, 4, 8, 20)] == [35, 90, 35, 35]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([priority(1.5)], "priority is `1.5`"),
        (ranges([0], [8, 9], [35]), "1 starts, 2 ends"),
        (ranges([8], [4], [35]), "`8` to `4`"),
        (ranges([-1], [4], [35]), "`-1` to `4`"),
        (ranges([0, 4], [5, 8], [1, 2]), "overlap"),
        (ranges([0, 4], [-1, 8], [1, 2]), "overlap"),
        (ranges([0], [8], [101]), "`101`"),
        (ranges([0], [8], [35], -2), "`-2` ms"),
        (ranges([1] * 300, [2] * 300, [3] * 300), "300 retention ranges"),
        ([ints("retention_decode_duration_ms", 5)], "without its retention_decode_priority"),
        ([NamedTensor("priority", "FP32", (2,), b"\0" * 4)], "not its shape"),
        ([NamedTensor("priority", "FP32", (2,), b"\0" * 8)], "must have one"),
        ([NamedTensor("inflight_cache_salt", "BYTES", (1,), b"\x05\0\0\0ab")], "one string"),
        ([NamedTensor("inflight_cache_salt", "BYTES", (1,), b"\x01\0\0\0\xff")], "UTF-8"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(tensors: list[NamedTensor], words: str) -> None:
    with pytest.raises(Refused, match=words) as refusal:
        read_extras(request(1, [5] * 8, tensors=tensors))
    assert refusal.value.code == StatusCode.INVALID_ARGUMENT


def test_what_is_unknown_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="`mrope_position_deltas`") as refusal:
        read_extras(
            request(
                1, [5], tensors=[priority(0.5), NamedTensor("mrope_position_deltas", "INT64", (1,), bytes(8))]
            )
        )
    assert refusal.value.code == StatusCode.UNIMPLEMENTED
