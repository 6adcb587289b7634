"""What the reference executor serves: one float32 file, written tensor by tensor, then proven to load.

The executor computes in float32 and maps its weight file; widened once here, it reads them as they are.
Memory stays at a few megabytes whatever the size of the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from inflight.build.checks.reference import FLOATS
from inflight.errors import UserMistake
from inflight.model.shards import Shard, Tensor, find_shards

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: Elements widened at a time.
CHUNK = 4 * 1024 * 1024
#: Where the data begins: a multiple, so that mapped rows start on a cache line.
ALIGNMENT = 64


def write_weights(source: str, result: str) -> None:
    """Writes `model.safetensors` in `result` from every shard in `source`."""
    shards = find_shards(Path(source))
    target = Path(result)
    target.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for _shard, tensor in _tensors(shards):
        if tensor.name in header:
            raise UserMistake(
                f"the tensor `{tensor.name}` is in two shards of `{source}`", "fetch the checkpoint again"
            )
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
    width = FLOATS.get(tensor.dtype)
    return (tensor.dtype, size) if width is None else ("F32", size // width * 4)


def _copy(origin: BinaryIO, tensor: Tensor, file: BinaryIO) -> None:
    import numpy as np

    origin.seek(tensor.begin)
    left = tensor.end - tensor.begin
    width = FLOATS.get(tensor.dtype)
    step = CHUNK * (width or 1)
    while left:
        block = origin.read(min(step, left))
        if not block:
            raise UserMistake(f"the shard with `{tensor.name}` ended early", "fetch the checkpoint again")
        left -= len(block)
        if width is None or tensor.dtype == "F32":
            file.write(block)
        else:
            file.write(_widen(np.frombuffer(block, dtype=f"<u{width}"), tensor.dtype).tobytes())


def _widen(raw: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    import numpy as np

    if dtype == "BF16":
        # bf16 is the upper half of a float32.
        return (raw.astype("<u4") << 16).view("<f4")
    return raw.view("<f2" if dtype == "F16" else "<f8").astype(np.float32)


def verify(result: str) -> None:
    """Loads what was written with the executor's own loader; `UserMistake` where that refuses it."""
    from inflight.executors.reference.errors import ModelError
    from inflight.executors.reference.model import load_model

    try:
        # One position: the rotary tables of a long context take memory and prove nothing.
        load_model(Path(result), 1)
    except ModelError as error:
        raise UserMistake(error.problem, error.remedy) from error
