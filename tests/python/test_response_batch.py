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
    errors=((1, 13, "broken"),),
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

#: Columns are named as on the wire, where the worker checks them; half a value is found before that.
MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"client_ids": b"1234567"}, "column `client_ids` has 7 bytes, not a multiple of 8"),
    ({"token_ids": b"123"}, "column `token_ids` has 3 bytes, not a multiple of 4"),
    ({"prompt_log_probs": ((0, b"123", 0, b"", b""),)}, "column `prompt_log_probs` has 3 bytes"),
    ({"client_ids": pack("Q", 7)}, "column `inflight_sequence_index` has 2 values, expected 1"),
    ({"sequence_index": b""}, "column `inflight_sequence_index` has 0 values, expected 2"),
    ({"sequence_index": pack("i", 0, -1)}, "row 1 has the value -1 in column `inflight_sequence_index`"),
    ({"token_offsets": b""}, "column `inflight_token_offsets` has 0 values, expected 3"),
    ({"token_offsets": pack("I", 1, 2, 3)}, "column `inflight_token_offsets` starts with 1"),
    ({"token_offsets": pack("I", 0, 4, 3)}, "column `inflight_token_offsets` goes from 4 to 3"),
    ({"token_offsets": pack("I", 0, 2, 4)}, "ends with 4, but there are 3 values"),
    ({"finish_reasons": bytes([0])}, "column `inflight_finish_reason` has 1 values, expected 2"),
    ({"finish_reasons": bytes([0, 6])}, "row 1 has the value 6 in column `inflight_finish_reason`"),
    ({"finals": bytes([0, 2])}, "row 1 has the value 2 in column `inflight_final`"),
    ({"finals": bytes(3)}, "column `inflight_final` has 3 values, expected 2"),
    ({"errors": ((2, 13, "x"),)}, "column `inflight_error_rows` names row 2, but there are 2 rows"),
    ({"errors": ((1, 0, "x"),)}, "row 1 has the value 0 in column `inflight_error_codes`"),
    ({"errors": ((0, 13, "x"),)}, "row 0 carries an error and is not final"),
    ({"log_prob_rows": pack("I", 1, 0)}, "column `inflight_log_prob_rows` names row 0 after row 1"),
    ({"log_prob_rows": pack("I", 0, 2)}, "column `inflight_log_prob_rows` names row 2"),
    ({"log_probs": pack("f", -1.0)}, "column `output_log_probs` has 1 values, expected 3"),
    ({"top_log_prob_rows": pack("I", 5)}, "column `inflight_top_log_prob_rows` names row 5"),
    ({"top_log_prob_widths": b""}, "column `inflight_top_log_prob_widths` has 0 values, expected 1"),
    ({"top_log_prob_widths": pack("I", 2**32 - 1)}, "column `inflight_top_log_prob_ids` has 6 values"),
    ({"top_log_prob_ids": b""}, "column `inflight_top_log_prob_ids` has 0 values, expected 6"),
    ({"top_log_probs": b""}, "column `inflight_top_log_probs` has 0 values, expected 6"),
    ({"cached_tokens": ((2, 1),)}, "column `inflight_cached_tokens_rows` names row 2"),
    ({"prompt_log_probs": ((9, b"", 0, b"", b""),)}, "column `inflight_prompt_log_prob_rows` names row 9"),
    ({"prompt_log_probs": ((0, b"1234", 1, b"", b""),)}, "column `inflight_prompt_top_log_prob_ids` has 0"),
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
    with pytest.raises(ValueError, match="ends with 0, but there are 1 values"):
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
