"""TensorRT-LLM's events of its KV cache, as the worker's reports have them. Pure.

Owns the form of ``get_kv_cache_events`` and the hash of a prompt's first block. Who asks for events, and
when, is the executor's.

Events say neither adapter nor salt. A first block is plain, or an adapter's, where its hash is that of its
tokens with none, or with that adapter's task id; any other is left out, and so is all that follows it: the
blocks of salted prompts, whose hash cannot be computed outside TensorRT-LLM, and all blocks where it hashes
otherwise (``v2_sha256``).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inflight.executors.base import CacheChange, CacheChanges

_MASK_32 = (1 << 32) - 1
_MASK_64 = (1 << 64) - 1


class CacheEventReader:
    """Reads events in order; one for each executor."""

    def __init__(self, tokens_per_block: int, adapters: Iterable[int] = ()) -> None:
        """``adapters``: the task ids that requests may ask for; they may change."""
        self._size = tokens_per_block
        self.adapters = tuple(adapters)
        self._last: int | None = None
        #: Of several windows, only the longest's blocks say what a prompt finds.
        self._window = 0

    def read(self, events: Sequence[Mapping[str, Any]]) -> CacheChanges | None:
        """What the events of one rank change; None for nothing that can be reported.

        Where events are missing, what the cache holds is unknown: all is cleared, and comes again as it is
        stored again.
        """
        columns = _Columns()
        for event in events:
            # With attention data parallelism each rank has a cache, and the first one's is reported.
            if event.get("attention_dp_rank"):
                continue
            number = event["event_id"]
            if self._last is not None and number != self._last + 1:
                columns.add(CacheChange.CLEARED, 0)
            self._last = number
            data = event["data"]
            window = event.get("window_size") or 0
            if data["type"] == "created":
                self._window = max(self._window, window)
            elif window >= self._window:
                self._read(data, columns)
        return columns.pack()

    def _read(self, data: Mapping[str, Any], columns: _Columns) -> None:
        match data["type"]:
            case "stored":
                parent = data["parent_hash"]
                for block in data["blocks"]:
                    self._store(block, parent, columns)
                    parent = block["block_hash"]
            case "removed":
                for name in data["block_hashes"]:
                    columns.add(CacheChange.REMOVED, _name(name))
            case "updated":
                level = data.get("cache_level")
                if level is not None:
                    to_host = level["new_value"] > 0
                    kind = CacheChange.MOVED_TO_HOST if to_host else CacheChange.MOVED_TO_DEVICE
                    columns.add(kind, _name(data["block_hash"]))

    def _store(self, block: Mapping[str, Any], parent: Any, columns: _Columns) -> None:
        tokens = block["tokens"]
        if len(tokens) != self._size or any(token.get("token_extra_id") for token in tokens):
            return
        ids = [token["token_id"] for token in tokens]
        kind = CacheChange.STORED_ON_HOST if block.get("cache_level") else CacheChange.STORED
        if parent is not None:
            columns.store(kind, _name(block["block_hash"]), _name(parent), ids)
            return
        for origin in (None, *self.adapters):
            if block["block_hash"] == first_block_hash(ids, origin):
                columns.firsts.append((len(columns.parents), origin, b""))
                columns.store(kind, _name(block["block_hash"]), 0, ids)
                return


class _Columns:
    def __init__(self) -> None:
        self.kinds = bytearray()
        self.names = array("Q")
        self.parents = array("Q")
        self.tokens = array("i")
        self.firsts: list[tuple[int, int | None, bytes]] = []

    def add(self, kind: CacheChange, name: int) -> None:
        self.kinds.append(kind)
        self.names.append(name)

    def store(self, kind: CacheChange, name: int, parent: int, ids: Sequence[int]) -> None:
        self.add(kind, name)
        self.parents.append(parent)
        self.tokens.extend(ids)

    def pack(self) -> CacheChanges | None:
        if not self.kinds:
            return None
        columns = (self.names.tobytes(), self.parents.tobytes(), self.tokens.tobytes())
        return CacheChanges(bytes(self.kinds), *columns, tuple(self.firsts))


def _name(block_hash: Any) -> int:
    """64 bits, whatever TensorRT-LLM names blocks by."""
    if isinstance(block_hash, int):
        return block_hash & _MASK_64
    digest = hashlib.blake2b(str(block_hash).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def first_block_hash(ids: Sequence[int], lora_task_id: int | None) -> int:
    """``v1_block_key`` of a prompt's first block without a salt."""
    seed = len(ids)
    for token in ids:
        seed = _mix_32(token & _MASK_32, seed)
    return seed if lora_task_id is None else _mix_64(lora_task_id, seed)


def _mix_32(value: int, seed: int) -> int:
    for _ in range(2):
        value = ((value >> 16 ^ value) * 0x45D9F3B) & _MASK_32
    value = ((value >> 16 ^ value) + 0x9E3779B9) & _MASK_32
    return seed ^ (value + (seed << 6) + (seed >> 2)) & _MASK_64


def _mix_64(value: int, seed: int) -> int:
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK_64
    value ^= value >> 31
    return seed ^ (value + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & _MASK_64
