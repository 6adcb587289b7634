"""The steps for the reference executor: weights as one float32 file, and a proof that they load.

The executor computes in float32; widened once here, weights are read as they are. Tensors are written piece
by piece, so memory stays at a few megabytes whatever the size of the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from inflight.build.steps import Layout, Own, Step
from inflight.errors import CheckpointError
from inflight.executors.reference.model.weights import STORED_AS, widen
from inflight.model.shards import DTYPE_BYTES, FETCH_AGAIN, Shard, Tensor, find_shards

#: Elements widened at a time.
CHUNK = 4 * 1024 * 1024
#: Where the data begins: a multiple, so that mapped rows start on a cache line.
ALIGNMENT = 64


def plan_reference(source: str, layout: Layout) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Steps, and the files that the result must contain."""
    arguments = {"source": source, "result": layout.result}
    steps = (
        Step(
            "weights",
            "widen the weights to float32 in one file",
            Own("runtimes.reference.write_weights", arguments),
            outputs=(f"{layout.result}/model.safetensors",),
        ),
        Step(
            "files",
            "copy the tokenizer and the config",
            Own("files.copy_for_reference", arguments),
            outputs=(f"{layout.result}/config.json",),
        ),
        Step(
            "verify",
            "load it as the executor does",
            Own("runtimes.reference.verify", {"result": layout.result}),
        ),
    )
    return steps, ("config.json", "model.safetensors", "tokenizer.json")


def write_weights(source: str, result: str) -> None:
    """Writes `model.safetensors` in `result` from every shard in `source`."""
    shards = find_shards(Path(source))
    target = Path(result)
    target.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for _shard, tensor in _tensors(shards):
        if tensor.name in header:
            raise CheckpointError(f"the tensor `{tensor.name}` is in two shards of `{source}`", FETCH_AGAIN)
        dtype, size = _target(tensor)
        header[tensor.name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-(8 + len(encoded)) % ALIGNMENT)
    with (target / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for shard in shards:
            with shard.path.open("rb") as origin:
                for tensor in shard.tensors:
                    _copy(origin, tensor, file)


def _tensors(shards: tuple[Shard, ...]) -> Iterator[tuple[Shard, Tensor]]:
    for shard in shards:
        for tensor in shard.tensors:
            yield shard, tensor


def _target(tensor: Tensor) -> tuple[str, int]:
    size = tensor.end - tensor.begin
    # Other types (masks, counters) are kept as they are.
    width = _width(tensor)
    return (tensor.dtype, size) if width is None else ("F32", size // width * 4)


def _copy(origin: BinaryIO, tensor: Tensor, file: BinaryIO) -> None:
    import numpy as np

    origin.seek(tensor.begin)
    left = tensor.end - tensor.begin
    width = _width(tensor)
    step = CHUNK * (width or 1)
    while left:
        block = origin.read(min(step, left))
        if not block:
            raise CheckpointError(f"the shard with `{tensor.name}` ended early", FETCH_AGAIN)
        left -= len(block)
        if width is None or tensor.dtype == "F32":
            file.write(block)
        else:
            file.write(widen(np.frombuffer(block, dtype=STORED_AS[tensor.dtype]), tensor.dtype).tobytes())


def _width(tensor: Tensor) -> int | None:
    """Bytes of an element that is widened; None: the tensor is copied."""
    return DTYPE_BYTES[tensor.dtype] if tensor.dtype in STORED_AS else None


def verify(result: str) -> None:
    """Loads what was written with the executor's own loader; `UserMistake` where it refuses them."""
    from inflight.executors.reference.numpy.model import load_model

    # One position: the rotary tables of a long context take memory and prove nothing.
    load_model(Path(result), 1)
