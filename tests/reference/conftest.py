"""What all tests of the reference executor share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

#: Executors take most of what is free, and PyTorch keeps it.
_GPU_BYTES = 4 << 30


@pytest.fixture(autouse=True, scope="session")
def _a_part_of_the_gpu() -> Iterator[None]:
    """Several processes can run these tests on one GPU."""
    if os.environ.get("INFLIGHT_TEST_DEVICE") != "cuda":
        yield
        return
    import torch

    with pytest.MonkeyPatch.context() as patch:
        given = torch.cuda.mem_get_info

        def info(*place: Any) -> tuple[int, int]:
            free, total = given(*place)
            return min(free, _GPU_BYTES), total

        patch.setattr(torch.cuda, "mem_get_info", info)
        yield
