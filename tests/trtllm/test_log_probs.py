"""Log probabilities and logits of the PyTorch runtime: whose they are, what they cost, when they are off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.executors.base import OutputConfig, SamplingConfig, StatusCode
from inflight.executors.tensorrt_llm import pytorch_requests, pytorch_start
from inflight.executors.tensorrt_llm.pytorch_results import Progress
from inflight.executors.tensorrt_llm.results import Active, Unusable
from support import double
from trtllm.harness import collect, request_of
from trtllm.pytorch_setup import start, write_checkpoint

BOTH_LINES = True


@pytest.fixture(autouse=True)
def greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first, so that monkeypatch removes what the adapter sets.
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")


def log_probability(logit: float) -> float:
    """Of a token in the double's logits: 4 for the best, 2 for the next, 0 for the others."""
    return float(logit - np.log(np.exp(4.0) + np.exp(2.0) + double.VOCAB - 2))


@pytest.mark.parametrize(("temperature", "logit"), [(0.5, 4.0), (double.HOT, 0.0)])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("interval", [1, 3])
def test_a_sampled_token_has_its_log_probability_however_improbable(
    tmp_path: Path, temperature: float, logit: float, streaming: bool, interval: int
) -> None:
    wanted = OutputConfig(return_log_probs=True, num_top_log_probs=2)
    given = {
        "output_config": wanted,
        "sampling_config": SamplingConfig(temperature=temperature),
        "streaming": streaming,
        "max_tokens": 4,
    }
    with double.installed():
        made = start(tmp_path, sampler_type="TorchSampler", stream_interval=interval)
        made.enqueue([request_of(given)])
        rows = collect(made, 9)[9]
        made.shutdown()
    assert [token for row in rows for token in row.tokens] == [13, 14, 15, 16]
    values = [value for row in rows for value in row.log_probs]
    assert values == pytest.approx([log_probability(logit)] * 4, rel=1e-5)
    shift = 0 if temperature != double.HOT else 3
    best = [place + shift for token in (13, 14, 15, 16) for place in (token, token + 1)]
    assert [token for row in rows for token in row.top] == best
    # No logits of the whole vocabulary travel for it.
    assert not double.REQUESTS[-1]["sampling_params"].values["return_generation_logits"]


@pytest.mark.parametrize("streaming", [True, False])
def test_the_older_sampler_reports_the_sampled_token(
    line: str, pytorch_executor: Any, streaming: bool
) -> None:
    wanted = OutputConfig(return_log_probs=True)
    pytorch_executor.enqueue([request_of({"output_config": wanted, "streaming": streaming})])
    values = [value for row in collect(pytorch_executor, 9)[9] for value in row.log_probs]
    assert values == pytest.approx([log_probability(4.0)] * 3, rel=1e-5)
    capabilities = pytorch_executor.info().capabilities
    assert "log_probs" in capabilities
    # From 1.3 on it is gone.
    assert ("top_log_probs" in capabilities) == (line != "1.2.1")


class Alternative:
    def __init__(self, logprob: float) -> None:
        self.logprob = logprob


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([{5: Alternative(-2.0), 6: Alternative(-1.0)}], ([-2.0], (1, [6], [-1.0]))),
        # Behind the tokens that are there.
        ([{5: -2.0}, {9: -3.0}], ([-2.0], (1, [5], [-2.0]))),
        ([], "log probabilities of `0` tokens for `1`"),
        ([{6: -1.0}], "no log probability of the sampled token `5`"),
        ([-2.0], "returned `0` alternatives of a token, not `1`"),
    ],
)
def test_a_log_probability_is_found_by_its_token(entries: list[Any], expected: Any) -> None:
    active = Active(request_of({"output_config": OutputConfig(return_log_probs=True, num_top_log_probs=1)}))
    progress = Progress(active, double.VOCAB)
    if isinstance(expected, str):
        with pytest.raises(Unusable, match=expected):
            progress._log_probs(entries, 0, [5])
    else:
        assert progress._log_probs(entries, 0, [5]) == expected


def test_a_number_alone_is_the_sampled_tokens() -> None:
    active = Active(request_of({"output_config": OutputConfig(return_log_probs=True)}))
    assert Progress(active, double.VOCAB)._log_probs([-9.0, -2.0], 1, [5]) == ([-2.0], None)


@pytest.mark.parametrize(
    ("output", "more", "words"),
    [
        ({"return_generation_logits": True}, {}, "is not supported in a stream"),
        (
            {"return_generation_logits": True},
            {"max_tokens": 9, "streaming": False},
            "`return_generation_logits` for `9` max_tokens is more",
        ),
        (
            {"return_context_logits": True},
            {"input_token_ids": [5] * 9},
            "`return_context_logits` for `9` prompt tokens is more",
        ),
        (
            {"num_prompt_log_probs": 1},
            {"input_token_ids": [5] * 9},
            "`inflight_num_prompt_log_probs` for `9` prompt tokens is more",
        ),
    ],
)
def test_logits_that_could_fail_all_that_runs_are_refused(
    pytorch_executor: Any,
    monkeypatch: pytest.MonkeyPatch,
    output: dict[str, Any],
    more: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.setattr(pytorch_requests, "MAX_LOGITS_BYTES", 8 * 4 * double.VOCAB)
    pytorch_executor.enqueue([request_of({"output_config": OutputConfig(**output)} | more)])
    [row] = collect(pytorch_executor, 9)[9]
    [(code, text)] = row.errors
    assert code == StatusCode.INVALID_ARGUMENT
    assert words in text


#: What depends on the sampler, and on whose rows the logits are.
SAMPLED = {"log_probs", "top_log_probs", "embedding_bias"}


@pytest.mark.parametrize(
    ("speculation", "off"),
    [
        (None, set()),
        ({"decoding_type": "NGram", "max_draft_len": 2, "max_matching_ngram_size": 2}, {"generation_logits"}),
        # In 1.3 it drafts inside the model.
        ({"decoding_type": "Draft_Target", "max_draft_len": 2}, {"generation_logits"}),
        ({"decoding_type": "AUTO"}, {"generation_logits"}),
        ({"decoding_type": "MTP", "num_nextn_predict_layers": 1}, SAMPLED | {"generation_logits"}),
        ({"decoding_type": "MTP"}, SAMPLED | {"generation_logits"}),
        ({"decoding_type": "Eagle", "max_draft_len": 2}, SAMPLED | {"generation_logits"}),
    ],
)
def test_a_drafter_takes_away_what_it_spoils(
    line: str, tmp_path: Path, speculation: dict[str, Any] | None, off: set[str]
) -> None:
    if line != "1.2.1" and speculation is not None and speculation["decoding_type"] == "Draft_Target":
        off = off | SAMPLED
    model = write_checkpoint(tmp_path / "model")
    if speculation is not None:
        (model / "llm_args.json").write_text(json.dumps({"speculative_config": speculation}))
    with double.installed():
        made = start(tmp_path, sampler_type="TorchSampler")
        offered = set(made.info().capabilities)
        made.shutdown()
    assert (SAMPLED | {"generation_logits"}) - offered == off


def test_logits_of_outputs_need_the_option_that_keeps_them(tmp_path: Path) -> None:
    with double.installed():
        made = start(tmp_path, gather_generation_logits=False)
        offered = made.info().capabilities
        made.shutdown()
    assert "generation_logits" not in offered
