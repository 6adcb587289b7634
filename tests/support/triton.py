"""tritonclient, with the core model's tensors: plain requests, streams with many of them, raw messages."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

MODEL = "tensorrt_llm"
TIMEOUT_S = 30.0

#: A scalar input's datatype, where it is not INT32.
DATATYPES = {
    "streaming": "BOOL",
    "stop": "BOOL",
    "early_stopping": "BOOL",
    "return_log_probs": "BOOL",
    "return_context_logits": "BOOL",
    "return_generation_logits": "BOOL",
    "return_perf_metrics": "BOOL",
    "exclude_input_in_output": "BOOL",
    "temperature": "FP32",
    "runtime_top_p": "FP32",
    "runtime_top_p_decay": "FP32",
    "runtime_top_p_min": "FP32",
    "len_penalty": "FP32",
    "beam_search_diversity_rate": "FP32",
    "repetition_penalty": "FP32",
    "presence_penalty": "FP32",
    "frequency_penalty": "FP32",
    "inflight_min_p": "FP32",
    "seed": "UINT64",
    "inflight_handle": "UINT64",
}


def tensor(name: str, values: Any, datatype: str) -> triton.InferInput:
    """An input from anything NumPy makes an array of."""
    array = np.asarray(values, dtype=triton_to_numpy(datatype))
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def triton_to_numpy(datatype: str) -> Any:
    from tritonclient.utils import triton_to_np_dtype

    return triton_to_np_dtype(datatype)


def inputs(prompt: Sequence[int], max_tokens: int, **scalars: Any) -> list[triton.InferInput]:
    """A batch of one: the prompt, its length, and scalar inputs by name."""
    made = [
        tensor("input_ids", [list(prompt)], "INT32"),
        tensor("input_lengths", [[len(prompt)]], "INT32"),
        tensor("request_output_len", [[max_tokens]], "INT32"),
    ]
    for name, value in scalars.items():
        made.append(tensor(name, [[value]], DATATYPES.get(name, "INT32")))
    return made


def is_final(result: triton.InferResult) -> bool:
    """Triton's mark of a request's last response."""
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def tokens(result: triton.InferResult) -> list[int]:
    """The new tokens of the one sequence that a response is about."""
    ids = result.as_numpy("output_ids")
    return [] if ids is None else [int(id) for id in ids.reshape(-1)]


class TritonStream:
    """One ModelStreamInfer stream, as tritonclient runs it, with its responses in a queue."""

    def __init__(self, address: str) -> None:
        self.client = triton.InferenceServerClient(address)
        self._arrived: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()
        self.client.start_stream(lambda result, error: self._arrived.put((result, error)))

    def send(self, request_id: str, made: list[triton.InferInput], **options: Any) -> None:
        """One request; responses may come in any order with others."""
        self.client.async_stream_infer(
            MODEL, made, request_id=request_id, enable_empty_final_response=True, **options
        )

    def next(self) -> tuple[Any, Exception | None]:
        """The next response or error of any request: an InferResult, or why there is none."""
        return self._arrived.get(timeout=TIMEOUT_S)

    def until_final(self) -> Iterator[triton.InferResult]:
        """The responses of a stream with one request, up to its last."""
        while True:
            result, error = self.next()
            assert error is None, error
            assert result is not None
            yield result
            if is_final(result):
                return

    def close(self, cancel: bool = False) -> None:
        """Ends the stream; without `cancel`, after what was asked is answered."""
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()


def message(**changes: Any) -> service_pb2.ModelInferRequest:
    """A valid plain request, for tests to spoil."""
    made = service_pb2.ModelInferRequest(model_name=MODEL, id=changes.pop("id", "raw"))
    values = {
        "input_ids": np.array([[40, 41, 42]], dtype=np.int32),
        "input_lengths": np.array([[3]], dtype=np.int32),
        "request_output_len": np.array([[2]], dtype=np.int32),
        **changes,
    }
    names = {"int32": "INT32", "float32": "FP32", "bool": "BOOL", "uint64": "UINT64", "int64": "INT64"}
    for name, array in values.items():
        made.inputs.add(name=name, datatype=names[str(array.dtype)], shape=array.shape)
        made.raw_input_contents.append(array.tobytes())
    return made
