"""Options and the sizes that follow from them."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.executors.reference.config import parse_config
from inflight.executors.reference.errors import OptionError
from inflight.executors.reference.options import Sizes, parse_options, plan_sizes

from .support import read_config

#: Two layers, two key heads of 8: 256 bytes a token; 256 positions.
CONFIG = parse_config(read_config("llama"))


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, Sizes(256, 256, 64 * 8, 64 * 256 * 256)),
        ({"max_batch_size": 200, "tokens_per_block": 128}, Sizes(400, 256, 400, 400 * 128 * 256)),
        ({"max_batch_size": 1, "max_num_tokens": 7}, Sizes(7, 256, 8, 256 * 256)),
        ({"max_batch_size": 1, "max_seq_len": 33}, Sizes(256, 33, 2, 64 * 256)),
        ({"max_seq_len": 10**6}, Sizes(256, 256, 512, 512 * 32 * 256)),
        ({"max_tokens_in_paged_kv_cache": 100}, Sizes(256, 96, 3, 96 * 256)),
        ({"max_batch_size": None}, Sizes(256, 256, 512, 512 * 32 * 256)),
    ],
)
def test_sizes(options: dict[str, Any], sizes: Sizes) -> None:
    assert plan_sizes(parse_options(options), CONFIG) == sizes


def test_a_large_model_gets_what_two_gibibytes_hold() -> None:
    large = parse_config(
        read_config("llama")
        | {
            "num_hidden_layers": 32,
            "num_key_value_heads": 4,
            "head_dim": 1024,
            "max_position_embeddings": 10**6,
        }
    )
    sizes = plan_sizes(parse_options({}), large)
    assert sizes.max_seq_len == sizes.num_blocks * 32
    assert sizes.cache_bytes <= 2 * 1024**3 < sizes.cache_bytes + 2 * 4 * 32 * 4 * 1024 * 32


def test_a_block_beyond_the_memory_is_still_one_block() -> None:
    assert plan_sizes(parse_options({"tokens_per_block": 2**31}), CONFIG).num_blocks == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_batch": 3}, "`max_batch` is not an option"),
        ({"max_batch_size": 0}, "at least 1"),
        ({"max_batch_size": True}, "integer"),
        ({"max_batch_size": "eight"}, "integer"),
        ({"max_batch_size": 8.0}, "integer"),
        ({"batch_scheduler_policy": "static_batch"}, "guaranteed_no_evict, max_utilization"),
        ({"enable_kv_cache_reuse": "maybe"}, "true or false"),
        ({"max_batch_size": 9, "max_num_tokens": 8}, "max_num_tokens"),
        ({"max_tokens_in_paged_kv_cache": 31}, "block of 32"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        plan_sizes(parse_options(options), CONFIG)


def test_text_is_read_as_a_command_line_has_it() -> None:
    options = parse_options(
        {
            "max_batch_size": "8",
            "enable_chunked_context": "False",
            "batch_scheduler_policy": "max_utilization",
        }
    )
    assert (options.max_batch_size, options.enable_chunked_context) == (8, False)
    assert options.batch_scheduler_policy == "max_utilization"
