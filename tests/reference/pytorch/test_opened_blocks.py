"""Caches of other processes on GPUs of this host: opened, copied from, and let go of."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from inflight.executors.reference.core.block_store import CannotOpenError, Export
from inflight.executors.reference.pytorch import opened_blocks
from inflight.executors.reference.pytorch.opened_blocks import OpenedCache

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SHAPE = (6, 4, 2, 8)
BLOCKS = 37


def filled(device: str, blocks: int, seed: int) -> Any:
    """A cache in which every number is another."""
    parts, *block = SHAPE
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randint(-(2**62), 2**62, (parts, blocks, *block), generator=generator, device=device)


def owner(line: Connection, device: str) -> None:
    """A process with a cache, in the middle of what its allocator has."""
    others = torch.zeros(1000, dtype=torch.int64, device=device)
    cache = filled(device, BLOCKS, 7)
    torch.cuda.synchronize(device)
    line.send(opened_blocks.export(cache))
    line.recv()
    del others


@contextmanager
def process(device: str) -> Iterator[tuple[Any, Export]]:
    spawn = multiprocessing.get_context("spawn")
    line, other = spawn.Pipe()
    child = spawn.Process(target=owner, args=(other, device), daemon=True)
    child.start()
    try:
        assert line.poll(100)
        yield child, line.recv()
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_blocks_of_another_process(device: str) -> None:
    """Also once it was killed: its memory is there until it is let go of."""
    if int(device[-1]) >= torch.cuda.device_count():
        pytest.skip("needs two GPUs")
    ours = torch.zeros((SHAPE[0], 2 * BLOCKS, *SHAPE[1:]), dtype=torch.int64, device="cuda:0")
    expected = filled(device, BLOCKS, 7).to("cuda:0")
    draw = random.Random(3)
    with process(device) as (child, export):
        opened = OpenedCache(export, ours)
        for is_killed in (False, True):
            if is_killed:
                child.kill()
                child.join()
            ours.zero_()
            torch.cuda.synchronize()
            read, write = draw.sample(range(BLOCKS), 20), draw.sample(range(2 * BLOCKS), 20)
            event = torch.cuda.Event()
            event.record()
            opened.fetch(read, write, event)
            assert (ours[:, write] == expected[:, read]).all()
            rest = sorted({*range(2 * BLOCKS)} - {*write})
            assert not ours[:, rest].any()
        with pytest.raises(ValueError, match="not one of 37"):
            opened.fetch([0, BLOCKS], [0, 1], None)
        opened.close()
        with pytest.raises(ValueError, match="closed"):
            opened.fetch([0], [0], None)
        opened.close()
        assert torch.ones(3, device="cuda:0").sum().item() == 3


def test_a_cache_that_is_not_what_it_says() -> None:
    ours = torch.zeros((SHAPE[0], BLOCKS, *SHAPE[1:]), dtype=torch.int64, device="cuda:0")
    with process("cuda:0") as (_, export):
        handle, offset, _, number, address = opened_blocks._EXPORT.unpack(export.data)
        many = opened_blocks._EXPORT.pack(handle, offset, 1 << 40, number, address)
        none = opened_blocks._EXPORT.pack(handle, offset, 0, number, address)
        other = opened_blocks._EXPORT.pack(bytes(64), offset, BLOCKS, number, address)
        for data in (many, none, other, b"", export.data[:-1]):
            with pytest.raises(CannotOpenError):
                OpenedCache(replace(export, data=data), ours)
        # None of these attempts has it open: it can be opened again.
        OpenedCache(export, ours).close()
    with pytest.raises(CannotOpenError):
        OpenedCache(export, ours.cpu())
