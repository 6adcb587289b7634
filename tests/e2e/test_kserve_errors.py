"""Malformed tensors: each is a clear error that names the tensor, and the worker goes on."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from support.metrics import active_requests
from support.processes import wait_until
from support.servers import Server
from support.triton import MODEL, TritonStream, inputs, is_final, message, tensor

#: A `ModelInferRequest`; the generated module has no types.
Request: TypeAlias = Any


@pytest.fixture(scope="module")
def stub(fast: Server) -> Iterator[Any]:
    with grpc.insecure_channel(fast.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture(autouse=True)
def _the_worker_goes_on(stub: Any, fast: Server) -> Iterator[None]:
    yield
    answer = stub.ModelInfer(message(), timeout=30)
    assert [output.name for output in answer.outputs][:1] == ["output_ids"]
    wait_until("the executor is idle", lambda: active_requests(fast.metrics) == 0)


def ints(*values: int, rows: int = 1) -> np.ndarray[Any, Any]:
    return np.array([list(values)] * rows, dtype=np.int32)


def spoil(change: Callable[[Request], object], **tensors: Any) -> Request:
    made = message(**tensors)
    change(made)
    return made


def raw(index: int, data: bytes) -> Callable[[Request], object]:
    def change(made: Request) -> None:
        made.raw_input_contents[index] = data

    return change


def shape(index: int, *dims: int) -> Callable[[Request], object]:
    def change(made: Request) -> None:
        del made.inputs[index].shape[:]
        made.inputs[index].shape.extend(dims)

    return change


CASES: dict[str, tuple[Request, str]] = {
    "too few bytes": (spoil(raw(0, b"\0" * 11)), "input_ids"),
    "too many bytes": (spoil(raw(0, b"\0" * 400)), "input_ids"),
    "no bytes": (spoil(raw(1, b"")), "input_lengths"),
    "fewer raw tensors than inputs": (spoil(lambda made: made.raw_input_contents.pop()), ""),
    "more raw tensors than inputs": (spoil(lambda made: made.raw_input_contents.append(b"x")), ""),
    "negative shape": (spoil(shape(0, 1, -3)), "input_ids"),
    "overflowing shape": (spoil(shape(0, 2**62, 2**62)), "input_ids"),
    "enormous shape": (spoil(shape(0, 1, 2**40)), "input_ids"),
    "zero batch": (spoil(shape(0, 0, 3)), "input_ids"),
    "wrong rank": (spoil(shape(0, 1, 1, 1, 3)), "input_ids"),
    "wrong datatype": (message(input_ids=np.array([[1.0, 2.0, 3.0]], dtype=np.float32)), "input_ids"),
    "unknown datatype": (
        spoil(lambda made: made.inputs[0].__setattr__("datatype", "INT7")),
        "input_ids",
    ),
    "unknown tensor": (message(no_such_tensor=ints(1)), "no_such_tensor"),
    "a tensor twice": (
        spoil(
            lambda made: (
                made.inputs.add(name="input_ids", datatype="INT32", shape=[1, 1]),
                made.raw_input_contents.append(b"\1\0\0\0"),
            )
        ),
        "input_ids",
    ),
    "an output twice": (
        spoil(lambda made: [made.outputs.add(name="output_ids") for _ in range(2)]),
        "`output_ids` is requested more than once",
    ),
    "a required tensor missing": (
        spoil(lambda made: (made.inputs.pop(), made.raw_input_contents.pop())),
        "request_output_len",
    ),
    "raw and typed at once": (
        spoil(lambda made: made.inputs[0].contents.int_contents.extend([1, 2, 3])),
        "input_ids",
    ),
    "batch sizes that differ": (message(input_lengths=ints(3, rows=2)), "input_lengths"),
    "a length beyond the ids": (message(input_lengths=ints(9)), "input_lengths"),
    "a negative length": (message(input_lengths=ints(-1)), "input_lengths"),
    "an empty prompt": (message(input_lengths=ints(0)), "input_ids"),
    "no tokens wanted": (message(request_output_len=ints(0)), "request_output_len"),
    "more tokens than the model has": (message(request_output_len=ints(2**31 - 1)), "request_output_len"),
    "an id outside the vocabulary": (message(input_ids=ints(1, 2, 2_000_000_000)), "input_ids"),
    "a negative id": (message(input_ids=ints(1, -2, 3)), "input_ids"),
    "a temperature that is no number": (
        message(temperature=np.array([[np.nan]], dtype=np.float32)),
        "temperature",
    ),
    "a top-p above one": (message(runtime_top_p=np.array([[1.5]], dtype=np.float32)), "runtime_top_p"),
    "stop words of a wrong shape": (message(stop_words_list=ints(1, 2, 3)), "stop_words_list"),
    "absurd n": (message(num_return_sequences=ints(2**31 - 1)), "num_return_sequences"),
    "more beams than the executor has": (message(beam_width=ints(5)), "beam_width"),
    "shared memory": (
        spoil(
            lambda made: made.inputs[0].parameters["shared_memory_region"].__setattr__("string_param", "r")
        ),
        "input_ids",
    ),
    "an unknown request type": (
        spoil(lambda made: made.parameters["request_type"].__setattr__("string_param", "prefill")),
        "`prefill`, expected one of `context_and_generation`, `context_only`, `generation_only`",
    ),
    "a priority beyond the last": (
        spoil(lambda made: made.parameters["priority"].__setattr__("int64_param", 101)),
        "`101`",
    ),
    "what the executor cannot do": (
        message(lora_task_id=np.array([[7]], dtype=np.uint64)),
        "lora_task_id",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_request_is_refused_by_tensor(stub: Any, name: str) -> None:
    request, tensor_name = CASES[name]
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(request, timeout=30)
    code = raised.value.code()
    assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED), raised.value
    assert tensor_name in raised.value.details()


@pytest.mark.parametrize("name", CASES)
def test_on_a_stream_the_error_is_that_request_s_alone(stub: Any, name: str) -> None:
    bad = service_pb2.ModelInferRequest()
    bad.CopyFrom(CASES[name][0])
    bad.id = "bad"
    answers = list(stub.ModelStreamInfer(iter([bad, message(id="good")]), timeout=30))
    errors = [answer for answer in answers if answer.error_message]
    assert len(errors) == 1
    assert CASES[name][1] in errors[0].error_message
    assert errors[0].infer_response.id == "bad"
    assert any(answer.infer_response.id == "good" and answer.infer_response.outputs for answer in answers)


def test_an_unknown_model_is_not_found(stub: Any) -> None:
    request = spoil(lambda made: setattr(made, "model_name", "nothing"))
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(request, timeout=30)
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND
    # The words of Triton, which its clients look for.
    assert raised.value.details().startswith("Request for unknown model: `nothing`")


def test_typed_contents_are_read_as_raw_ones(stub: Any) -> None:
    request = service_pb2.ModelInferRequest(model_name=MODEL, id="typed")
    for name, values in (("input_ids", [40, 41]), ("input_lengths", [2]), ("request_output_len", [3])):
        made = request.inputs.add(name=name, datatype="INT32", shape=[1, len(values)])
        made.contents.int_contents.extend(values)
    assert stub.ModelInfer(request, timeout=30).id == "typed"


def test_step_batching_refuses_bad_rows_as_rows(stub: Any) -> None:
    """An error of one request is its row, never the message's: the stream goes on."""
    requests = [
        message(inflight_handle=np.array([[1]], dtype=np.uint64), input_lengths=ints(9)),
        message(inflight_handle=np.array([[2]], dtype=np.uint64)),
    ]
    final: dict[int, bool] = {}
    failed: list[int] = []
    for answer in stub.ModelStreamInfer(iter(requests), timeout=30):
        assert not answer.error_message
        names = [output.name for output in answer.infer_response.outputs]
        columns = dict(zip(names, answer.infer_response.raw_output_contents, strict=True))
        handles = np.frombuffer(columns["inflight_handle"], dtype=np.uint64)
        finals = np.frombuffer(columns["inflight_final"], dtype=np.uint8)
        for row, (number, is_last) in enumerate(zip(handles, finals, strict=True)):
            assert int(number) not in final, "a row after the final one"
            if is_last:
                final[int(number)] = True
            if row in np.frombuffer(columns.get("inflight_error_rows", b""), dtype=np.uint32):
                failed.append(int(number))
    assert final == {1: True, 2: True}
    assert failed == [1]


def test_bytes_that_are_no_grpc_harm_no_one(fast: Server) -> None:
    host, port = fast.grpc.rsplit(":", 1)
    for sent in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64, b"\0" * 100):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            # Refused with an answer or without one, perhaps before all was sent.
            with suppress(OSError):
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                while connection.recv(4096):
                    continue


def test_a_message_over_the_limit_is_refused(fast: Server, stub: Any) -> None:
    request = message(input_ids=np.zeros((1, 20 << 20), dtype=np.int32))
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(request, timeout=30)
    assert raised.value.code() in (
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INVALID_ARGUMENT,
    )


def test_errors_reach_tritonclient_s_stream_callback(fast: Server) -> None:
    stream = TritonStream(fast.grpc)
    stream.send("bad", [tensor("input_ids", [[1.5]], "FP32")])
    result, error = stream.next()
    assert result is None
    assert "input_ids" in str(error)
    stream.send("good", inputs([40, 41], 2))
    result, error = stream.next()
    assert error is None
    assert result is not None
    assert result.get_response().id == "good"
    assert is_final(result)
    stream.close()
