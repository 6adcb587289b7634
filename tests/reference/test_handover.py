"""Prompts from one executor to another: the same tokens as one computes, and everything refused by name."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from inflight.executors.base import FinishReason
from inflight.executors.reference.core.context_phase import ContextPhase, FirstToken, Offer, pack, unpack
from inflight.executors.reference.core.refusal import Refused
from inflight.executors.reference.errors import OptionError

from .support import VOCAB_SIZE
from .transferring import SIZE, TIMEOUT_MS, pair, phase, single, start

PROMPT = [3 + (7 * place) % 50 for place in range(41)]
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.3, "top_p": 0.95, "seed": 5},
    {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    {"temperature": 1.5, "top_k": 20, "seed": 9, "no_repeat_ngram_size": 2, "min_tokens": 4},
]

OFFER = Offer(bytes(range(16)), (("127.0.0.1", 4000),), "weights", "layout", 41, b"content")
PHASE = ContextPhase(FirstToken(7, -1.25, (7, 9), (-1.25, float("-inf"))), FinishReason.NOT_FINISHED, OFFER)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded", "penalized", "n-grams"])
@pytest.mark.parametrize(
    "name", ["llama", "mistral_window", "gemma", "gemma2", "qwen3_moe", "gpt2", "gpt_oss", "deepseek_v3"]
)
def test_two_workers_answer_as_one(name: str, sampling: dict[str, Any]) -> None:
    with pair(name) as [context, generation], single(name) as whole:
        expected = whole.ask(PROMPT, sampling=sampling)
        told = context.context(PROMPT, sampling=sampling)
        assert (told.tokens, told.reason) == (expected.tokens[:1], FinishReason.LENGTH)
        answer = generation.generate(PROMPT, told.params, sampling=sampling)
        assert (answer.tokens, answer.reason) == (expected.tokens, expected.reason)
        transferred = generation.transferred()
        assert transferred.pop("blocks") > 0
        assert not transferred
        # Fetched: the context worker gives them back at once, and not after a while.
        assert context.wait_until_free() < TIMEOUT_MS / 2e3
        assert generation.wait_until_free() < 1


@pytest.mark.parametrize("length", [SIZE - 1, SIZE, SIZE + 1, 2 * SIZE - 1, 2 * SIZE, 33, 64, 100])
@pytest.mark.parametrize("name", ["llama", "mistral_window"])
def test_prompts_of_any_length(name: str, length: int) -> None:
    prompt = [(place * place) % VOCAB_SIZE for place in range(length)]
    with pair(name, max_tokens_in_buffer=8 * SIZE) as [context, generation], single(name) as whole:
        told = context.context(prompt)
        answer = generation.generate(prompt, told.params)
        assert answer.tokens == whole.ask(prompt).tokens
        # Where less than a block is missing, it is computed.
        assert (generation.transferred()["blocks"] > 0) == (length >= SIZE)
        context.wait_until_free()


def test_a_request_that_has_its_first_token_does_not_get_it_again() -> None:
    with pair() as [context, generation], single() as whole:
        expected = whole.ask(PROMPT).tokens
        told = context.context(PROMPT)
        for so_far in (expected[:1], expected[:5]):
            answer = generation.generate(PROMPT, told.params, generated=[so_far])
            assert answer.tokens == expected[len(so_far) :]
        assert generation.generate(PROMPT, told.params, generated=[[]]).tokens == expected


def test_an_answer_that_is_not_streamed_is_whole() -> None:
    with pair() as [context, generation], single() as whole:
        told = context.context(PROMPT, streaming=False)
        answer = generation.generate(PROMPT, told.params, streaming=False)
        assert answer.rows == 1
        assert answer.tokens == whole.ask(PROMPT, streaming=False).tokens


def test_log_probabilities_are_those_of_one_worker() -> None:
    output = {"return_log_probs": True, "num_top_log_probs": 3}
    with pair() as [context, generation], single() as whole:
        expected = whole.ask(PROMPT, output=output)
        told = context.context(PROMPT, output=output)
        assert len(expected.log_probs) == 12
        assert len(expected.top_ids) == 36
        assert told.log_probs == expected.log_probs[:1]
        answer = generation.generate(PROMPT, told.params, output=output)
        assert answer.log_probs == pytest.approx(expected.log_probs, abs=1e-6)
        assert answer.top_ids == expected.top_ids
        # The context worker was not asked for alternatives, and the token's own is always there.
        told = context.context(PROMPT)
        assert generation.generate(PROMPT, told.params, output=output).error is not None
        one = generation.generate(PROMPT, told.params, output={"return_log_probs": True})
        assert one.log_probs[0] == pytest.approx(expected.log_probs[0], abs=1e-6)
        # Prompts are reported by whoever is asked, which computes them.
        both = {"return_log_probs": True, "num_prompt_log_probs": 0}
        assert generation.generate(PROMPT, told.params, output=both).tokens == expected.tokens


def test_what_the_first_token_ends_needs_no_second_worker() -> None:
    with pair() as [context, generation], single() as whole:
        first = whole.ask(PROMPT).tokens[0]
        for ends in ({"end_id": first}, {"stop_words": [[first]]}):
            told = context.context(PROMPT, **ends)
            assert told.reason in (FinishReason.END_ID, FinishReason.STOP_WORDS)
            assert unpack(told.params, b"").offer is None
            context.wait_until_free(0.1)
            answer = generation.generate(PROMPT, told.params, **ends)
            assert (answer.tokens, answer.reason) == ([first], told.reason)
        told = context.context(PROMPT, max_tokens=1)
        answer = generation.generate(PROMPT, told.params, max_tokens=1)
        assert (answer.tokens, answer.reason) == ([first], FinishReason.LENGTH)


def test_what_is_here_already_is_not_fetched() -> None:
    with pair() as [context, generation], single() as whole:
        generation.ask(PROMPT[:20], 1)
        told = context.context(PROMPT)
        assert generation.generate(PROMPT, told.params).tokens == whole.ask(PROMPT).tokens
        assert generation.transferred()["blocks"] == 11 - 5
        again = context.context(PROMPT)
        assert generation.generate(PROMPT, again.params).tokens == whole.ask(PROMPT).tokens
        assert generation.transferred() == {"blocks": 6}


def test_what_was_fetched_is_found_by_others() -> None:
    with pair() as [context, generation], single() as whole:
        told = context.context(PROMPT)
        generation.generate(PROMPT, told.params)
        generation.ask(PROMPT, 3)
        assert generation.executor._engine.pool.stats.reused_blocks >= len(PROMPT) // SIZE
        assert generation.ask(PROMPT).tokens == whole.ask(PROMPT).tokens


def test_many_requests_at_once() -> None:
    prompts = [[(place * (3 + one)) % VOCAB_SIZE for place in range(30 + 5 * one)] for one in range(24)]
    with pair() as [context, generation], single() as whole:
        params = [context.context(prompt).params for prompt in prompts]
        expected = [whole.ask(prompt).tokens for prompt in prompts]
        asked = {
            generation.send(prompt, tensors=phase("generation_only", own)): tokens
            for prompt, own, tokens in zip(prompts, params, expected, strict=True)
        }
        told: dict[int, list[int]] = {}
        from .support import collect
        from .support import unpack as rows

        gathered: Any = {}
        while sum(one.final for one in gathered.values()) < len(asked):
            collect(rows(generation.executor.await_responses(5.0)), gathered)
        told = {client_id: one.tokens for (client_id, _), one in gathered.items()}
        assert told == asked
        generation.wait_until_free()
        context.wait_until_free()


def test_salts_stay_apart() -> None:
    def salted(salt: str) -> Any:
        from inflight.executors.base import NamedTensor

        text = salt.encode()
        return NamedTensor("inflight_cache_salt", "BYTES", (1,), len(text).to_bytes(4, "little") + text)

    with pair() as [context, generation], single() as whole:
        told = context.ask(PROMPT, tensors=[*phase("context_only"), salted("a")])
        for salt, blocks in (("b", 0), ("a", 11)):
            tensors = [*phase("generation_only", told.params), salted(salt)]
            assert generation.ask(PROMPT, tensors=tensors).tokens == whole.ask(PROMPT).tokens
            assert generation.transferred()["blocks"] == blocks
        assert generation.transferred()["other_prompt"] == 1


@pytest.mark.parametrize(
    ("fields", "tensors", "named"),
    [
        ({"sampling": {"num_return_sequences": 2}}, phase("context_only"), "num_return_sequences"),
        ({"sampling": {"beam_width": 2}, "streaming": False}, phase("context_only"), "beam_width"),
        ({"sampling": {"num_return_sequences": 2}}, phase("generation_only", b"x"), "num_return_sequences"),
        ({"max_tokens": 0}, phase("context_only"), "max_tokens"),
        ({"generated": [[3]]}, phase("context_only"), "has tokens already"),
        ({}, phase("generation_only"), "without context_phase_params"),
        ({}, phase("context_only", b"x"), "came with the request_type"),
        ({}, phase("prefill"), "`prefill`"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(fields: Any, tensors: Any, named: str) -> None:
    with pair() as [worker, _]:
        if named == "num_return_sequences" and len(tensors) == 2:
            tensors = phase("generation_only", pack(PHASE, b""))
        answer = worker.ask(PROMPT, **({"max_tokens": 4} | fields), tensors=tensors)
        assert answer.error is not None
        assert named in answer.error
        assert worker.used == 0


def test_without_a_transceiver_only_whole_requests_are_served() -> None:
    with single() as worker:
        for tensors in (phase("context_only"), phase("generation_only", pack(PHASE, b""))):
            answer = worker.ask(PROMPT, tensors=tensors)
            assert answer.error is not None
            assert "cache_transceiver_backend" in answer.error
        assert len(worker.ask(PROMPT, tensors=phase("context_and_generation")).tokens) == 12
        assert "context_phase" not in worker.executor.info().capabilities
    with pair() as [worker, _]:
        assert "context_phase" in worker.executor.info().capabilities
        assert len(worker.ask(PROMPT, tensors=phase("context_and_generation")).tokens) == 12


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"enable_kv_cache_reuse": False}, "enable_kv_cache_reuse"),
        ({"batch_scheduler_policy": "max_utilization"}, "max_utilization"),
        ({"kv_cache_host_memory_bytes": 1 << 20}, "kv_cache_host_memory_bytes"),
        ({"cache_transceiver_address": "0.0.0.0:0", "key": True}, "no other worker"),
        ({"cache_transceiver_address": "nowhere"}, "HOST:PORT"),
        ({"cache_transceiver_address": "192.0.2.1:0"}, "192.0.2.1"),
        ({"cache_transceiver_key_file": "/nonexistent"}, "/nonexistent"),
        ({"cache_transceiver_backend": "carrier_pigeon"}, "carrier_pigeon"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], named: str, tmp_path: Any) -> None:
    given = {"cache_transceiver_backend": "tcp", **options}
    if given.pop("key", False):
        key = tmp_path / "key"
        key.write_text("0123456789abcdef")
        given["cache_transceiver_key_file"] = str(key)
    with pytest.raises(OptionError, match=named):
        start(**given)


def test_the_bytes_come_back_as_they_were() -> None:
    for key in (b"", b"0123456789abcdef"):
        told = unpack(pack(PHASE, key), key)
        assert told == PHASE
        assert told.is_authentic == bool(key)
    assert not unpack(pack(PHASE, b""), b"0123456789abcdef").is_authentic
    assert not unpack(pack(PHASE, b"0123456789abcdef"), b"fedcba9876543210").is_authentic


def test_tokens_and_reasons_that_cannot_be_are_refused() -> None:
    ended = FinishReason.END_ID
    with pair() as [_, generation]:
        for first, reason in ((VOCAB_SIZE, ended), (VOCAB_SIZE, FinishReason.NOT_FINISHED), (7, 4), (7, 3)):
            told = ContextPhase(FirstToken(first, -1.0), FinishReason(reason), None)
            answer = generation.generate(PROMPT, pack(told, b""))
            assert answer.error is not None
            assert "context_phase_params" in answer.error


def test_no_bytes_do_more_than_be_refused() -> None:
    key = b"0123456789abcdef"
    good = pack(PHASE, key)
    spoiled = [good[:place] for place in range(len(good))]
    spoiled += [good[:place] + bytes([good[place] ^ 0x21]) + good[place + 1 :] for place in range(len(good))]
    spoiled += [b"IFCP" + struct.pack("<HI", 1, len(body)) + body for body in (b"[" * 9000, b"{}", b"7")]
    spoiled += [good * 100, b"\0" * 64]
    for data in spoiled:
        try:
            told = unpack(data, key)
        except Refused:
            continue
        assert not told.is_authentic
