"""Weight files that anybody may have written: whatever they hold, they are read or refused by name."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from inflight.errors import CheckpointError
from inflight.model.shards import read_shard

from .weight_files import check

#: What `fuzz/weight_files.py` starts from and adds to.
CORPUS = sorted((Path(__file__).parents[2] / "fuzz/corpus/weight_files").iterdir())
#: Cuts of an entry that are tried as well.
CUTS = 32


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.name)
def test_every_entry_of_the_corpus_is_read_or_refused(entry: Path, tmp_path: Path) -> None:
    content = entry.read_bytes()
    for cut in range(CUTS + 1):
        check(tmp_path, content[: len(content) * cut // CUTS])


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        # More digits than Python writes of a number.
        ([10**4000, 10**4000], "`weight` has an impossible shape"),
        ([1] * 10_000, "`weight` has an impossible shape"),
        ([-2, -2], "`weight` has an impossible shape"),
        ([2, 3], "`weight` has `16` bytes, but `F32` in the shape `[2, 3]` needs `24`"),
    ],
    ids=["huge", "many", "negative", "other"],
)
def test_a_shape_that_cannot_be_is_refused_at_once(shape: list[int], reason: str, tmp_path: Path) -> None:
    header: dict[str, Any] = {"weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, 16]}}
    text = json.dumps(header).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    with pytest.raises(CheckpointError) as refused:
        read_shard(file)
    assert refused.value.what == f"`{file}` is damaged: {reason}"


def test_an_offset_with_more_digits_than_python_writes_is_refused(tmp_path: Path) -> None:
    text = b'{"weight": {"dtype": "X", "shape": [1], "data_offsets": [0, %s]}}' % (b"9" * 4300)
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(CheckpointError, match="`weight` is outside its data"):
        read_shard(file)
