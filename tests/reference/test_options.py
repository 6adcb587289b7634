"""Options and the sizes that follow from them."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.executors.reference.core.options import (
    OPTIONS,
    Sizes,
    limit_windows,
    parse_options,
    plan_sizes,
    row_numbers,
)
from inflight.executors.reference.core.window import CacheWindow
from inflight.executors.reference.errors import OptionError
from inflight.executors.reference.model.config import parse_config
from inflight.executors.reference.pytorch.device import auto_dtype

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
        ({"speculative_decoding_mode": "medusa"}, "`medusa`"),
        ({"speculative_decoding_mode": "eagle", "max_draft_len": 3}, "`eagle`"),
        ({"speculative_decoding_mode": "explicit_draft_tokens"}, "`explicit_draft_tokens`"),
        ({"speculative_decoding_mode": "lookahead_decoding"}, "`lookahead_decoding`"),
        ({"speculative_decoding_mode": "ngram"}, "max_draft_len"),
        ({"speculative_decoding_mode": "draft_target", "max_draft_len": 3}, "without `speculative_model`"),
        ({"speculative_model": "draft"}, "max_draft_len"),
        ({"speculative_model": "draft", "speculative_decoding_mode": "ngram"}, "leave one|a model that"),
        ({"max_attention_window_size": "0"}, "max_attention_window_size"),
        ({"max_attention_window_size": "all"}, "max_attention_window_size"),
        ({"max_attention_window_size": "9,4", "sink_token_length": 4}, "`4` in a window of `4`"),
        ({"kv_cache_host_memory_bytes": 8191}, "block of 8192 bytes"),
        ({"kv_cache_host_memory_bytes": 8192, "enable_kv_cache_reuse": False}, "enable_kv_cache_reuse"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    def plan() -> None:
        parsed = parse_options(options)
        plan_sizes(parsed, limit_windows(CONFIG, parsed))

    with pytest.raises(OptionError, match=words):
        plan()


def test_a_window_bounds_what_a_sequence_holds_and_not_its_length() -> None:
    options = parse_options(
        {"max_attention_window_size": "40,20", "sink_token_length": 5, "max_tokens_in_paged_kv_cache": 128}
        | {"tokens_per_block": 4, "max_num_tokens": 64, "kv_cache_host_memory_bytes": 10_000}
    )
    config = limit_windows(CONFIG, options)
    assert (config.windows, config.sink_tokens) == ((35, 15), 5)
    window = CacheWindow(35, 5, 64)
    assert plan_sizes(options, config) == Sizes(64, 256, 32, 32 * 4 * 256, 9, window)
    # Two blocks of sinks; 98 consecutive tokens touch 26 blocks.
    assert window.most_blocks(4) == 2 + 26
    # With a layer that sees everything, every block stays.
    half = limit_windows(CONFIG, parse_options({"max_attention_window_size": "40,256"}))
    assert (half.windows, plan_sizes(options, half).window) == ((40, None), None)


def test_a_cache_of_vectors_is_small_and_has_no_window() -> None:
    config = parse_config(read_config("deepseek_v3"))
    # Two layers of 16 + 8 numbers, and no values besides.
    assert plan_sizes(parse_options({"max_tokens_in_paged_kv_cache": 64}), config).cache_bytes == 64 * 192
    for options in ({"max_attention_window_size": "20"}, {"sink_token_length": 4}):
        with pytest.raises(OptionError, match="`DeepseekV3ForCausalLM`, whose attention is latent"):
            limit_windows(config, parse_options(options))


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        # Hidden 32, and an MLP of 48.
        ("llama", 4 * 32 + 3 * 48),
        # Two experts a token.
        ("mixtral", 4 * 32 + 2 * (3 * 48 + 32)),
        # Four heads, whose queries of 16 become 24, three times.
        ("deepseek_v3", 4 * 32 + max(3 * (3 * 32 + 32) + 3 * 32, 4 * (16 + 3 * 24))),
    ],
)
def test_what_an_iteration_needs_of_memory_counts_experts_and_vectors(name: str, numbers: int) -> None:
    assert row_numbers(parse_config(read_config(name))) == numbers


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_seq_len": 257}, "`max_seq_len` is `257`, more than the 256 positions of the model"),
        (
            {"max_seq_len": 200, "max_tokens_in_paged_kv_cache": 96},
            "`max_seq_len` is `200`, more than the 96 tokens of the KV cache",
        ),
        ({"max_seq_len": 256}, None),
        ({"max_tokens_in_paged_kv_cache": 96}, None),
    ],
)
def test_a_length_that_cannot_be_had_is_warned_of(
    options: dict[str, int], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    plan_sizes(parse_options(options), CONFIG)
    assert [said is not None and said in one.getMessage() for one in caplog.records] == [True] * (
        said is not None
    )


@pytest.mark.parametrize(
    ("stored", "device", "chosen"),
    [
        ("float32", "cuda", "bfloat16"),
        ("float16", "cuda", "float16"),
        ("bfloat16", "cuda", "bfloat16"),
        ("float8_e4m3fn", "cuda", "bfloat16"),
        ("bfloat16", "cpu", "float32"),
        ("float32", "cpu", "float32"),
    ],
)
def test_auto_precision_is_what_its_help_says(stored: str, device: str, chosen: str) -> None:
    assert auto_dtype(stored, device) == chosen
    described = OPTIONS["dtype"].meaning
    assert "on a GPU the checkpoint's 16 bits, or bfloat16 for one in float32" in described
    assert "on a CPU float32" in described
