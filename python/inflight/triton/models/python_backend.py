"""Triton's Python interface, as the models use it: parameters, inputs by name, errors.

`triton_python_backend_utils` exists only inside Triton, which is why it is imported by name.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from inflight.triton.repository.executor_options import instance_number

pb_utils: Any = import_module("triton_python_backend_utils")
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

#: gRPC status codes of `inflight.executors.base.StatusCode` as Triton's.
_CODES = {3: "INVALID_ARG", 8: "UNAVAILABLE", 12: "UNSUPPORTED", 14: "UNAVAILABLE"}


class BadRequest(ValueError):
    """A request that this model cannot answer, with its gRPC status."""

    def __init__(self, text: str, status: int = 3) -> None:
        super().__init__(text)
        self.status = status


def error(text: str, status: int = 3) -> Any:
    """A TritonError with Triton's code for a gRPC status."""
    code = getattr(pb_utils.TritonError, _CODES.get(status, "INTERNAL"))
    return pb_utils.TritonError(text, code)


def tensor(name: str, values: Any, dtype: Any) -> Any:
    """An output."""
    return pb_utils.Tensor(name, np.ascontiguousarray(np.asarray(values, dtype=dtype)))


def texts(name: str, values: Any) -> Any:
    """A STRING output."""
    encoded = [[text.encode() for text in row] for row in values]
    return pb_utils.Tensor(name, np.array(encoded, dtype=np.object_))


class Config:
    """The model's config.pbtxt, as `initialize` gets it."""

    def __init__(self, args: Mapping[str, str]) -> None:
        self._config = json.loads(args["model_config"])
        self._instance_name = args.get("model_instance_name", "")

    @property
    def decoupled(self) -> bool:
        return bool(self._config.get("model_transaction_policy", {}).get("decoupled", False))

    @property
    def max_batch_size(self) -> int:
        return int(self._config.get("max_batch_size", 0))

    @property
    def input_names(self) -> list[str]:
        return [entry["name"] for entry in self._config["input"]]

    @property
    def outputs(self) -> dict[str, str]:
        """Name -> data type, such as `TYPE_FP32`."""
        return {entry["name"]: entry["data_type"] for entry in self._config["output"]}

    @property
    def parameters(self) -> dict[str, str]:
        return {
            key: str(value.get("string_value", ""))
            for key, value in self._config.get("parameters", {}).items()
        }

    @property
    def max_queue_size(self) -> int:
        """Bound of the dynamic batcher's queue; 0: none."""
        policy = self._config.get("dynamic_batching", {}).get("default_queue_policy", {})
        return int(policy.get("max_queue_size", 0))

    @property
    def instance(self) -> int:
        """The number of this instance among all of the model."""
        return instance_number(self._instance_name, self._config.get("instance_group", []))

    def text(self, key: str, default: str = "") -> str:
        """A parameter; an empty or unfilled one is not set."""
        value = self.parameters.get(key, "")
        return default if not value or value.startswith("${") else value

    def period_s(self, key: str) -> float:
        """A parameter in milliseconds, in seconds; 100 ms where it is not set, as in NVIDIA's backend."""
        text = self.text(key, "100")
        if not text.isdecimal():
            raise ValueError(f"the parameter `{key}` is `{text}`; it must be a whole number of milliseconds")
        return max(int(text), 1) / 1000

    def refuse(self, *keys: str) -> None:
        """Raises `ValueError` for parameters that are set and that this model would ignore."""
        given = [key for key in keys if self.text(key)]
        if given:
            names = ", ".join(f"`{key}`" for key in given)
            raise ValueError(f"this model does not support the parameters {names}; leave them out")

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; any other value means the default, as in NVIDIA's models."""
        known = {**dict.fromkeys(("true", "1", "t", "y", "yes"), True)}
        known |= dict.fromkeys(("false", "0", "f", "n", "no"), False)
        return known.get(self.text(key).lower(), default)


class Reply:
    """Where the responses of one request go; any thread may send, end, or ask whether the client left."""

    def __init__(self, request: Any, decoupled: bool) -> None:
        self._sender: Any = request.get_response_sender() if decoupled else None
        # Of a request that has a sender nothing is kept: its inputs would stay in shared memory.
        self._asked: Any = request if self._sender is None else self._sender
        self._lock = threading.Lock()
        self._ended = threading.Event()
        #: The response of a model that is not decoupled; the last one sent of the others.
        self.last: Any = None

    def send(self, response: Any) -> None:
        """One of several responses; models that are not decoupled have none."""
        if self._sender is not None:
            self._sender.send(response)

    def end(self, response: Any = None) -> None:
        """The last response, with the final flag on it; `None` is the flag alone."""
        with self._lock:
            self.last = response
            if self._sender is not None and response is None:
                self._sender.send(flags=FINAL)
            elif self._sender is not None:
                self._sender.send(response, flags=FINAL)
            self._ended.set()

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended in that time."""
        return self._ended.wait(timeout_s)

    def is_abandoned(self) -> bool:
        """Whether the client left; asks Triton, which forgets requests that have ended."""
        with self._lock:
            return not self._ended.is_set() and bool(self._asked.is_cancelled())


class Inputs:
    """The inputs of one request, with their batch dimension."""

    def __init__(self, request: Any, names: list[str]) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        for name in names:
            found = pb_utils.get_input_tensor_by_name(request, name)
            if found is not None:
                self.arrays[name] = found.as_numpy()

    def required(self, name: str) -> np.ndarray[Any, Any]:
        """All rows of an input. Triton only counts the required inputs."""
        if name not in self.arrays:
            raise BadRequest(f"the required input `{name}` is missing")
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def row(self, name: str, row: int) -> np.ndarray[Any, Any] | None:
        """One row of the batch."""
        array = self.arrays.get(name)
        if array is None:
            return None
        if row >= len(array):
            raise BadRequest(f"`{name}` has `{len(array)}` rows; the batch has more")
        return np.asarray(array[row])

    def scalar(self, name: str, row: int = 0, default: Any = None) -> Any:
        """One value of a row."""
        values = self.row(name, row)
        return default if values is None or values.size == 0 else values.reshape(-1)[0].item()

    def texts(self, name: str, row: int = 0) -> list[str]:
        """The strings of a row that are not empty."""
        values = self.row(name, row)
        if values is None:
            return []
        try:
            decoded = [bytes(value).decode() for value in values.reshape(-1)]
        except UnicodeDecodeError as problem:
            raise BadRequest(f"`{name}` is not UTF-8: {problem.reason}") from problem
        return [text for text in decoded if text]
