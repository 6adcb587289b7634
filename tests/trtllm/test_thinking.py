"""Budgets of tokens for reasoning, as a logits processor of the PyTorch runtime."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE

from inflight.executors.base import NamedTensor, SamplingConfig, StatusCode
from inflight.executors.reasoning import Marks
from inflight.executors.tensorrt_llm.pytorch_conditions import conditions
from inflight.executors.tensorrt_llm.pytorch_config import computes_in_chunks
from inflight.executors.tensorrt_llm.thinking import ThinkingBudget
from support import double
from support.double.package import write_double
from support.servers import NO_KEY, Start, start_gateway, wait_ready
from trtllm import pytorch_setup
from trtllm.harness import collect, guide_tensors, passed, request_of
from trtllm.test_worker import checkpoint_with_tokenizer, run_worker

BOTH_LINES = True


def thinking(budget: int, end: list[int], start: list[int] | None = None) -> list[NamedTensor]:
    """The inputs of a bounded request; without `start` its prompt has begun the reasoning."""
    return [
        passed("inflight_thinking_budget", "INT32", (1,), budget),
        passed("inflight_thinking_start_ids", "INT32", (len(start or []),), *(start or [])),
        passed("inflight_thinking_end_ids", "INT32", (len(end),), *end),
    ]


def answer(executor: Any, tensors: list[NamedTensor], **given: Any) -> list[int]:
    """The tokens of an answer to 10, 11, 12, after which the double counts up."""
    executor.enqueue([request_of({"tensors": tensors, "max_tokens": 8} | given)])
    rows = collect(executor, 9)[9]
    assert not rows[-1].errors, rows[-1].errors
    return [token for row in rows for token in row.tokens]


#: Budget, end, start; the tokens that come first, with and without the overlap scheduler.
CASES: list[tuple[int, list[int], list[int], list[int], list[int]]] = [
    (0, [50], [], [50, 51, 52], [50, 51, 52]),
    (1, [50], [], [13, 50, 51], [13, 50, 51]),
    (3, [50], [], [13, 14, 15, 50, 51], [13, 14, 15, 50, 51]),
    (9, [50], [], [13, 14, 15, 16, 17, 18, 19, 20], [13, 14, 15, 16, 17, 18, 19, 20]),
    # An end by itself is left alone, and comes once.
    (4, [15], [], [13, 14, 15, 16, 17], [13, 14, 15, 16, 17]),
    (3, [14], [], [13, 14, 15, 16], [13, 14, 15, 16]),
    (1, [14], [], [13, 14, 15, 16], [13, 14, 15, 16]),
    # Next to the bound it comes at the bound, where the token before cannot be seen.
    (2, [14], [], [13, 14, 15, 16], [13, 15, 14, 15, 16]),
    (2, [50, 60], [], [13, 14, 50, 60, 61], [13, 14, 50, 60, 61]),
    # One that was begun is continued.
    (2, [14, 60], [], [13, 14, 60, 61], [13, 15, 14, 60, 61]),
    (0, [13, 60], [], [13, 60, 61], [13, 60, 61]),
    # The model begins by itself.
    (2, [50], [14], [13, 14, 15, 16, 50, 51], [13, 14, 15, 16, 50, 51]),
    (0, [50], [13, 14], [13, 14, 50, 51], [13, 14, 15, 16, 50, 51]),
    # It never does.
    (0, [50], [80], [13, 14, 15, 16, 17, 18, 19, 20], [13, 14, 15, 16, 17, 18, 19, 20]),
]


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_budget_ends_the_reasoning_once(tmp_path: Path, overlaps: bool, streaming: bool) -> None:
    with double.installed():
        made = pytorch_setup.start(tmp_path, disable_overlap_scheduler=not overlaps)
        assert "thinking_budget" in made.info().capabilities
        for budget, end, begin, alone, overlapped in CASES:
            expected = overlapped if overlaps else alone
            found = answer(made, thinking(budget, end, begin), streaming=streaming)
            assert found[: len(expected)] == expected, (budget, end, begin)
        made.shutdown()


@pytest.mark.parametrize("overlaps", [False, True])
def test_each_sequence_has_its_own_budget(tmp_path: Path, overlaps: bool) -> None:
    with double.installed():
        made = pytorch_setup.start(tmp_path, disable_overlap_scheduler=not overlaps)
        given = {
            "tensors": thinking(2, [50]),
            "max_tokens": 4,
            "sampling_config": SamplingConfig(num_return_sequences=2),
        }
        made.enqueue([request_of(given)])
        found: dict[int, list[int]] = {0: [], 1: []}
        for row in collect(made, 9)[9]:
            found[row.sequence] += row.tokens
        made.shutdown()
    assert found == {0: [13, 14, 50, 51], 1: [14, 15, 50, 51]}


@pytest.mark.parametrize(
    ("overlaps", "budget", "expected"),
    [
        (False, 0, [50, 51]),
        (False, 2, [13, 14, 50, 51]),
        # Of chunks and of the first token TensorRT-LLM shows the same.
        (True, 0, [13, 14, 50, 51]),
        (True, 1, [13, 14, 50, 51]),
        (True, 3, [13, 14, 15, 50, 51]),
    ],
)
def test_a_prompt_in_chunks_changes_no_budget_above_one(
    tmp_path: Path, overlaps: bool, budget: int, expected: list[int]
) -> None:
    with double.installed():
        made = pytorch_setup.start(
            tmp_path,
            disable_overlap_scheduler=not overlaps,
            enable_chunked_context=True,
            max_num_tokens=16,
        )
        prompt = [*range(40), 10, 11, 12]
        found = answer(made, thinking(budget, [50]), input_token_ids=prompt)
        made.shutdown()
    assert found[: len(expected)] == expected


@pytest.mark.parametrize(
    ("said", "asked", "expected"),
    [(None, {}, False), (None, {"enable_chunked_prefill": True}, True), (True, {}, True), (False, {}, False)],
)
def test_whether_prompts_come_in_chunks_is_what_the_llm_says(
    said: bool | None, asked: dict[str, Any], expected: bool
) -> None:
    """A later version may have another default."""
    llm = SimpleNamespace(args=SimpleNamespace(enable_chunked_prefill=said))
    assert computes_in_chunks(llm, asked) is expected
    assert computes_in_chunks(object(), {}) is False


def test_what_cannot_be_bounded_is_refused_by_name(tmp_path: Path) -> None:
    budget, start_ids, end_ids = thinking(2, [50], [40])
    cases: list[tuple[list[NamedTensor], str]] = [
        ([budget, start_ids], "came without"),
        ([end_ids], "came without"),
        (thinking(-1, [50]), "at least 0"),
        (thinking(2, []), "the end must have one"),
        (thinking(2, [50], [1] * 33), "each may have 32"),
        (thinking(2, [double.VOCAB]), f"tokens are below {double.VOCAB}"),
        ([budget, end_ids, *guide_tensors("regex", "a+")], "`guided_decoding_guide`"),
    ]
    with double.installed():
        made = pytorch_setup.start(tmp_path)
        for tensors, words in cases:
            made.enqueue([request_of({"tensors": tensors})])
            [(code, text)] = collect(made, 9)[9][-1].errors
            assert code == StatusCode.INVALID_ARGUMENT
            assert words in text, text
        made.shutdown()


def test_a_budget_with_beams_is_refused(tmp_path: Path) -> None:
    with double.installed():
        made = pytorch_setup.start(tmp_path, max_beam_width=2)
        given = {"tensors": thinking(2, [50]), "sampling_config": SamplingConfig(beam_width=2)}
        made.enqueue([request_of(given | {"streaming": False})])
        [(_, text)] = collect(made, 9)[9][-1].errors
        made.shutdown()
    assert "`beam_width`" in text


def test_a_drafter_takes_the_budget_away() -> None:
    def held(**arguments: Any) -> frozenset[str]:
        return conditions(arguments, lambda _: None, adapters=False, images=False, encodes_anew=False)

    assert "undrafted" in held()
    # Its rows are several for each request.
    assert "undrafted" not in held(speculative_config=object())


@pytest.mark.parametrize("end", [(1,), (1, 2), (1, 1, 2)])
@pytest.mark.parametrize("lags", [False, True])
def test_the_end_is_never_forced_twice_and_never_late(end: tuple[int, ...], lags: bool) -> None:
    """Any answers, shown as TensorRT-LLM does: at times a token is seen at once under the overlap scheduler,
    where its sequence was left out of an iteration."""
    for seed in range(400):
        draw = random.Random(seed)
        budget = draw.randrange(7)
        begin = () if draw.random() < 0.5 else (0,)
        subject = ThinkingBudget(budget, Marks(begin, end), 3, lags)
        tokens: list[int] = []
        forced: list[int] = []
        for place in range(24):
            hidden = 1 if lags and place and draw.random() < 0.9 else 0
            decision = subject.decide(7, [9, 9, 9, *tokens[: place - hidden]])
            wanted = begin[0] if begin and place == 2 else draw.choice([1, 2, 3, 4, 5])
            if decision >= 0:
                forced.append(place)
                wanted = decision
            while decision == -2 and wanted in end:
                wanted += 1
            tokens.append(wanted)
        begun = tokens.index(0) + 1 if begin else 0
        length = len(end)
        ends = next(at for at in range(begun, 25) if tuple(tokens[at : at + length]) == end)
        # Where the model begins by itself, that is seen one token later.
        bound = max(budget, 2) if lags and begin else budget
        # The mark that it began within the budget is continued beyond it.
        assert ends - begun <= bound, (seed, tokens)
        assert all(begun <= at < ends + length for at in forced), (seed, tokens, forced)


@pytest.mark.parametrize("budget", [0, 3])
def test_a_clients_budget_reaches_the_processor(start: Start, tmp_path: Path, budget: int) -> None:
    environment = write_double(tmp_path / "double", version=double.version())
    model = checkpoint_with_tokenizer(tmp_path / "served")
    # A token for each character, so that tags have several.
    letters = Tokenizer(BPE({chr(32 + token): token for token in range(95)}, [], fuse_unk=False))
    letters.decoder = Fuse()
    letters.save(str(model / "tokenizer.json"))
    worker = run_worker(start, model, environment, worker=("--served-model-name=m",))
    address = wait_ready(start_gateway(start, [worker], "--reasoning-parser=think"))
    with openai.OpenAI(base_url=f"http://{address}/v1", api_key=NO_KEY, max_retries=0) as client:
        asked: dict[str, Any] = {"model": "m", "prompt": "Hi<think>", "max_tokens": 30, "temperature": 0}
        free = client.completions.create(**asked).choices[0].text
        bounded = client.completions.create(**asked, extra_body={"thinking_token_budget": budget})
    assert bounded.choices[0].text.count("</think>") == 1
    assert bounded.choices[0].text.startswith(free[:budget] + "</think>")
