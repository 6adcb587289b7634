"""Guides on both runtimes: compiled before an engine sees them, in the form and of the types it reads."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from inflight.executors.base import FinishReason, Request, StatusCode
from inflight.executors.tensorrt_llm import engines, guide_check, pytorch_start
from inflight.executors.tensorrt_llm.convert import Refused
from inflight.executors.tensorrt_llm.guide_requests import check_guide
from support import double
from trtllm.harness import GUIDES, LATER_TAG, OLDER_TAG, collect, guide_tensors, request_of, start_engines
from trtllm.pytorch_setup import start

BAD = {
    "json_schema": ('{"type": "objec"}', 'Unsupported type "objec"'),
    "regex": ("(?=a)b", "Lookahead is not supported yet."),
    "ebnf_grammar": ("nonsense", "EBNF parser error"),
    "structural_tag": ("[]", "must have a format field"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_guide_that_does_not_compile_leaves_what_runs_alone(executor: Any, kind: str) -> None:
    guide, words = BAD[kind]
    # Twice: a verdict is remembered.
    for client_id in (2, 3):
        executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=20)])
        executor.enqueue([request_of({"client_id": client_id, "tensors": guide_tensors(kind, guide)})])
        rows = collect(executor, 1, client_id)
        assert [token for row in rows[1] for token in row.tokens] == list(range(11, 31))
        [(code, text)] = rows[client_id][0].errors
        assert code == StatusCode.INVALID_ARGUMENT
        assert text == f"`guided_decoding_guide` does not compile: {words}" or words in text
    assert len([made for made in double.REQUESTS if made.values["guided_decoding_params"]]) == 0


def test_the_double_fails_all_that_runs_for_a_guide_that_was_not_checked(executor: Any) -> None:
    executor._guides.is_known_good = lambda *_: True
    executor.enqueue([Request(client_id=1, input_token_ids=[double.SILENCE], max_tokens=20)])
    executor.enqueue([request_of({"client_id": 2, "tensors": guide_tensors("regex", "(?=a)b")})])
    rows = collect(executor, 1, 2)
    assert all("forwardAsync" in rows[at][-1].errors[0][1] for at in (1, 2))


def test_an_error_does_not_repeat_the_whole_guide(executor: Any) -> None:
    executor.enqueue([request_of({"tensors": guide_tensors("json_schema", "{" * 5000)})])
    [(_, text)] = collect(executor, 9)[9][0].errors
    assert "Failed to parse JSON" in text
    assert len(text) < 400


class Slow:
    """A grammar that compiles for as long as it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def from_regex(self, regex: str) -> None:
        assert regex
        self.go_on.wait(10.0)


def test_a_guide_that_takes_too_long_is_refused_and_a_cancelled_one_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PATIENCE_S", 0.2)
    monkeypatch.setattr(guide_check, "MAX_WAITING", 2)
    with double.installed():
        made = start_engines(tmp_path)
        slow = Slow()
        made._guides = guide_check.GuideCheck(slow)
        for client_id in (1, 2, 3):
            given = {"client_id": client_id, "tensors": guide_tensors("regex", f"a{client_id}")}
            made.enqueue([request_of(given)])
        made.cancel([2])
        rows = collect(made, 1, 2, 3)
        slow.go_on.set()
        made.shutdown()
    assert "did not compile within 0.2 s" in rows[1][0].errors[0][1]
    assert (rows[2][0].reason, rows[2][0].final) == (FinishReason.CANCELLED, True)
    assert rows[3][0].errors[0][0] == StatusCode.RESOURCE_EXHAUSTED


def test_without_xgrammar_engines_take_no_guides(tmp_path: Path) -> None:
    with double.installed({"xgrammar"}):
        made = start_engines(tmp_path)
        offered = made.info().capabilities
        made.enqueue([request_of({"tensors": guide_tensors("regex", "a+")})])
        [row] = collect(made, 9)[9]
        made.shutdown()
    assert not {"guided_decoding", "structural_formats"} & set(offered)
    assert "the package `xgrammar` is not installed" in row.errors[0][1]


@pytest.mark.parametrize("runtime", ["executor", "pytorch_executor"])
def test_structural_tags_of_the_older_form_are_sent_in_the_later_one(
    request: pytest.FixtureRequest, runtime: str
) -> None:
    made = request.getfixturevalue(runtime)
    assert "structural_formats" in made.info().capabilities
    made.enqueue([request_of({"tensors": guide_tensors("structural_tag", OLDER_TAG)})])
    assert not collect(made, 9)[9][-1].errors
    sent = double.REQUESTS[-1]
    if runtime == "executor":
        guide = sent.values["guided_decoding_params"].values["guide"]
    else:
        guide = sent["sampling_params"].values["guided_decoding"].values["structural_tag"]
    assert json.loads(guide) == LATER_TAG


@pytest.mark.parametrize(
    ("guide", "words"),
    [
        ("{", "is not the JSON of a structural tag"),
        ('{"structures": [{"begin": "a"}], "triggers": []}', "each of `structures` needs"),
        ('{"structures": []}', "it needs `triggers`"),
        ('{"structures": 3, "triggers": []}', "is not a structural tag"),
    ],
)
def test_half_a_structural_tag_is_refused(guide: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        check_guide("structural_tag", guide, takes_formats=True)


def test_an_xgrammar_that_reads_the_older_form_gets_it() -> None:
    class Older:
        @staticmethod
        def from_structural_tag(tags: Any, triggers: Any) -> None:
            raise AssertionError((tags, triggers))

    assert not guide_check.takes_formats(Older)
    assert check_guide("structural_tag", OLDER_TAG, takes_formats=False) == OLDER_TAG


@pytest.mark.parametrize("kind", GUIDES)
def test_llguidance_gets_the_types_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    with double.installed():
        made = start(tmp_path, guided_decoding_backend="llguidance")
        made.enqueue([request_of({"tensors": guide_tensors(kind, GUIDES[kind])})])
        errors = collect(made, 9)[9][-1].errors
        offered = made.info().capabilities
        made.shutdown()
    assert "structural_formats" not in offered
    if kind in ("json_schema", "regex"):
        assert not errors
    else:
        assert "which `llguidance` does not take" in errors[0][1]
