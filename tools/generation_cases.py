"""What the engines' benchmarks ask for: prompts of random tokens, and ways to choose tokens. Knows no
engine, so that each can be asked for the same."""

from __future__ import annotations

import random
from typing import Any

#: Ways to choose tokens: fields of a request, of its sampling and of its output. `choices` asks for four
#: sequences a request and has a quarter of the requests, and `repeated` sends each of those four times;
#: `sampling` is all of them but log probabilities and choices.
_PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.2}
_BIAS: dict[str, Any] = {"logit_bias": [(one, 0.5) for one in range(1, 301)]}
_WORDS: dict[str, Any] = {"bad_words": [[one] for one in range(64)] + [[one, one + 1] for one in range(64)]}
_LOG_PROBS: dict[str, Any] = {"return_log_probs": True, "num_top_log_probs": 20}
_SAMPLING = {
    "top_p": 0.9,
    "top_k": 50,
    "min_p": 0.01,
    "no_repeat_ngram_size": 3,
    "temperature": 0.8,
    **_PENALTIES,
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "greedy": ({}, {}, {}),
    "temperature": ({}, {"top_p": 1.0, "temperature": 0.8}, {}),
    "top-p": ({}, {"top_p": 0.9}, {}),
    "top-k": ({}, {"top_k": 50}, {}),
    "min-p": ({}, {"top_p": 1.0, "min_p": 0.05}, {}),
    "penalties": ({}, {"top_p": 1.0, **_PENALTIES}, {}),
    "ngrams": ({}, {"top_p": 1.0, "no_repeat_ngram_size": 3}, {}),
    "bias": (_BIAS, {"top_p": 1.0}, {}),
    "words": (_WORDS, {"top_p": 1.0}, {}),
    "choices": ({}, {"top_p": 0.9, "num_return_sequences": 4}, {}),
    "repeated": ({}, {"top_p": 0.9}, {}),
    "log-probs": ({}, {}, _LOG_PROBS),
    "sampling": ({**_BIAS, **_WORDS}, _SAMPLING, {}),
    "all": ({**_BIAS, **_WORDS}, {**_SAMPLING, "num_return_sequences": 4}, _LOG_PROBS),
}


#: Requests with the same prompt, by case.
_COPIES = {"repeated": 4}


def requests_of(batch: int, case: str) -> int:
    """How many requests ask for ``batch`` sequences."""
    return max(1, batch // int(CASES[case][1].get("num_return_sequences", 1)))


def prompts_of(batch: int, case: str, inputs: int, vocab_size: int, turn: int) -> list[list[int]]:
    """The prompt of each request for ``batch`` sequences, of ``inputs`` tokens. Each ``turn`` has others."""
    draw = random.Random(1000 * turn + batch)
    count, copies = requests_of(batch, case), _COPIES.get(case, 1)
    prompts = [[draw.randrange(vocab_size) for _ in range(inputs)] for _ in range(max(1, count // copies))]
    return [prompts[one // copies % len(prompts)] for one in range(count)]
