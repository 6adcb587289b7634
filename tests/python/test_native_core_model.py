"""The core model as `inflight._native` offers it to other servers: table, requests, answers, gauges."""

from __future__ import annotations

import json
from array import array
from typing import Any

import numpy as np
import pytest

from inflight._native import CoreRequests, ParsedRequest, Refusal, RowResponse, core_model, executor_gauges
from inflight.executors.base import FinishReason, ModelInfo, StatusCode
from inflight.executors.columns import Columns

INFO = ModelInfo(
    executor="test",
    vocab_size=100,
    max_seq_len=64,
    max_input_len=32,
    max_batch_size=4,
    max_num_tokens=64,
    max_beam_width=1,
    tokens_per_block=8,
    capabilities=("log_probs",),
)
DATATYPES = {"int32": "INT32", "float32": "FP32", "bool": "BOOL"}


def core(**options: bool) -> CoreRequests:
    return CoreRequests(INFO, max_message_bytes=1 << 20, **options)


def tensors(**values: Any) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """One row with the prompt 1, 2, 3 and four tokens to generate, and what else is given."""
    arrays = {"input_ids": [[1, 2, 3]], "input_lengths": [3], "request_output_len": [4], **values}
    made = []
    for name, value in arrays.items():
        one = np.asarray(value)
        one = one.astype({"int64": np.int32, "float64": np.float32}.get(str(one.dtype), one.dtype))
        made.append((name, DATATYPES[str(one.dtype)], one.shape, one.tobytes()))
    return made


def parsed(requests: CoreRequests, outputs: list[str], **values: Any) -> ParsedRequest:
    found = requests.parse("id", tensors(**values), outputs, {"traceparent": "x", "depth": 1, "share": 0.5})
    assert isinstance(found, ParsedRequest), found
    return found


def test_the_table_names_what_a_client_may_send_and_get() -> None:
    table = core_model()
    inputs = {row.name: row for row in table.inputs}
    assert (table.name, table.version) == ("tensorrt_llm", "1")
    assert len(inputs) == len(table.inputs) > 60
    one = inputs["temperature"]
    assert (one.datatype, one.dims, one.path) == ("FP32", (1,), "sampling_config.temperature")
    assert (one.optional, one.ragged, one.squeezed, one.declared) == (True, False, True, True)
    assert inputs["lora_weights"].capability == "lora"
    assert not inputs["inflight_min_p"].declared
    assert {row.name: row.declared for row in table.outputs}["inflight_finish_reason"] is False
    assert {row.name: row.capability for row in table.parameters}["request_type"] == "context_phase"


def test_a_request_is_parsed_and_its_rows_are_answered() -> None:
    requests = core()
    asked = parsed(requests, ["output_ids", "output_log_probs"], return_log_probs=[True], temperature=[0.5])
    (request,) = asked.requests
    assert (asked.is_stop, asked.streaming, asked.sequences) == (False, False, 1)
    assert (request.input_token_ids, request.max_tokens) == ([1, 2, 3], 4)
    assert request.sampling_config.temperature == 0.5
    columns = Columns()
    columns.add(request.client_id, [7, 8], FinishReason.LENGTH, True, log_probs=[-0.5, -1.0])
    columns.add(request.client_id + 1, [9], FinishReason.LENGTH, True)
    (answer,) = requests.respond(columns.pack())
    assert (answer.client_id, answer.is_final, answer.refusal) == (request.client_id, True, None)
    assert answer.outputs == [
        ("output_ids", "INT32", (1, 1, 5), array("i", [1, 2, 3, 7, 8]).tobytes()),
        ("output_log_probs", "FP32", (1, 1, 2), array("f", [-0.5, -1.0]).tobytes()),
    ]
    assert requests.respond(columns.pack()) == []


def test_what_cannot_be_answered_is_a_refusal_with_its_status() -> None:
    requests = core()
    cases: list[tuple[dict[str, Any], StatusCode, str]] = [
        ({"lora_task_id": [1]}, StatusCode.INVALID_ARGUMENT, "`lora_task_id` is INT32, expected UINT64"),
        ({"beam_width": [2]}, StatusCode.UNIMPLEMENTED, "`beam_width` needs `beam_search`"),
        ({"temperature": [-1.0]}, StatusCode.INVALID_ARGUMENT, "`temperature` has value `-1`"),
    ]
    for values, status, text in cases:
        refused = requests.parse("id", tensors(**values), [], {})
        assert isinstance(refused, Refusal)
        assert refused.status == status
        assert text in refused.text

    (request,) = parsed(requests, []).requests
    columns = Columns()
    columns.fail(request.client_id, StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
    (answer,) = requests.respond(columns.pack())
    assert isinstance(answer, RowResponse)
    assert answer.refusal is not None
    assert (answer.refusal.status, answer.refusal.text, answer.outputs) == (8, "the queue is full", None)


def test_forgotten_requests_and_stops() -> None:
    requests = core(exclude_input_in_output=True)
    (request,) = parsed(requests, []).requests
    requests.forget([request.client_id])
    columns = Columns()
    columns.add(request.client_id, [7], FinishReason.LENGTH, True)
    assert requests.respond(columns.pack()) == []
    stop = parsed(requests, [], stop=[True])
    assert (stop.is_stop, stop.requests) == (True, [])


def test_what_a_host_gets_wrong_is_an_exception() -> None:
    requests = core()
    with pytest.raises(ValueError, match="unknown datatype `INT7`"):
        requests.parse("id", [("input_ids", "INT7", (1,), b"")], [], {})
    with pytest.raises(TypeError, match="request parameter `x`"):
        requests.parse("id", tensors(), [], {"x": []})  # type: ignore[dict-item]
    broken = Columns()
    broken.add(1, [7])
    batch = broken.pack()
    batch.finals = b""
    with pytest.raises(ValueError, match="inflight_final"):
        requests.respond(batch)


def test_gauges_follow_the_statistics() -> None:
    stats = {"iter": 7, "kvCacheStats": {"maxNumBlocks": 8, "usedNumBlocks": 2}}
    found = {name: dict(values) for name, _, _, values in executor_gauges(json.dumps(stats), 3)}
    assert found["nv_trt_llm_request_metrics"]["active"] == 3
    assert found["nv_trt_llm_kv_cache_block_metrics"]["fraction"] == 0.25
    assert found["nv_trt_llm_general_metrics"] == {"iteration_counter": 7}
    assert "nv_trt_llm_kv_cache_block_metrics" not in {name for name, *_ in executor_gauges(None, 0)}
    with pytest.raises(ValueError, match="iteration statistics cannot be read"):
        executor_gauges("{", 0)
