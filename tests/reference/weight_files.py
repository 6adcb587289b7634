"""What a stranger's weight files may cause: nothing but an error for users, or tensors within the file.

Shared by `test_fuzz_weight_files.py` and the fuzz target `weight_files`.
"""

from __future__ import annotations

from pathlib import Path

from inflight.errors import CheckpointError
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.lora import AdapterError
from inflight.executors.reference.model.peft import read_peft
from inflight.model.lora import PEFT_CONFIG, PEFT_WEIGHTS
from inflight.model.shards import INDEX, find_shards, read_shard

CONFIG = load_config(Path(__file__).parent / "fixtures/llama")
MAX_RANK = 8
#: Between an entry's two files.
SEPARATOR = b"\n\n"


def check(directory: Path, entry: bytes) -> None:
    """Reads an entry as an adapter, a config before a weight file, then as a weight file alone, and its
    config as an index of shards. Whatever is in ``directory`` is written over."""
    config, separator, weights = entry.partition(SEPARATOR)
    if not separator:
        config, weights = b'{"r": 4, "lora_alpha": 6}', entry
    file = directory / PEFT_WEIGHTS
    file.write_bytes(weights)
    (directory / PEFT_CONFIG).write_bytes(config)
    reason = ""
    try:
        assert any(read_peft(directory, 1, CONFIG, MAX_RANK).layers)
    except AdapterError as error:
        reason = str(error)
    # Clients read it, and need not know where adapters are.
    assert str(directory) not in reason
    try:
        shard = read_shard(file)
    except CheckpointError:
        pass
    else:
        assert all(8 <= tensor.begin <= tensor.end <= len(weights) for tensor in shard.tensors)
    (directory / INDEX).write_bytes(config)
    try:
        shards = find_shards(directory)
    except CheckpointError:
        pass
    else:
        assert all(shard.path == file for shard in shards)
