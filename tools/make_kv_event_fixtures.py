"""Writes batches of KV cache events as vLLM and SGLang do, by the library that they use (msgspec).

They are the corpus of the fuzz target `kv_event_batch`, and what the tests of `crates/kv_events` read. The
fields and their order are those of `vllm/distributed/kv_events.py`: maps since vllm#42892, arrays before.

    python tools/make_kv_event_fixtures.py fuzz/corpus/kv_event_batch
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

#: Tokens of the first block and of the second.
FIRST, SECOND = [1, 2, 3, 4], [5, 6, 7, 8]
SHA = [bytes(range(32)), bytes(range(32, 64))]


#: The fields of events in their order; those with a default may be left out.
STORED: tuple[Any, ...] = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    ("extra_keys", Any, None),
    ("group_idx", Any, None),
    ("kv_cache_spec_kind", Any, None),
    ("kv_cache_spec_sliding_window", Any, None),
    ("locality", Any, None),
    ("ownership", Any, None),
    ("session_id", Any, None),
)
REMOVED: tuple[Any, ...] = (
    "block_hashes",
    "medium",
    ("group_idx", Any, None),
    ("locality", Any, None),
    ("ownership", Any, None),
)


def structs(array_like: bool) -> tuple[Any, Any, Any, Any]:
    """The batch and the three events, in one of the two forms."""

    def event(name: str, fields: tuple[Any, ...]) -> Any:
        return msgspec.defstruct(name, fields, array_like=array_like, omit_defaults=True, tag=True)

    fields = ("ts", "events", ("data_parallel_rank", Any, None))
    batch = msgspec.defstruct("EventBatch", fields, array_like=True, omit_defaults=True)
    return batch, event("BlockStored", STORED), event("BlockRemoved", REMOVED), event("AllBlocksCleared", ())


def batches(array_like: bool) -> dict[str, Any]:
    """The same batches in one of the two forms."""
    batch, stored, removed, cleared = structs(array_like)
    two = [*FIRST, *SECOND]
    return {
        "stored": batch(
            1.5,
            [stored(SHA, None, two, 4, None, "GPU", None, [("salt",), None], 0, "full_attention")],
            0,
        ),
        "rest": batch(
            2.5,
            [
                stored([SHA[1]], SHA[0], SECOND, 4, 3, "CPU", "support", [("support",)]),
                removed(SHA, "GPU", 0),
                cleared(),
            ],
        ),
        "numbers": batch(3.5, [stored([-1, 2**64 - 2], 7, two, 4, None, None, None)]),
        "other_layers": batch(
            4.5,
            [
                stored([SHA[0]], None, FIRST, 4, None, "GPU", None, None, 1, "sliding_window", 1024),
                stored([SHA[0]], None, FIRST, 4, None, "GPU", None, [(("image", 3),)], 0, "mla_attention"),
            ],
        ),
        "elsewhere": batch(
            5.5,
            [
                stored(
                    [SHA[0]],
                    None,
                    FIRST,
                    4,
                    None,
                    "CPU",
                    None,
                    locality="REMOTE",
                    ownership="a",
                    session_id="s",
                ),
                stored([SHA[0]], None, [(1, 2), (2, 3), (3, 4), (4, 5)], 4, None, "STORAGE", None),
                removed([SHA[0]], "STORAGE", None, "LOCAL", "a"),
            ],
        ),
    }


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    encode = msgspec.msgpack.Encoder().encode
    for form, array_like in (("map", False), ("array", True)):
        for name, batch in batches(array_like).items():
            (out / f"{name}_{form}").write_bytes(encode(batch))
    # Some releases of vLLM have maps throughout.
    fields = ("ts", "events", ("data_parallel_rank", Any, None))
    of_maps = msgspec.defstruct("EventBatch", fields, omit_defaults=True)
    batch = batches(array_like=False)["stored"]
    (out / "stored_maps").write_bytes(encode(of_maps(batch.ts, batch.events, batch.data_parallel_rank)))
    # SGLang's ended earlier as arrays; as maps they have fields of their own.
    short = ["BlockStored", [11, 12], None, [*FIRST, *SECOND], 4, None, "GPU", None]
    (out / "sglang").write_bytes(encode([1.5, [short, ["BlockRemoved", [11]], ["AllBlocksCleared"]], None]))
    salted = {
        "type": "BlockStored",
        "block_hashes": [-1],
        "parent_block_hash": None,
        "token_ids": FIRST,
        "block_size": 4,
        "lora_id": 1,
        "medium": "CPU_PINNED",
        "cache_salt": "pepper",
        "session_id": "s",
        "lora_name": "support",
    }
    (out / "sglang_map").write_bytes(encode([1.5, [salted], 0]))
    later = {"type": "BlockMoved", "block_hashes": [1], "to": {"a": [1, {"b": None}]}}
    named_last = {"block_hashes": [1], "medium": "GPU", "new": [[[]]], "type": "BlockRemoved"}
    (out / "later").write_bytes(encode([1, [later, named_last], None, {"more": [1]}, "more"]))


if __name__ == "__main__":
    main()
