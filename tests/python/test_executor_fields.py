"""What crosses between Rust and an executor has the same names on both sides.

A field of Rust's that Python lacks fails where it crosses; here is what Python alone would have.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from inflight._native import check_response_batch, core_model
from inflight.executors.base import OutputConfig, Request, ResponseBatch, SamplingConfig


def names(of: type) -> set[str]:
    return {field.name for field in fields(of)}


@pytest.mark.parametrize(
    ("part", "of", "others"),
    [
        # Of these no input is made: what a request is, and what inputs that only executors read become.
        ("", Request, {"client_id", "sampling_config", "output_config", "tensors"}),
        ("sampling_config.", SamplingConfig, set()),
        ("output_config.", OutputConfig, set()),
    ],
)
def test_every_field_of_a_request_is_made_of_an_input(part: str, of: type, others: set[str]) -> None:
    paths = {row.path for row in core_model().inputs if row.path is not None}
    made = {path.removeprefix(part) for path in paths if path.startswith(part)}
    assert {name for name in made if "." not in name} | others == names(of)


def test_every_field_of_a_batch_is_read() -> None:
    read = set()

    class Recorded(ResponseBatch):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    check_response_batch(Recorded())
    assert read == names(ResponseBatch)
