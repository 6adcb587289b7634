"""Every way of decoding that the reference executor has, through tritonclient by its KServe tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from support.http import get
from support.servers import Server
from support.triton import MODEL, TritonStream, inputs, tensor, tokens

PROMPT = [40 + token % 90 for token in range(70)]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(server.grpc)
    yield made
    made.close()


def ask(
    client: triton.InferenceServerClient, *more: triton.InferInput, tokens: int = 8, **scalars: Any
) -> triton.InferResult:
    wanted = {name: scalars.pop(name) for name in ("outputs", "priority") if name in scalars}
    made = inputs(PROMPT, tokens, exclude_input_in_output=True, **scalars)
    return client.infer(MODEL, [*made, *more], **wanted)


def ids(result: triton.InferResult) -> list[list[int]]:
    """The tokens of each beam."""
    found = result.as_numpy("output_ids")[0]
    lengths = result.as_numpy("sequence_length")[0]
    return [row[:length].tolist() for row, length in zip(found, lengths, strict=True)]


def test_beams_come_best_first(client: triton.InferenceServerClient) -> None:
    result = ask(client, beam_width=4, return_log_probs=True, len_penalty=1.0, early_stopping=False)
    assert len({tuple(beam) for beam in ids(result)}) == 4
    sums = result.as_numpy("cum_log_probs")[0]
    lengths = result.as_numpy("sequence_length")[0]
    assert sums.shape == lengths.shape == (4,)
    scores = (sums / np.maximum(lengths, 1)).tolist()
    assert scores == sorted(scores, reverse=True)
    # Ended beams are ordered by sums that include their end token's log probability.
    end = ids(result)[0][3]
    ended = ask(client, beam_width=2, tokens=40, return_log_probs=True, end_id=end)
    sums = ended.as_numpy("cum_log_probs")[0]
    told = [
        values[:length].sum()
        for values, length in zip(
            ended.as_numpy("output_log_probs")[0], ended.as_numpy("sequence_length")[0], strict=True
        )
    ]
    assert sums[0] >= sums[1]
    assert (sums < np.array(told)).any()
    [greedy] = ids(ask(client, runtime_top_k=1, return_log_probs=True))
    [one] = ids(ask(client, beam_width=1))
    assert one == greedy
    diverse = ids(ask(client, beam_width=4, beam_search_diversity_rate=5.0))
    assert diverse != ids(ask(client, beam_width=4))


def test_logits_of_prompt_and_output_are_returned(client: triton.InferenceServerClient) -> None:
    result = ask(client, runtime_top_k=1, return_context_logits=True, return_generation_logits=True)
    [tokens] = ids(result)
    context, generation = result.as_numpy("context_logits"), result.as_numpy("generation_logits")
    assert context.shape[:2] == (1, len(PROMPT))
    assert generation.shape == (1, 1, len(tokens), context.shape[2])
    assert generation[0, 0].argmax(axis=1).tolist() == tokens
    assert int(context[0, -1].argmax()) == tokens[0]


def test_ngrams_top_p_and_drafts(client: triton.InferenceServerClient) -> None:
    [greedy] = ids(ask(client, runtime_top_k=1, tokens=24))
    [apart] = ids(ask(client, runtime_top_k=1, tokens=24, no_repeat_ngram_size=1))
    assert len(set(apart)) == len(apart)
    sampled: dict[str, Any] = {"runtime_top_p": 0.9, "temperature": 1.5, "seed": 7, "tokens": 24}
    [drawn] = ids(ask(client, **sampled))
    [decayed] = ids(ask(client, **sampled, runtime_top_p_decay=0.2, runtime_top_p_min=0.01))
    assert drawn[0] == decayed[0]
    assert drawn != decayed
    guesses = tensor("draft_input_ids", [[*greedy[:5], 3, 3]], "INT32")
    assert ids(ask(client, guesses, runtime_top_k=1, tokens=24)) == [greedy]


def test_log_probs_of_chosen_best_and_prompt_tokens(client: triton.InferenceServerClient) -> None:
    best_of = ("top_log_probs", "top_log_prob_ids", "prompt_log_probs", "prompt_top_log_probs")
    wanted = ["output_ids", "sequence_length", "output_log_probs", "cum_log_probs"]
    wanted += [f"inflight_{name}" for name in best_of]
    result = ask(
        client,
        runtime_top_k=1,
        return_log_probs=True,
        inflight_num_top_log_probs=2,
        inflight_num_prompt_log_probs=1,
        outputs=[triton.InferRequestedOutput(name) for name in wanted],
    )
    [tokens] = ids(result)
    chosen = result.as_numpy("output_log_probs")[0, 0]
    best, best_ids = (result.as_numpy(f"inflight_top_log_prob{name}")[0, 0] for name in ("s", "_ids"))
    assert best_ids[:, 0].tolist() == tokens
    assert best[:, 0] == pytest.approx(chosen)
    assert (best[:, 1] <= best[:, 0]).all()
    assert result.as_numpy("cum_log_probs").item() == pytest.approx(float(chosen.sum()), rel=1e-4)
    prompt, likeliest = (
        result.as_numpy(f"inflight_prompt_{name}")[0] for name in ("log_probs", "top_log_probs")
    )
    assert len(prompt) == len(PROMPT)
    assert (prompt[1:] <= likeliest[1:, 0] + 1e-5).all()


def test_what_steers_the_choice_of_tokens(client: triton.InferenceServerClient) -> None:
    [greedy] = ids(ask(client, runtime_top_k=1))
    forbidden = tensor("bad_words_list", [[[greedy[0]], [1]]], "INT32")
    [other] = ids(ask(client, forbidden, runtime_top_k=1))
    assert greedy[0] not in other
    vocabulary = ask(client, runtime_top_k=1, return_context_logits=True).as_numpy("context_logits").shape[2]
    bias = np.zeros((1, vocabulary), np.float32)
    bias[0, 77] = 1000.0
    assert ids(ask(client, tensor("embedding_bias", bias, "FP32"), runtime_top_k=1)) == [[77] * 8]
    sparse = [
        tensor("inflight_logit_bias_ids", [[78]], "INT32"),
        tensor("inflight_logit_bias_values", [[1000.0]], "FP32"),
    ]
    assert ids(ask(client, *sparse, runtime_top_k=1)) == [[78] * 8]
    # A penalty on each sight of a token leaves none to be said twice.
    penalties: dict[str, Any] = {
        "repetition_penalty": 2.0,
        "presence_penalty": 500.0,
        "frequency_penalty": 500.0,
    }
    [apart] = ids(ask(client, runtime_top_k=1, tokens=24, **penalties))
    assert len(set(apart)) == len(apart) == 24
    sampled: dict[str, Any] = {"runtime_top_p": 1.0, "temperature": 2.0, "seed": 11}
    assert ids(ask(client, **sampled)) != [greedy]
    assert ids(ask(client, **sampled, inflight_min_p=1.0)) == [greedy]


def test_a_least_length_and_several_sequences(client: triton.InferenceServerClient, server: Server) -> None:
    [greedy] = ids(ask(client, runtime_top_k=1))
    ended = ids(ask(client, runtime_top_k=1, end_id=greedy[0]))
    assert ended == [[]]
    [held_back] = ids(ask(client, runtime_top_k=1, end_id=greedy[0], min_tokens=3))
    assert len(held_back) >= 3
    sampled: dict[str, Any] = {"runtime_top_p": 1.0, "temperature": 2.0, "seed": 11}

    def several() -> dict[int, list[int]]:
        stream = TritonStream(server.grpc)
        made = inputs(PROMPT, 8, exclude_input_in_output=True, num_return_sequences=3, **sampled)
        stream.send("several", made)
        told: dict[int, list[int]] = {}
        for result in stream.until_final():
            index = result.as_numpy("sequence_index")
            if index is not None:
                told.setdefault(int(index.item()), []).extend(tokens(result))
        stream.close()
        return told

    drawn = several()
    assert sorted(drawn) == [0, 1, 2]
    assert len({tuple(one) for one in drawn.values()}) == 3
    assert several() == drawn


def test_drafts_are_accepted_by_their_logits(client: triton.InferenceServerClient) -> None:
    [greedy] = ids(ask(client, runtime_top_k=1))
    vocabulary = ask(client, runtime_top_k=1, return_context_logits=True).as_numpy("context_logits").shape[2]
    # A draft model that is sure of its tokens, and wrong: a threshold of 0 takes them all the same.
    guesses = [(token + 1) % vocabulary for token in greedy[:4]]
    logits = np.full((1, len(guesses), vocabulary), -50.0, np.float32)
    logits[0, np.arange(len(guesses)), guesses] = 50.0
    drafts = [tensor("draft_input_ids", [guesses], "INT32"), tensor("draft_logits", logits, "FP32")]
    result = ask(
        client,
        *drafts,
        tensor("draft_acceptance_threshold", [[0.0]], "FP32"),
        runtime_top_k=1,
        return_perf_metrics=True,
    )
    assert ids(result)[0][:4] == guesses
    assert result.as_numpy("acceptance_rate").item() == 1.0
    assert result.as_numpy("total_accepted_draft_tokens").item() == len(guesses)
    assert ids(ask(client, drafts[0], runtime_top_k=1)) == [greedy]


def test_guesses_are_counted_for_prometheus(client: triton.InferenceServerClient, server: Server) -> None:
    def counted() -> tuple[int, int]:
        page = get(server.metrics, "/metrics").body.decode()
        found = dict(re.findall(r"^inflight_worker_(\w*draft_tokens)_total\{.*\} (\d+)$", page, re.MULTILINE))
        return int(found.get("draft_tokens", 0)), int(found.get("accepted_draft_tokens", 0))

    [greedy] = ids(ask(client, runtime_top_k=1, tokens=12))
    guessed, accepted = counted()
    guesses = tensor("draft_input_ids", [[*greedy[:3], (greedy[3] + 1) % 90]], "INT32")
    assert ids(ask(client, guesses, runtime_top_k=1, tokens=12)) == [greedy]
    assert counted() == (guessed + 4, accepted + 3)


@pytest.mark.parametrize(
    ("name", "values", "datatype"),
    [
        ("lookahead_window_size", [[4]], "INT32"),
        ("encoder_input_features", [[[1.0, 2.0]]], "FP16"),
        ("mrope_rotary_cos_sin", [[1.0, 2.0]], "FP32"),
        ("context_phase_params", [[1, 2]], "UINT8"),
        ("cross_attention_mask", [[[True]]], "BOOL"),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(
    client: triton.InferenceServerClient, name: str, values: Any, datatype: str
) -> None:
    with pytest.raises(InferenceServerException, match=f"`{name}` needs"):
        ask(client, tensor(name, values, datatype))


def test_a_hot_prompt_is_found_and_kept_by_its_retention(client: triton.InferenceServerClient) -> None:
    output = triton.InferRequestedOutput("inflight_cached_tokens")
    ranges = [
        tensor(f"retention_token_range_{name}", [[value]], "INT32")
        for name, value in (("starts", 0), ("ends", -1), ("priorities", 90), ("durations_ms", 60000))
    ]
    ask(client, *ranges, runtime_top_k=1)
    result = ask(client, runtime_top_k=1, outputs=[output])
    assert result.as_numpy("inflight_cached_tokens").reshape(-1).tolist() == [len(PROMPT) - 1]
    salt = tensor("inflight_cache_salt", np.array([[b"tenant"]], dtype=object), "BYTES")
    for found in (0, len(PROMPT) - 1):
        result = ask(client, salt, runtime_top_k=1, outputs=[output])
        assert result.as_numpy("inflight_cached_tokens").reshape(-1).tolist() == [found]


def test_a_request_is_told_what_it_took(client: triton.InferenceServerClient) -> None:
    result = ask(client, runtime_top_k=1, return_perf_metrics=True)
    times = [
        int(result.as_numpy(f"{name}_time_ns").item())
        for name in ("arrival", "first_scheduled", "first_token", "last_token")
    ]
    assert times == sorted(times)
    assert times[0] < times[-1]
    new, reused, total = (
        int(result.as_numpy(f"kv_cache_{name}_blocks").item())
        for name in ("alloc_new", "reused", "alloc_total")
    )
    assert total == new + reused > 0


def test_a_priority_is_taken_and_a_bad_range_is_not(client: triton.InferenceServerClient) -> None:
    assert len(ids(ask(client, runtime_top_k=1, priority=1))[0]) == 8
    with pytest.raises(InferenceServerException, match="0 ends"):
        ask(client, tensor("retention_token_range_starts", [[0]], "INT32"))


def test_an_answer_is_held_to_its_guide(client: triton.InferenceServerClient) -> None:
    pytest.importorskip("llguidance", reason="pip install 'inflight-llm[guided]'")

    def guide(kind: str, text: str) -> list[triton.InferInput]:
        return [
            tensor(name, np.array([[value.encode()]], dtype=object), "BYTES")
            for name, value in (("guided_decoding_guide_type", kind), ("guided_decoding_guide", text))
        ]

    digits = ids(ask(client, *guide("regex", "[0-9]{4}"), runtime_top_k=1, end_id=4, tokens=20))
    assert 1 <= len(digits[0]) <= 4
    with pytest.raises(InferenceServerException, match="cannot be used"):
        ask(client, *guide("regex", "("))
    with pytest.raises(InferenceServerException, match="`xml`"):
        ask(client, *guide("xml", "<a/>"))
