"""How much of a model has been read: every byte once, of a whole model and of a rank's part, and in words."""

from __future__ import annotations

from itertools import pairwise

import pytest

from inflight.executors.progress import Progress, in_words, watched
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.split import parts
from inflight.executors.reference.model.tensors import required_tensors
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights

from .support import FIXTURES


@pytest.mark.parametrize("ranks", [1, 2])
def test_all_bytes_are_counted_and_no_more(ranks: int) -> None:
    folder = FIXTURES / "llama"
    config = load_config(folder)
    own = parts(config, 0, ranks) if ranks > 1 else None
    weights = CheckpointWeights.of(config, find_weights(folder), own)
    seen: list[tuple[int, int]] = []
    names = [name for name, _ in required_tensors(config)]
    with watched(lambda read, total: seen.append((read, total))):
        sizes = [len(weights.raw(name)[1]) for name in names]
        weights.raw(names[0])
    assert [read for read, _ in seen] == [
        *(sum(sizes[:count]) for count in range(1, len(sizes) + 1)),
        sum(sizes),
    ]
    assert {total for _, total in seen} == {sum(sizes)}
    weights.raw(names[0])
    assert len(seen) == len(names) + 1


def test_people_are_told_now_and_then() -> None:
    now = 0.0
    said: list[str] = []
    progress = Progress(8 << 30)
    with watched(in_words(said.append, lambda: now)):
        for percent in range(1, 101):
            # A quarter of a second for each, and a pause.
            now += 60.0 if percent == 52 else 0.25
            progress.add((8 << 30) // 100)
        Progress(100).add(50)
        now += 2
        Progress(100).add(50)
    assert said[:3] == [f"{percent} % of 8.0 GiB read" for percent in (5, 10, 15)]
    told = [int(text.split()[0]) for text in said[:-1]]
    assert all(later - first >= 5 for first, later in pairwise(told))
    assert len(said) <= 21
    assert said[-1] == "50 % of 0.0 MiB read"
