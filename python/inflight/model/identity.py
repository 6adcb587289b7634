"""What distinguishes the weights of two directories, without reading them whole.

Owns which files count and how much of each. Knows nothing of what is in them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

#: Weights, and what says how they are computed with.
_SUFFIXES = (".safetensors", ".bin", ".engine")
_CONFIG = "config.json"
#: Bytes of each end of a file that are read. The beginning of a safetensors file lists its tensors.
_END_BYTES = 1 << 16


def weights_identity(directory: Path, *settings: str) -> str:
    """A hash over the names, the sizes and both ends of the files of weights, over ``config.json``, and over
    the ``settings`` that change what is computed. Two workers with the same hash generate the same text, up
    to the order of sums. Raises `OSError`."""
    found = hashlib.sha256("\0".join(settings).encode())
    for path in sorted(directory.iterdir()):
        if path.suffix not in _SUFFIXES and path.name != _CONFIG:
            continue
        size = path.stat().st_size
        found.update(f"\0{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            found.update(file.read(_END_BYTES))
            if size > _END_BYTES:
                file.seek(max(_END_BYTES, size - _END_BYTES))
                found.update(file.read(_END_BYTES))
    return found.hexdigest()
