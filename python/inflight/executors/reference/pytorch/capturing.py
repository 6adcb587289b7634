"""What all captures of CUDA graphs need. Knows nothing of what is captured."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps Python from freeing cycles: what another model leaves may be CUDA's, and freeing it ends a
    capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
