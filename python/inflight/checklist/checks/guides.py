"""Guided decoding: guides that leave one answer, and one that does not compile."""

from __future__ import annotations

import json

from inflight._native import Capability
from inflight.checklist import material
from inflight.checklist.check import check
from inflight.checklist.outcome import Facts, expect, expect_equal
from inflight.checklist.subject import Subject
from inflight.executors.base import FinishReason

_NEEDS = (Capability.GUIDED_DECODING,)


def _answer(subject: Subject, kind: str, guide: str) -> str:
    """The text that the guide leaves."""
    end = subject.end_id()
    answer = subject.ask(32, tensors=material.guide(kind, guide), end_id=end).require()
    expect(
        answer.reason in (FinishReason.END_ID, FinishReason.STOP_WORDS),
        f"the answer ended by {answer.reason.name}, not by its end token: {answer.first}",
    )
    kept = [token for token in answer.first if token != end]
    return subject.tokenizer.decode(kept)


@check("guide: JSON schema", "the answer is the one value of the schema", needs=_NEEDS, load="guides")
def json_schema(subject: Subject) -> None:
    text = _answer(subject, "json_schema", json.dumps({"const": "yes"}))
    expect_equal("answer", text.strip(), '"yes"')


@check("guide: regular expression", "the answer is what it matches", needs=_NEEDS, load="guides")
def regex(subject: Subject) -> None:
    expect_equal("answer", _answer(subject, "regex", "yes"), "yes")


@check("guide: grammar", "the answer is what the grammar derives", needs=_NEEDS, load="guides")
def grammar(subject: Subject) -> None:
    expect_equal("answer", _answer(subject, "ebnf_grammar", 'root ::= "yes"'), "yes")


@check(
    "bad guide",
    "a guide that does not compile is refused, and a running stream continues",
    needs=_NEEDS,
    load="guides",
)
def bad_guide(subject: Subject) -> Facts:
    texts = {}
    for kind, guide in (("regex", "(?=a)b"), ("ebnf_grammar", "nonsense"), ("json_schema", "{")):
        refused = subject.request(8, tensors=material.guide(kind, guide))
        [running, answer] = subject.send([subject.request(32), refused])
        subject.wait([running, answer])
        expect_equal(f"tokens of the stream next to a bad {kind}", len(running.require().first), 32)
        if answer.error is not None:
            texts[kind] = answer.error[1][:200]
    expect(texts, "all of them were answered")
    return {"refusals": texts}
