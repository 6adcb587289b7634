"""What a client of KServe's models asks and gets, over either protocol. Owns the seam between the two
transports (`kserve_grpc`, `kserve_http`) and what is made of it; does not know any model by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]

#: KServe datatypes that NumPy has; BF16 is sent and read as FP32 by neither protocol's client.
DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}


@dataclass(frozen=True)
class Input:
    """An input as the model declares it; `shape` has the batch dimension where the model has one."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """One request to a model; tensors by name, with their batch dimension."""

    model: str
    tensors: Mapping[str, Array]
    datatypes: Mapping[str, str]
    request_id: str = ""
    streaming: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Response:
    """One response: outputs by name."""

    tensors: Mapping[str, Array]
    #: Of a request that has many responses: no further one comes.
    is_final: bool


@dataclass(frozen=True)
class Stop:
    """When to end a request early, and how."""

    after_s: float
    #: By leaving, and not by a request with `stop`.
    cancel: bool
    #: The model that takes `stop`.
    core_model: str


@dataclass(frozen=True)
class Health:
    """What a server says of itself."""

    live: bool
    ready: bool
    name: str = ""
    version: str = ""
    extensions: tuple[str, ...] = ()
    #: Name, version and state of each model; `UNKNOWN` where the server does not list states.
    models: tuple[tuple[str, str, str], ...] = ()
    #: Why it cannot be asked, or why it says no more.
    problem: str = ""


class Connection(Protocol):
    """A server, over one of the protocols. Every call raises `InflightError` for what the server refuses."""

    def health(self) -> Health:
        """Never raises for a server that cannot be reached: it is neither live nor ready."""

    def is_model_ready(self, model: str) -> bool:
        """Whether the server has the model and would serve it."""

    def inputs(self, model: str) -> dict[str, Input]:
        """The model's inputs by name."""

    def ask(self, request: Request, stop: Stop | None = None) -> Iterator[Response]:
        """The responses as they come. Closing the iterator cancels the request."""

    def close(self) -> None:
        """Ends the connection."""
