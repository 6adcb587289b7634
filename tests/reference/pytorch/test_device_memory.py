"""Which copies are asked of the driver: made here by hand, as it would make them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

pytest.importorskip("torch")

from inflight.executors.reference.pytorch import device_memory
from inflight.executors.reference.pytorch.device_memory import Plane, plan_copies

PARTS, ROW = 6, 40


def carry_out(copies: np.ndarray) -> None:
    for one in copies:
        width, height, depth = one["extent"].tolist()
        assert (one["source"]["kind"], one["target"]["kind"], one["order"], depth) == (1, 1, 1, 1)
        for row in range(height):
            source, target = (
                int(operand["address"]) + row * int(operand["pitch"])
                for operand in (one["source"], one["target"])
            )
            ctypes.memmove(target, source, width)


@pytest.mark.parametrize("most_pitch", [1 << 30, 1])
def test_blocks_are_copied_in_all_parts(most_pitch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In caches of different sizes, at once or, where rows are too far apart, row by row."""
    monkeypatch.setattr(device_memory, "_MOST_PITCH", most_pitch)
    draw = np.random.default_rng(1)
    theirs = draw.integers(0, 255, (PARTS, 9, ROW), dtype=np.uint8)
    ours = np.zeros((PARTS, 7, ROW), dtype=np.uint8)
    read, write = [8, 0, 3], [1, 6, 2]
    copies = plan_copies(
        Plane(theirs.ctypes.data, np.array(read), ROW, 9 * ROW),
        Plane(ours.ctypes.data, np.array(write), ROW, 7 * ROW),
        ROW,
        PARTS,
    )
    assert len(copies) == (3 if most_pitch > 1 else 3 * PARTS)
    assert copies.dtype.itemsize == 112
    carry_out(copies)
    assert (ours[:, write] == theirs[:, read]).all()
    assert not ours[:, [0, 3, 4, 5]].any()


def test_a_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: (_ for _ in ()).throw(OSError))
    device_memory._driver.cache_clear()
    with pytest.raises(device_memory.DeviceMemoryError, match="not there"):
        device_memory.require_planes()
    device_memory._driver.cache_clear()
