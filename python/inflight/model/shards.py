"""Weight files without their weights: safetensors headers, shard lists, fingerprints.

Reads a few kilobytes of each file however large it is. Knows nothing of models or tensors' meaning.
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.errors import CheckpointError
from inflight.model.files import load_json, open_regular, parse_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
#: The format's own limit on its JSON header, so that a damaged length cannot ask for all memory.
MAX_HEADER_BYTES = 100 * 1024 * 1024
#: Of a tensor: NumPy's limit, and the format's own for sizes and offsets. A file may say any number, and the
#: product of many large ones takes for ever.
MAX_DIMENSIONS = 64
MAX_SIZE = 1 << 63
#: Files up to this size are hashed whole; of larger ones the ends and evenly spread samples.
WHOLE_BYTES = 64 * 1024 * 1024
SAMPLES = 64
SAMPLE_BYTES = 64 * 1024

FETCH_AGAIN = "copy or download the checkpoint again"

DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
}
DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Tensor:
    """One tensor of a shard; offsets are bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Shard:
    """One weight file. `tensors` is empty for a format that is not safetensors."""

    path: Path
    size: int
    tensors: tuple[Tensor, ...] = ()


def find_shards(directory: Path) -> tuple[Shard, ...]:
    """The weight files in `directory`, safetensors before PyTorch's; none where there are none.

    Raises `CheckpointError` for a shard that the index names and is not there, and for a damaged header.
    """
    single = directory / SINGLE
    if single.is_file():
        return (read_shard(single),)
    index = directory / INDEX
    if index.is_file():
        return tuple(read_shard(path) for path in _indexed(index))
    found = sorted(directory.glob("*.safetensors"))
    if found:
        return tuple(read_shard(path) for path in found)
    return tuple(Shard(path, path.stat().st_size) for path in sorted(directory.glob("pytorch_model*.bin")))


def _indexed(index: Path) -> list[Path]:
    try:
        weight_map = load_json(index)["weight_map"]
        names = sorted({str(name) for name in weight_map.values()})
    except OSError as error:
        raise CheckpointError(
            f"`{index}` cannot be read: {error.strerror}", "check its permissions"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"`{index}` is not an index of shards: {error!r}", FETCH_AGAIN) from error
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"`{index}` names a shard outside its directory: `{name}`", FETCH_AGAIN)
        if not (index.parent / name).is_file():
            raise CheckpointError(f"the shard `{index.parent / name}` does not exist", FETCH_AGAIN)
    return [index.parent / name for name in names]


def read_shard(path: Path) -> Shard:
    """The header of a safetensors file, every offset checked against the file's size."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"`{path}` is truncated: its header is longer than the file", FETCH_AGAIN
                )
            header = parse_json(file.read(length))
    except OSError as error:
        raise CheckpointError(
            f"`{path}` cannot be read: {error.strerror}", "check its permissions"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"`{path}` is damaged: its header is not JSON", FETCH_AGAIN) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"`{path}` is damaged: its header is not an object", FETCH_AGAIN)
    header.pop("__metadata__", None)
    tensors = tuple(_tensor(path, name, entry, 8 + length) for name, entry in header.items())
    end = max((tensor.end for tensor in tensors), default=8 + length)
    if end > size:
        raise CheckpointError(f"`{path}` is truncated: it has {size} of {end} bytes", FETCH_AGAIN)
    return Shard(path, size, tensors)


def _tensor(path: Path, name: str, entry: Any, start: int) -> Tensor:
    try:
        begin, end = (int(offset) for offset in entry["data_offsets"])
        tensor = Tensor(
            name, str(entry["dtype"]), tuple(int(size) for size in entry["shape"]), start + begin, start + end
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise CheckpointError(
            f"`{path}` is damaged: the entry of `{name}` is incomplete", FETCH_AGAIN
        ) from None
    if not 0 <= begin <= end < MAX_SIZE:
        raise CheckpointError(f"`{path}` is damaged: `{name}` is outside its data", FETCH_AGAIN)
    if len(tensor.shape) > MAX_DIMENSIONS or not all(0 <= size < MAX_SIZE for size in tensor.shape):
        raise CheckpointError(f"`{path}` is damaged: `{name}` has an impossible shape", FETCH_AGAIN)
    width = DTYPE_BYTES.get(tensor.dtype)
    if width is not None and end - begin != width * math.prod(tensor.shape):
        raise CheckpointError(
            f"`{path}` is damaged: `{name}` has `{end - begin}` bytes, but"
            f" `{tensor.dtype}` in the shape `{list(tensor.shape)}` needs"
            f" `{width * math.prod(tensor.shape)}`",
            FETCH_AGAIN,
        )
    return tensor


def hash_file(path: Path) -> str:
    """SHA-256 of the whole file, as `sha256:` and hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1024 * 1024):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def fingerprint_file(path: Path) -> str:
    """`hash_file` of a small file; of a large one its size, both ends and samples between them.

    That distinguishes hundreds of gigabytes in a second. It notices another set of weights, a
    truncated or a replaced file; not a single flipped bit in the middle.
    """
    size = path.stat().st_size
    if size <= WHOLE_BYTES:
        return hash_file(path)
    digest = hashlib.sha256(f"{size}:".encode())
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek((size - SAMPLE_BYTES) * number // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return f"sampled-sha256:{digest.hexdigest()}"
