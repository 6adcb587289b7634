"""Logits against Hugging Face transformers, on the tiny checkpoints of `fixtures` (see ORIGIN.md there).

Each architecture is computed three ways that must agree: the prompt at once, in chunks, and token by
token beside other sequences, since the three take different paths through attention and the cache.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from inflight.executors.reference.model.config import load_config, parse_config
from inflight.executors.reference.numpy import arrays, invariant
from inflight.executors.reference.numpy.batch import Span, build_batch
from inflight.executors.reference.numpy.cache import PagedCache
from inflight.executors.reference.numpy.model import NumpyModel, load_model
from reference.support import FIXTURES, expected

NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/expected.npz"))
TOLERANCE = 1e-4
TOKENS_PER_BLOCK = 4


def make_cache(model: NumpyModel, num_blocks: int) -> PagedCache:
    return PagedCache.of(model.config, num_blocks, TOKENS_PER_BLOCK)


def test_there_is_a_fixture_for_every_promise() -> None:
    assert {
        "llama",
        "deepseek_v2",
        "deepseek_v3",
        "gpt_oss",
        "llama3_rope",
        "llama_yarn",
        "llama_biased_linear_rope",
        "mistral_window",
        "qwen2_tied",
        "qwen2_window",
        "qwen2_5_vl",
        "qwen3",
        "qwen3_moe",
        "gpt2",
        "mixtral",
        "phi3_window",
        "phi3_long",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_seeing",
        "baichuan2_rotary",
        "baichuan2_alibi",
    } == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [1000, 7, 1])
def test_prompt_logits_equal_transformers(name: str, chunk: int) -> None:
    token_ids, logits = expected(name)
    model = load_model(FIXTURES / name)
    cache = make_cache(model, 32)
    # Blocks out of order and not from the start: the table, not luck, must say where tokens lie.
    blocks = list(range(31, 31 - -(-len(token_ids) // TOKENS_PER_BLOCK), -1))
    found = []
    for start in range(0, len(token_ids), chunk):
        tokens = token_ids[start : start + chunk]
        used = blocks[: -(-(start + len(tokens)) // TOKENS_PER_BLOCK)]
        batch = build_batch([], [Span(tokens, start, used)], TOKENS_PER_BLOCK)
        found.append(model.logits(model.forward(batch, cache, np.arange(len(tokens)))))
    np.testing.assert_allclose(np.concatenate(found), logits, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_chunk_in_slices_says_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long chunks are cut so that their scores stay small; here every slice has five queries."""
    token_ids, logits = expected(name)
    monkeypatch.setattr(arrays, "MAX_SCORES", 4 * len(token_ids) * 5)
    model = load_model(FIXTURES / name)
    batch = build_batch([], [Span(token_ids, 0, list(range(20)))], TOKENS_PER_BLOCK)
    hidden = model.forward(batch, make_cache(model, 20), np.arange(len(token_ids)))
    np.testing.assert_allclose(model.logits(hidden), logits, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_generation_beside_others_equals_transformers(name: str) -> None:
    """Feeds the fixture token by token, with a longer, a shorter and a context neighbour."""
    token_ids, logits = expected(name)
    model = load_model(FIXTURES / name)
    cache = make_cache(model, 128)
    own = list(range(20))
    longer, shorter, prompt = list(range(20, 60)), list(range(60, 62)), list(range(62, 80))
    others = [(token * 7 + 3) % 64 for token in range(160)]
    start = build_batch([], [Span(others[:100], 0, longer[:25])], TOKENS_PER_BLOCK)
    model.forward(start, cache, np.arange(0))
    for position, token in enumerate(token_ids):
        batch = build_batch(
            [
                Span([others[position]], 100 + position, longer),
                Span([token], position, own),
                Span([5], position % 8, shorter),
            ],
            [Span(others[:9], 0, prompt)],
            TOKENS_PER_BLOCK,
        )
        found = model.logits(model.forward(batch, cache, np.array([1])))
        np.testing.assert_allclose(found[0], logits[position], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("run", [128, 16])
def test_an_invariant_model_gives_a_token_the_same_bits(
    name: str, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one prompt, in chunks, token by token, and beside others."""
    monkeypatch.setattr(invariant, "_RUN", run)
    token_ids, logits = expected(name)
    model = load_model(FIXTURES / name, batch_invariant=True)
    others = [(token * 7 + 3) % 64 for token in range(60)]
    own, theirs = list(range(31, 11, -1)), list(range(40, 60))
    found = []
    for chunk in (1000, 7, 1):
        for beside in (False, True):
            cache, parts = make_cache(model, 64), []
            for start in range(0, len(token_ids), chunk):
                tokens = token_ids[start : start + chunk]
                span = Span(tokens, start, own[: -(-(start + len(tokens)) // TOKENS_PER_BLOCK)])
                one = [span] if chunk == 1 else []
                context = [Span(others, 0, theirs)] if beside else []
                batch = build_batch(one, context if one else [*context, span], TOKENS_PER_BLOCK)
                first = len(others) if beside and not one else 0
                rows = np.arange(first, first + len(tokens))
                parts.append(model.logits(model.forward(batch, cache, rows)))
            found.append(np.concatenate(parts))
    np.testing.assert_allclose(found[0], logits, atol=TOLERANCE, rtol=0)
    assert all(np.array_equal(found[0], other) for other in found)


#: transformers has no Baichuan, whose own code has one spelling.
IN_TRANSFORMERS = [name for name in NAMES if not name.startswith("baichuan")]


@pytest.mark.parametrize("name", IN_TRANSFORMERS)
def test_configurations_of_transformers_4_and_5_mean_the_same(name: str) -> None:
    old = json.loads((FIXTURES / name / "config-4.json").read_text())
    assert old["transformers_version"].startswith("4.")
    assert "rope_parameters" not in old
    new = json.loads((FIXTURES / name / "config.json").read_text())
    assert ("rope_parameters" in new.get("text_config", new)) == (name != "gpt2")
    assert parse_config(old) == load_config(FIXTURES / name)
