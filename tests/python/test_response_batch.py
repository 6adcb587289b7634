"""What the seam accepts as a batch: every rule broken once, each answer naming its column."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from typing import Any

import pytest

from inflight._native import check_response_batch
from inflight.executors.base import NamedTensor, ResponseBatch


def pack(kind: str, *values: float) -> bytes:
    return struct.pack(f"<{len(values)}{kind}", *values)


#: Two rows with two tokens and one; the second ends its request and has every sparse column.
BATCH = ResponseBatch(
    client_ids=pack("Q", 7, 1 << 63),
    sequence_index=pack("i", 0, 1),
    token_offsets=pack("I", 0, 2, 3),
    token_ids=pack("i", 11, 12, 13),
    finish_reasons=bytes([0, 1]),
    finals=bytes([0, 1]),
    errors=((0, 13, "broken"),),
    log_prob_rows=pack("I", 0, 1),
    log_probs=pack("f", -1.0, -2.0, -3.0),
    top_log_prob_rows=pack("I", 0),
    top_log_prob_widths=pack("I", 3),
    top_log_prob_ids=pack("i", *range(6)),
    top_log_probs=pack("f", *range(6)),
    cached_tokens=((1, 32),),
    prompt_log_probs=((0, pack("f", -1.0, -2.0), 1, pack("i", -1, 5), pack("f", 0.0, -2.0)),),
    tensors=((0, NamedTensor("context_logits", "FP32", (1, 2), pack("f", 1.0, 2.0))),),
)

MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"client_ids": b"1234567"}, "column `client_ids` holds 7 bytes, which is no multiple of 8"),
    ({"client_ids": pack("Q", 7)}, "column `sequence_index` has 2 values where 1 were expected"),
    ({"sequence_index": b""}, "column `sequence_index` has 0 values where 2 were expected"),
    ({"sequence_index": pack("i", 0, -1)}, "column `sequence_index` holds `-1` in row 1"),
    ({"token_offsets": pack("I", 0, 3)}, "column `token_offsets` has 2 values where 3 were expected"),
    ({"token_offsets": pack("I", 1, 2, 3)}, "column `token_offsets` must start at 0"),
    ({"token_offsets": pack("I", 0, 4, 3)}, "column `token_offsets` must start at 0, never fall"),
    ({"token_offsets": pack("I", 0, 2, 4)}, "end at the number of tokens `3`"),
    ({"token_offsets": b""}, "column `token_offsets` has 0 values where 3 were expected"),
    ({"token_ids": b"123"}, "column `token_ids` holds 3 bytes"),
    ({"finish_reasons": bytes([0])}, "column `finish_reasons` has 1 values"),
    ({"finish_reasons": bytes([0, 6])}, "column `finish_reasons` holds `6` in row 1"),
    ({"finals": bytes([0, 2])}, "column `finals` holds `2` in row 1"),
    ({"finals": bytes(3)}, "column `finals` has 3 values"),
    ({"errors": ((2, 13, "x"),)}, "column `errors` names row `2` of a batch with 2 rows"),
    ({"errors": ((0, 0, "x"),)}, "column `errors` holds `0` in row 0"),
    ({"log_prob_rows": pack("I", 1, 0)}, "column `log_prob_rows` must name rows in ascending order"),
    ({"log_prob_rows": pack("I", 0, 0)}, "column `log_prob_rows` must name rows in ascending order"),
    ({"log_prob_rows": pack("I", 0, 2)}, "column `log_prob_rows` names row `2`"),
    ({"log_probs": pack("f", -1.0)}, "column `log_probs` has 1 values where 3 were expected"),
    ({"top_log_prob_rows": pack("I", 5)}, "column `top_log_prob_rows` names row `5`"),
    ({"top_log_prob_widths": b""}, "column `top_log_prob_widths` has 0 values where 1 were expected"),
    ({"top_log_prob_widths": pack("I", 2**32 - 1)}, "column `top_log_prob_ids` has 6 values"),
    ({"top_log_prob_ids": b""}, "column `top_log_prob_ids` has 0 values where 6 were expected"),
    ({"top_log_probs": b""}, "column `top_log_probs` has 0 values where 6 were expected"),
    ({"cached_tokens": ((2, 1),)}, "column `cached_tokens` names row `2`"),
    ({"prompt_log_probs": ((9, b"", 0, b"", b""),)}, "column `prompt_log_probs` names row `9`"),
    ({"prompt_log_probs": ((0, b"123", 0, b"", b""),)}, "column `prompt_log_probs` holds 3 bytes"),
    ({"prompt_log_probs": ((0, b"1234", 1, b"", b""),)}, "column `prompt_log_probs ids` has 0 values"),
    (
        {"prompt_log_probs": ((0, b"1234", 1, b"1234", b""),)},
        "column `prompt_log_probs alternatives` has 0 values",
    ),
    ({"tensors": ((2, NamedTensor("x", "FP32", (), b"")),)}, "column `tensors` names row `2`"),
]

WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"client_ids": [7, 8]}, "column `client_ids` is `list`, expected `bytes`"),
    ({"token_ids": None}, "column `token_ids` is `NoneType`, expected `bytes`"),
    ({"finals": bytearray(2)}, "column `finals` is `bytearray`, expected `bytes`"),
    ({"errors": None}, "column `errors` is `NoneType`, expected a sequence"),
    ({"errors": ((0, 13),)}, "column `errors`, entry 0"),
    ({"errors": ((-1, 13, "x"),)}, "column `errors`, entry 0"),
    ({"cached_tokens": ("x",)}, "column `cached_tokens`, entry 0"),
    ({"prompt_log_probs": ((0, "text", 0, b"", b""),)}, "column `prompt_log_probs`, entry 0"),
    ({"tensors": ((0, NamedTensor("x", "FP32", (), "text")),)}, "column `data` is `str`"),  # type: ignore[arg-type]
]


def test_a_batch_with_every_column_is_taken() -> None:
    check_response_batch(BATCH)


def test_nothing_moved_is_a_batch() -> None:
    check_response_batch(ResponseBatch())
    check_response_batch(ResponseBatch(token_offsets=pack("I", 0)))


def test_tokens_without_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="column `token_ids` has 1 values where 0 were expected"):
        check_response_batch(ResponseBatch(token_ids=pack("i", 1)))


@pytest.mark.parametrize(("change", "text"), MALFORMED, ids=[text for _, text in MALFORMED])
def test_a_malformed_column_is_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        check_response_batch(replace(BATCH, **change))


@pytest.mark.parametrize(("change", "text"), WRONG_TYPES, ids=[text for _, text in WRONG_TYPES])
def test_a_column_of_the_wrong_type_is_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        check_response_batch(replace(BATCH, **change))


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(AttributeError, match="client_ids"):
        check_response_batch(None)  # type: ignore[arg-type]
