"""Guided decoding: whatever the model would say, answers fit; guides that cannot be are refused by name."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="pip install 'inflight-llm[guided]'")

import inflight
from inflight.executors.base import Executor, FinishReason, NamedTensor
from inflight.executors.reference import create
from inflight.executors.reference.core.admission import Bounds, admit
from inflight.executors.reference.core.blocks import BlockPool
from inflight.executors.reference.core.drafts import Checks
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.guides import MAX_FAMILIES, GuideRequest, Guides
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.masks import Guide, stacked
from inflight.executors.reference.core.refusal import Refused
from inflight.executors.reference.core.runner import Outcome, Pending, Work
from inflight.executors.reference.core.sampler import SamplerState, sample
from inflight.executors.reference.core.scheduler import Limits
from inflight.executors.reference.core.sequence import SequenceState

from .support import collect, request, unpack

[DEMO] = [config.parent for config in (Path(inflight.__file__).parent / "demo").rglob("config.json")]
VOCAB_SIZE = json.loads((DEMO / "config.json").read_text())["vocab_size"]
PROMPT = [40, 41, 42, 43]

END_IDS = [2, 4]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
    # White space between values is as long as the model likes.
    "x-guidance": {"whitespace_flexible": False},
}
TAGS = {
    "structures": [{"begin": "<call>", "schema": {"enum": ["a", "b"]}, "end": "</call>"}],
    "triggers": ["<call>"],
}


def fits_schema(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"name", "age", "kind"} and 0 <= value["age"] <= 150


#: Guide, and whether a text fits it.
KINDS: list[tuple[str, str, Any]] = [
    ("json_schema", json.dumps(SCHEMA), fits_schema),
    ("regex", r"[A-C]{2,5}-[0-9]{3}", lambda text: re.fullmatch(r"[A-C]{2,5}-[0-9]{3}", text)),
    ("ebnf_grammar", 'root ::= ("yes" | "no") " " [0-9]', lambda text: re.fullmatch("(yes|no) [0-9]", text)),
]


@pytest.fixture(scope="module")
def guides() -> Guides:
    return Guides((DEMO / "tokenizer.json").read_text(encoding="utf-8"), VOCAB_SIZE, END_IDS)


def decode(guides: Guides, tokens: list[int]) -> str:
    text: str = guides._tokenizer.decode_str(tokens)  # the one thing that has the vocabulary's bytes
    return text


def drawn(guides: Guides, asked: GuideRequest, seed: int, most: int = 400) -> list[int]:
    """What comes of logits that know nothing."""
    random = np.random.default_rng(seed)
    bounds = Bounds(VOCAB_SIZE, 1000, 999, 4, 9)
    parameters = admit(request(1, [1], sampling={"top_p": 1.0, "seed": seed}), bounds).parameters
    state = SamplerState(parameters, VOCAB_SIZE, [1])
    state.guide = guides.compile(asked)
    for _ in range(most):
        [token] = sample(random.normal(size=(1, VOCAB_SIZE)).astype(np.float32) * 3, [state])
        if token in state.guide.eos_tokens:
            return state.generated
        assert state.guide.problem() is None
        state.observe(token)
    raise AssertionError("the guide does not end")


@pytest.mark.parametrize(("kind", "guide", "fits"), KINDS, ids=[kind for kind, _, _ in KINDS])
def test_random_logits_give_answers_that_fit(guides: Guides, kind: str, guide: str, fits: Any) -> None:
    for seed in range(4):
        text = decode(guides, drawn(guides, GuideRequest(kind, guide), seed))
        assert fits(text), text


def counting(families: int | None) -> tuple[Guides, list[str]]:
    """Guides, and the grammars that they compile."""
    guides = Guides((DEMO / "tokenizer.json").read_text(encoding="utf-8"), VOCAB_SIZE, END_IDS, families)
    made: list[str] = []
    matcher = guides._llguidance.LLMatcher

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(matcher, name)

        def __call__(self, tokenizer: Any, grammar: str, **options: Any) -> Any:
            made.append(grammar)
            return matcher(tokenizer, grammar, **options)

    guides._llguidance = SimpleNamespace(LLMatcher=Counting())
    return guides, made


def test_a_guide_is_compiled_once_and_every_request_has_its_own_place() -> None:
    guides, made = counting(families=1)
    asked = GuideRequest("regex", "[A-C][0-9]x")
    one, other = guides.compile(asked), guides.compile(asked)
    before = other.mask().copy()
    one.observe(int(np.flatnonzero(one.mask())[0]))
    assert not np.array_equal(one.mask(), before)
    assert np.array_equal(other.mask(), before)
    assert np.array_equal(guides.compile(asked).mask(), before)
    assert len(made) == 1
    for digit in range(MAX_FAMILIES):
        guides.compile(GuideRequest("regex", f"{digit}"))
    guides.compile(asked)
    assert len(made) == 2 + MAX_FAMILIES


def test_a_guide_has_a_family_for_each_thread_and_one_that_fails_gives_no_more_copies() -> None:
    guides, made = counting(families=3)
    asked = GuideRequest("regex", "[A-C][0-9]x")
    families = [guides.compile(asked).family for _ in range(9)]
    assert len(made) == 3
    assert sorted(families) == sorted(families[:3] * 3)
    guides._masks.failed.add(families[0])
    assert families[0] not in [guides.compile(asked).family for _ in range(9)]
    assert len(made) == 4


@pytest.mark.parametrize(("compile_s", "wanted"), [(0.001, 12), (0.05, 5), (1.0, 3)])
def test_a_guide_that_compiles_quickly_has_more_families(compile_s: float, wanted: int) -> None:
    guides, made = counting(families=None)
    guides._threads = 3
    asked = GuideRequest("regex", "[A-C][0-9]x")
    guides.compile(asked)
    [family] = guides._compiled[asked]
    family.compile_s = compile_s
    for _ in range(40):
        guides.compile(asked)
        for one in guides._compiled[asked]:
            one.compile_s = compile_s
    assert len(made) == wanted


@pytest.mark.parametrize("with_slots", [24, 20, 0])
def test_masks_are_the_same_wherever_they_are_computed(guides: Guides, with_slots: int) -> None:
    """Together and one by one; in the rows of slots, some of which a guide has left, and apart from them."""
    random = np.random.default_rng(7)
    asked = [GuideRequest(kind, guide) for kind, guide, _ in KINDS]
    beside, at_once = ([guides.compile(asked[place % len(asked)]) for place in range(24)] for _ in range(2))
    for slot, one in enumerate(beside[:with_slots]):
        one.enter(slot)
    for _ in range(30):
        for one, other in zip(beside, at_once, strict=True):
            assert np.array_equal(one.mask(), other.mask())
        # Masks of an answer that is at its end allow its end alone.
        tokens = [int(random.choice(np.flatnonzero(one.mask()))) for one in beside]
        going = [place for place, token in enumerate(tokens) if token not in END_IDS]
        beside, at_once = [beside[place] for place in going], [at_once[place] for place in going]
        for place, one in zip(going, beside, strict=True):
            one.observe(tokens[place])
        if beside:
            if len(beside) % 5 == 0:
                beside[-1].leave()
            stacked(beside)
            held = [one for one in beside if one.slot >= 0]
            assert all(np.array_equal(guides._masks.table[one.slot], one.bits()) for one in held)
        for place, other in zip(going, at_once, strict=True):
            other.observe(tokens[place])
            other.bits()


def test_as_many_optional_properties_as_compile_can_be_answered(guides: Guides) -> None:
    properties = {f"p{number}": {"type": "integer"} for number in range(990)}
    asked = GuideRequest("json_schema", json.dumps({"type": "object", "properties": properties}))
    assert follows(guides, asked, '{"p3": 1, "p700": 2}')
    assert not follows(guides, asked, '{"p700": 1, "p3": 2}')
    too_many = {**properties, **{f"q{number}": {} for number in range(20)}}
    with pytest.raises(Refused, match="too big"):
        guides.compile(GuideRequest("json_schema", json.dumps({"properties": too_many})))


class GuidedRunner:
    """Chooses among what guides allow, by the sequence and its length."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def follows(self, _: SamplerState) -> bool:
        return False

    def checks(self, _: SamplerState) -> Checks:
        return Checks.NOT

    def launch(self, work: Work) -> Pending:
        launched = Chosen(work.choosing())
        if not work.late:
            self.choose(launched)
        return launched

    def choose(self, pending: Pending) -> None:
        assert isinstance(pending, Chosen)
        guides = [one.sampler.guide for one in pending.rows]
        masks = iter(stacked([one for one in guides if one is not None]) if any(guides) else ())
        for one, guide in zip(pending.rows, guides, strict=True):
            allowed = [7] if guide is None else np.flatnonzero(np.unpackbits(next(masks), bitorder="little"))
            place = 31 * one.key + 17 * len(one.sampler.generated)
            pending.tokens.append(int(allowed[place % len(allowed)]) if len(allowed) else 0)

    def collect(self, pending: Pending) -> Outcome:
        assert isinstance(pending, Chosen)
        return Outcome(pending.tokens)


class Chosen(Pending):
    def __init__(self, rows: list[SequenceState]) -> None:
        self.rows, self.tokens = rows, list[int]()


@pytest.mark.parametrize("count", [2, 30])
def test_guided_answers_are_the_same_an_iteration_ahead(guides: Guides, count: int) -> None:
    """There, ends are known an iteration late: a sequence that has ended has a row in flight."""
    told = []
    for depth in (1, 2):
        pool = BlockPool(2000, 16)
        subject = Engine(GuidedRunner(depth), pool, Limits(64, 4096), Bounds(VOCAB_SIZE, 500, 2000, 16, 100))
        compiled = {
            key: guides.compile(GuideRequest("regex", f"[0-9]{{{1 + key},{4 + 2 * key}}}x?"))
            for key in range(count)
        }
        first = Iteration()
        subject.add([request(key, PROMPT, 90, end_id=2) for key in [*compiled, 50]], first, compiled)
        while subject.has_work:
            iteration = Iteration()
            subject.step(iteration)
            first.output += iteration.output
        assert pool.used == 0
        told.append({key: (one.tokens, one.finish_reason) for key, one in collect(first.rows).items()})
    assert told[0] == told[1]
    assert all(told[0][key, 0][1] == FinishReason.END_ID for key in range(count))


def test_json_is_any_value_and_tags_hold_what_is_between_them(guides: Guides) -> None:
    guide = guides.compile(GuideRequest("json", ""))
    for text in ('{"a": [1, null]}', "[true]", "3.5"):
        one = guide.copy()
        for token in guides._tokenizer.tokenize_str(text):
            assert one.mask()[token], text
            one.observe(token)
        assert one.mask()[4]
    tags = guides.compile(GuideRequest("structural_tag", json.dumps(TAGS)))
    said = guides._tokenizer.tokenize_str('hello <call>"')
    for token in said:
        assert tags.mask()[token]
        tags.observe(token)
    allowed = {guides._tokenizer.decode_str([token])[:1] for token in np.flatnonzero(tags.mask()).tolist()}
    assert allowed == {"a", "b"}


def follows(guides: Guides, request: GuideRequest, text: str) -> bool:
    """Whether an answer may be `text` and end there."""
    guide = guides.compile(request)
    for token in guides._tokenizer.tokenize_str(text):
        if not guide.mask()[token]:
            return False
        guide.observe(token)
    return any(guide.mask()[end] for end in guide.eos_tokens)


def test_tags_that_are_special_tokens_are_those_tokens(guides: Guides) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    begin, end = '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"
    tags = {"structures": [{"begin": begin, "schema": schema, "end": end}], "triggers": ["<tool_call>"]}
    tag = {
        "type": "tag",
        "begin": begin,
        "content": {"type": "json_schema", "json_schema": schema},
        "end": end,
    }
    for guide in (tags, {"format": tag}):
        request = GuideRequest("structural_tag", json.dumps(guide))
        assert follows(guides, request, f'{begin}{{"n": 1}}{end}')
        assert not follows(guides, request, f'{begin}{{"n": "x"}}{end}')
    assert follows(guides, GuideRequest("structural_tag", json.dumps(tags)), "Hello")


def schema(kind: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"type": kind} if isinstance(kind, str) else kind}


def word(value: str) -> dict[str, object]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: dict[str, object], end: str) -> dict[str, object]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


#: Two functions under one trigger. The type of a tag may be left out.
CALLS: dict[str, Any] = {
    "type": "triggered_tags",
    "triggers": ["<f="],
    "tags": [
        tag("<f=a>", schema("integer"), "</f>"),
        {**tag("<f=b>", schema("boolean"), "</f>"), "type": "tag"},
    ],
}


def check_format(guides: Guides, asked: dict[str, Any], texts: list[tuple[str, bool]]) -> None:
    """That answers in a format may be these texts, or may not."""
    request = GuideRequest("structural_tag", json.dumps({"type": "structural_tag", "format": asked}))
    for text, allowed in texts:
        assert follows(guides, request, text) == allowed, (asked, text)


@pytest.mark.parametrize("only_one", [False, True])
def test_a_format_allows_an_answer_or_calls(guides: Guides, only_one: bool) -> None:
    calls = {
        "type": "tags_with_separator",
        "tags": [tag("<call>", schema("integer"), "</call>")],
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": only_one,
    }
    texts = [
        ("true", True),
        ("<call>1</call>", True),
        ("<call>1</call>\n<call>2</call>", not only_one),
        ("", False),
        ("1", False),
        ("<call>true</call>", False),
        ("true<call>1</call>", False),
    ]
    check_format(guides, {"type": "or", "elements": [schema("boolean"), calls]}, texts)
    check_format(guides, {**calls, "at_least_one": False}, [("", True), *texts[1:3]])


def test_a_format_is_made_of_parts(guides: Guides) -> None:
    check_format(
        guides,
        {
            "type": "sequence",
            "elements": [word('a"b'), schema("null"), {"type": "regex", "pattern": "/[x-z]+"}],
        },
        [('a"bnull/xyz', True), ('a"bnull/', False), ("null/x", False)],
    )
    check_format(guides, {"type": "any_text"}, [("", True), ("what\never", True)])
    check_format(guides, schema(True), [("[1]", True), ("x", False)])
    thought = tag("<t>", {"type": "any_text"}, "</t>")
    check_format(
        guides,
        {"type": "sequence", "elements": [thought, schema("integer")]},
        [("<t>Hm.\n<t></t>12", True), ("<t></t>1", True), ("<t>Hm.12", False), ("<t>a</t>b</t>1", False)],
    )
    either: dict[str, object] = {
        "type": "or",
        "elements": [word("yes"), {"type": "sequence", "elements": [word("no"), {"type": "any_text"}]}],
    }
    check_format(
        guides,
        tag("(", either, ")"),
        [("(yes)", True), ("(no, thanks)", True), ("(yes, thanks)", False), ("(no", False)],
    )


@pytest.mark.parametrize("at_least_one", [False, True])
@pytest.mark.parametrize("stop_after_first", [False, True])
def test_triggered_tags_hold_what_follows_a_trigger(
    guides: Guides, at_least_one: bool, stop_after_first: bool
) -> None:
    some, several = not at_least_one, not stop_after_first
    asked = {**CALLS, "at_least_one": at_least_one, "stop_after_first": stop_after_first}
    texts = [
        ("<f=a>1</f>", True),
        ("<f=b>true</f>", True),
        ("<f=b>1</f>", False),
        ("<f=c>1</f>", False),
        ("", some),
        ("Hello <f", some),
        ("Hello <f=a>12</f>", some),
        ("<f=a>1</f> and <f=b>false</f>.", several),
        ("<f=a>1</f> and <f=b>1</f>.", False),
        ("Hm.<f=a>1</f>x", some and several),
    ]
    check_format(guides, asked, texts)
    # Within a tag, its end ends the text.
    inside = [(f"[{text}]", allowed) for text, allowed in texts]
    check_format(guides, tag("[", asked, "]"), inside)
    check_format(guides, tag("[", asked, "]"), [("[<f=a>1</f>", False), ("[<f=a>1</f>]x", False)])
    alone = {"type": "sequence", "elements": [asked, word("!")]}
    if at_least_one and stop_after_first:
        check_format(guides, alone, [("<f=a>1</f>!", True), ("<f=a>1</f>", False)])
    else:
        with pytest.raises(Refused, match="has no end here"):
            guides.compile(GuideRequest("structural_tag", json.dumps({"format": alone})))


def test_free_text_ends_at_a_special_token(guides: Guides) -> None:
    for end in ("</tool_call>", "\n</tool_call>", "</tool_call>."):
        asked = tag("<tool_call>", {"type": "any_text"}, end)
        texts = [
            (f"<tool_call>Hm.\n{end}", True),
            (f"<tool_call>Hm.{end}x", False),
            ("<tool_call>Hm.", False),
        ]
        if end.startswith("\n"):
            texts.append(("<tool_call>Hm.</tool_call>", False))
        check_format(guides, asked, texts)


@pytest.mark.parametrize(
    ("kind", "guide", "words"),
    [
        ("json_schema", "{", "line 1 column 2"),
        ("json_schema", '{"properties": {"a": {"items": [{"not": {}}]}}}', ""),
        ("json_schema", '{"properties": {"a": {"not": {}}}}', "at `/properties/a/not`"),
        ("json_schema", "[" * 30000 + "]" * 30000, "not a valid `json_schema`"),
        ("json_schema", json.dumps({"enum": ["x" * 70000]}), "it may have 65536"),
        (
            "json_schema",
            json.dumps(
                {"type": "object", "properties": {f"p{one}": {"type": "string"} for one in range(1800)}}
            ),
            "cannot be used",
        ),
        ("regex", "(", "cannot be used"),
        ("regex", "(?=a)b", "cannot be used"),
        ("ebnf_grammar", "root ::= other", "'other' not found"),
        ("structural_tag", "{}", "it has no `structures`"),
        ("structural_tag", "[]", "it must be an object"),
        (
            "structural_tag",
            json.dumps({**TAGS, "triggers": ["<x>"]}),
            "no trigger begins `<call>`, at `/structures/0/begin`",
        ),
        *(
            ("structural_tag", json.dumps({"format": asked}), words)
            for asked, words in [
                ({"type": "triggered_tags"}, "it has no `tags`, at `/format`"),
                ({"type": "nothing"}, "the format `nothing` is not supported, at `/format/type`"),
                ({"type": "sequence", "elements": []}, "must be a non-empty list, at `/format/elements`"),
                (
                    {"type": "sequence", "elements": [{"type": "any_text"}, word("a")]},
                    "`any_text` has no end here; make it the last element, or put it into a `tag` with an"
                    " `end`, at `/format/elements/0`",
                ),
                (tag("<a>", {"type": "any_text"}, ""), "no end here"),
                (tag("<a>", {"type": "grammar", "grammar": "x"}, ">"), "at `/format/content/type`"),
                (tag("<a>", {"type": "any_text", "excludes": ["x"]}, ">"), "at `/format/content/excludes`"),
                (tag("<a>", schema(False), ">"), "the JSON schema matches nothing, at `/format/content"),
                ({**CALLS, "triggers": ["<x"]}, "no trigger begins `<f=a>`, at `/format/tags/0/begin`"),
                ({**CALLS, "triggers": ["<", "<f"]}, "several triggers begin `<f=a>`"),
                ({**CALLS, "triggers": ["<f=", "<x"]}, "no tag begins with it, at `/format/triggers/1`"),
                ({**CALLS, "at_least_one": 1}, "true or false, at `/format/at_least_one`"),
            ]
        ),
    ],
)
def test_guides_that_cannot_be_are_refused_soon(guides: Guides, kind: str, guide: str, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(Refused) as refusal:
        guides.compile(GuideRequest(kind, guide))
    assert words in refusal.value.text
    assert time.monotonic() - started < 10


def tensors(kind: str, guide: str | None) -> list[NamedTensor]:
    made = []
    for name, value in (("guided_decoding_guide_type", kind), ("guided_decoding_guide", guide)):
        if value is not None:
            data = value.encode()
            made.append(NamedTensor(name, "BYTES", (1,), len(data).to_bytes(4, "little") + data))
    return made


@pytest.fixture(scope="module", params=["numpy", "pytorch"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    device = "cpu"
    if request.param == "pytorch":
        pytest.importorskip("torch", reason="pip install 'inflight-llm[torch]'")
        device = os.environ.get("INFLIGHT_TEST_DEVICE", "cpu")
    subject = create(DEMO, device, backend=request.param, max_batch_size=8)
    assert "guided_decoding" in subject.info().capabilities
    yield subject
    subject.shutdown()


def ask(subject: Executor, *requests: Any) -> dict[tuple[int, int], Any]:
    subject.enqueue(list(requests))
    told: dict[tuple[int, int], Any] = {}
    errors: dict[int, str] = {}
    while sum(one.final for one in told.values()) < len(requests):
        batch = subject.await_responses(5.0)
        rows = unpack(batch)
        errors.update({rows[row].client_id: text for row, _, text in batch.errors})
        collect(rows, told)
    return told | {(client_id, -1): text for client_id, text in errors.items()}


def test_the_executor_guides_every_sequence_and_leaves_others_alone(
    guides: Guides, executor: Executor
) -> None:
    sampling = {"top_p": 0.95, "temperature": 1.5, "seed": 5, "num_return_sequences": 3}
    told = ask(
        executor,
        *[
            request(key, PROMPT, 200, sampling=sampling, tensors=tensors(kind, guide), end_id=4)
            for key, (kind, guide, _) in enumerate(KINDS)
        ],
        request(9, PROMPT, 10),
    )
    for key, (_, _, fits) in enumerate(KINDS):
        for index in range(3):
            one = told[key, index]
            assert one.finish_reason == FinishReason.END_ID
            *guided, end = one.tokens
            assert end in END_IDS
            assert fits(decode(guides, guided))
    assert len(told[9, 0].tokens) == 10


def test_what_the_guide_and_the_rest_rule_out_together_is_an_error(executor: Executor) -> None:
    digits = [[one] for one in range(VOCAB_SIZE)][20:30]
    told = ask(
        executor,
        request(1, PROMPT, 20, tensors=tensors("regex", "[0-9]{4}"), bad_words=digits),
        request(2, PROMPT, 20, tensors=tensors("regex", "(")),
        request(3, PROMPT, 20, tensors=tensors("xml", "<a/>")),
        request(4, PROMPT, 20, tensors=tensors("regex", None)),
        request(5, PROMPT, 20, tensors=tensors("json", None)),
    )
    assert "cannot continue within its guide" in told[1, -1]
    assert "cannot be used" in told[2, -1]
    assert "`xml`" in told[3, -1]
    assert "without its guided_decoding_guide" in told[4, -1]
    assert told[5, 0].tokens
    assert set(told) >= {(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)}


def test_a_grammar_that_explodes_in_mid_answer_is_an_error_and_no_cut(guides: Guides) -> None:
    import llguidance

    matcher = llguidance.LLMatcher(
        guides._tokenizer,
        llguidance.LLMatcher.grammar_from_json_schema("{}"),
        log_level=0,
        limits=llguidance.LLParserLimits(max_items_in_row=1, verbose_errors=False),
    )
    guide = Guide(matcher, guides._masks)
    guides._masks.compute(guide)
    assert guide.problem() is None
    assert guide.mask().any()
    for token in guides._tokenizer.tokenize_str('{"a": 1'):
        guide.observe(token)
    # This is what would have cut the answer.
    assert np.flatnonzero(guide.mask()).tolist() in ([], [2, 4])
    assert "max is 1" in (guide.problem() or "")


def intersecting(kind: str, count: int) -> GuideRequest:
    patterns = [f"^(b.*[a-z]{{{index}}}.*)?$" for index in range(1, count)]
    if kind == "json_schema":
        return GuideRequest(kind, json.dumps({"allOf": [{"type": "string", "pattern": p} for p in patterns]}))
    return GuideRequest(kind, "start: A\nA: " + " & ".join(f"/{p}/" for p in patterns))


@pytest.mark.parametrize("kind", ["json_schema", "ebnf_grammar"])
def test_patterns_that_no_compiler_finishes_are_refused_at_once(guides: Guides, kind: str) -> None:
    with pytest.raises(Refused, match="at most 8 may"):
        guides.compile(intersecting(kind, 40))


def test_a_guide_that_compiles_for_long_delays_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests with guides wait for each other; the rest passes them. A cancelled one is never compiled."""
    subject = create(DEMO, "cpu")
    begun, go_on = threading.Event(), threading.Event()
    compiled: list[str] = []
    compile_guide = Guides.compile

    def slow(self: Guides, asked: GuideRequest) -> Guide:
        compiled.append(asked.guide)
        begun.set()
        assert go_on.wait(30)
        return compile_guide(self, asked)

    monkeypatch.setattr(Guides, "compile", slow)
    try:
        subject.enqueue([guided(1, "[ab]"), guided(2, "[cd]")])
        assert begun.wait(30)
        subject.enqueue([request(3, PROMPT, 1)])
        assert ended(subject, 1) == {3}
        subject.cancel([2])
        go_on.set()
        assert ended(subject, 2) == {1, 2}
        assert compiled == ["[ab]"]
    finally:
        go_on.set()
        subject.shutdown()


def test_the_time_that_a_request_waits_for_its_guide_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = create(DEMO, "cpu")
    begun, go_on = threading.Event(), threading.Event()
    arrivals: dict[int, float] = {}
    compile_guide, add = Guides.compile, Engine.add

    def slow(self: Guides, asked: GuideRequest) -> Guide:
        begun.set()
        assert go_on.wait(30)
        return compile_guide(self, asked)

    def noting(self: Engine, requests: Any, iteration: Any, guides: Any, arrived: Any, *rest: Any) -> None:
        arrivals.update({one.client_id: arrived[one.client_id] for one in requests})
        add(self, requests, iteration, guides, arrived, *rest)

    monkeypatch.setattr(Guides, "compile", slow)
    monkeypatch.setattr(Engine, "add", noting)
    try:
        subject.enqueue([guided(1, "[ab]")])
        enqueued = time.perf_counter()
        assert begun.wait(30)
        # Iterations that other requests have meanwhile take nothing of it along.
        subject.enqueue([request(2, PROMPT, 1)])
        assert ended(subject, 1) == {2}
        go_on.set()
        assert ended(subject, 1) == {1}
        assert arrivals[1] < enqueued < arrivals[2]
    finally:
        go_on.set()
        subject.shutdown()


def guided(client_id: int, pattern: str) -> Any:
    return request(client_id, PROMPT, 4, tensors=tensors("regex", pattern), end_id=4)


def ended(subject: Executor, count: int) -> set[int]:
    """The next requests to end."""
    found: set[int] = set()
    while len(found) < count:
        found |= {row.client_id for row in unpack(subject.await_responses(30.0)) if row.final}
    return found


@pytest.mark.parametrize("tagged", [False, True], ids=["json_schema", "structural_tag"])
def test_an_object_has_the_properties_that_its_schema_names(guides: Guides, tagged: bool) -> None:
    one = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    open_one = {**one, "additionalProperties": {"type": "integer"}}
    two = {"type": "object", "properties": {"b": {"type": "integer"}}}
    for schema, text, fits in (
        (one, '{"a": 1}', True),
        (one, '{"a": 1, "b": 2}', False),
        (one, '{"a": 1, "a": 2}', False),
        ({"anyOf": [one, two]}, '{"b": 1, "c": 2}', False),
        (open_one, '{"a": 1, "b": 2}', True),
        # Closed, no object would match both.
        ({"allOf": [one, two]}, '{"a": 1, "b": 2}', True),
    ):
        asked = GuideRequest("json_schema", json.dumps(schema))
        if tagged:
            form = {"type": "json_schema", "json_schema": schema}
            asked = GuideRequest("structural_tag", json.dumps({"format": form}))
        assert follows(guides, asked, text) is fits, (schema, text)
