"""Requests that another executor began: whatever was asked, they continue as if nothing had happened.

Each kind of request runs undisturbed and alone. Then it is cut after every token, and all the parts that are
left run at once in another engine, beside each other.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from inflight.executors.base import FinishReason, NamedTensor, Request, StatusCode
from inflight.executors.reference import create
from inflight.executors.reference.core.adapters import Adapters
from inflight.executors.reference.core.draft_model import DraftModel
from inflight.executors.reference.core.drafts import LookupConfig
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.extras import read_extras
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.rows import Row
from inflight.executors.reference.core.scheduler import CapacitySchedulerPolicy
from inflight.executors.reference.errors import OptionError
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.numpy import invariant

from .support import FIXTURES, AllTold, Told, collect, engine, request, unpack
from .test_mixed_requests import ADAPTERS, CONFIG, DEMO, END_IDS, SENT, Mix, tensor, text

#: Whether the runner gives the same bits however tokens are batched; otherwise it gives nearly the same.
EXACT = "INFLIGHT_TEST_DEVICE" not in os.environ

#: Requests of a random mixture.
CUTS = int(os.environ.get("INFLIGHT_CUT_REQUESTS", "30"))

CUT, OTHERS = 1000, 5000
PROMPT = [40, 41, 42, 43, 300, 301, 302, 17, 18, 19, 20]
END = END_IDS[1]
EVERYTHING = {"return_log_probs": True, "num_top_log_probs": 3}
PENALTIES = {
    "temperature": 1.3,
    "top_p": 0.95,
    "top_k": 200,
    "seed": 11,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "no_repeat_ngram_size": 3,
}
HOT = {"temperature": 1.5, "top_p": 0.99, "seed": 3}
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}
#: Tokens that would fill an answer.
WHITE_SPACE = [203, 225, 2013]
CALL = {"begin": "<call>", "content": {"type": "json_schema", "json_schema": {"enum": ["alpha", "beta"]}}}


def guide(kind: str, value: Any) -> list[NamedTensor]:
    written = value if isinstance(value, str) else json.dumps(value)
    return [text("guided_decoding_guide_type", kind), text("guided_decoding_guide", written)]


def thinking(budget: int) -> list[NamedTensor]:
    return [
        tensor("inflight_thinking_budget", "INT32", [budget]),
        tensor("inflight_thinking_end_ids", "INT32", [70, 71]),
    ]


#: What each kind asks; all of them report everything, unless they say otherwise.
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled with penalties": {"sampling": PENALTIES},
    "a top-p that decays": {"sampling": {**HOT, "top_p_decay": 0.9, "top_p_min": 0.2, "top_p_reset_ids": 17}},
    "min_tokens": {"sampling": {**HOT, "min_tokens": 9}, "bias": {END: 40.0}},
    "bad words": {"bad_words": [[5], [2034, 203], [2379, 269, 12]]},
    "several sequences": {"sampling": {**HOT, "num_return_sequences": 3}},
    "json schema": {
        "tensors": guide("json_schema", SCHEMA),
        "sampling": HOT,
        "max_tokens": 30,
        "bias": dict.fromkeys(WHITE_SPACE, -20.0),
    },
    "json": {"tensors": guide("json", ""), "sampling": HOT},
    "regex": {"tensors": guide("regex", "[a-z]{3,9}-[0-9]{2,5}"), "sampling": HOT},
    "ebnf": {"tensors": guide("ebnf_grammar", 'root ::= ("yes" | "no") " " [0-9]+'), "sampling": HOT},
    "tool": {
        "tensors": guide("structural_tag", {"format": {"type": "tag", **CALL, "end": "</call>"}}),
        "max_tokens": 30,
    },
    "a tool, perhaps": {
        "tensors": guide(
            "structural_tag",
            {"structures": [{"begin": "}}", "schema": {"enum": ["alpha"]}, "end": "}}"}], "triggers": ["}}"]},
        ),
    },
    "several guided sequences": {
        "tensors": guide("regex", "([a-z]{2,4} ){1,4}"),
        "sampling": {**HOT, "num_return_sequences": 2},
    },
    "thinking": {"tensors": thinking(5), "sampling": HOT},
    "thinking that it begins": {
        "tensors": [*thinking(4), tensor("inflight_thinking_start_ids", "INT32", [72])],
        "sampling": HOT,
        "bias": {72: 14.0},
    },
    "adapter": {"tensors": [tensor("lora_task_id", "UINT64", [1]), *SENT[1]]},
    "draft tokens": {"tensors": [tensor("draft_input_ids", "INT32", [2034, 203, 2379, 7, 8])]},
    "named log probabilities": {"tensors": [tensor("inflight_log_prob_ids", "INT32", [9, 5, 70])]},
    "no log probabilities": {"sampling": HOT, "output": {}},
    "in one piece": {"sampling": PENALTIES, "streaming": False},
    "salted": {"tensors": [text("inflight_cache_salt", "s")]},
    "prompt and logits": {
        "output": {
            **EVERYTHING,
            "num_prompt_log_probs": 2,
            "return_generation_logits": True,
            "return_context_logits": True,
            "return_perf_metrics": True,
        }
    },
}


def asked(client_id: int, kind: str, **changes: Any) -> Request:
    fields = {"sampling": {}, "output": EVERYTHING, "end_id": END, **KINDS[kind], **changes}
    fields["logit_bias"] = list(fields.pop("bias", {}).items())
    return request(client_id, PROMPT, fields.pop("max_tokens", 14), **fields)


@dataclass
class Undisturbed:
    """A request and what it was answered."""

    request: Request
    told: AllTold
    #: By sequence: how many tokens there were after each iteration that brought some.
    steps: list[list[int]] = field(default_factory=list)


class Guided:
    """An engine and what compiles its guides."""

    def __init__(self, subject: Engine, guides: Any) -> None:
        self.subject, self._guides = subject, guides
        self.context_tokens = self.generated_tokens = 0

    def run(self, requests: list[Request]) -> tuple[AllTold, list[list[Row]]]:
        """To the end of all of them: what they were told, and the rows of each iteration."""
        compiled = {}
        for one in requests:
            wanted = read_extras(one).guide
            if wanted is not None:
                compiled[one.client_id] = self._guides.compile(wanted)
        iteration = Iteration()
        self.subject.add(requests, iteration, compiled)
        told = collect(iteration.rows)
        steps = []
        while self.subject.has_work:
            iteration = Iteration()
            self.subject.step(iteration)
            self.context_tokens += iteration.context_tokens
            self.generated_tokens += iteration.generated_tokens
            steps.append(iteration.rows)
            collect(iteration.rows, told)
        assert self.subject.pool.used == 0
        return told, steps


def made(**options: Any) -> Engine:
    adapters = Adapters(CONFIG, 8, ADAPTERS * 2 * len(SENT[0][0].data))
    sizes = {"num_blocks": 900, "tokens_per_block": 4, "max_seq_len": 96, "max_batch_size": 24}
    sizes["max_queue_size"] = 10_000
    return engine(str(DEMO), **{**sizes, "adapters": adapters, "invariant": True, **options})


def with_draft_model(**options: Any) -> Engine:
    draft = engine(str(DEMO), num_blocks=900, tokens_per_block=4, max_seq_len=160, max_batch_size=24)
    return made(proposer=DraftModel(draft, 160, 3), **options)


PAUSING = CapacitySchedulerPolicy.MAX_UTILIZATION
ENGINES: dict[str, Callable[..., Engine]] = {
    "alike": made,
    "without reuse": partial(made, reuse=False),
    "small chunks": partial(made, max_num_tokens=24),
    "whole contexts": partial(made, chunked=False),
    "two iterations in flight": partial(made, depth=2),
    "pausing": partial(made, policy=PAUSING, num_blocks=60, depth=2),
    "host blocks": partial(made, num_blocks=60, num_host_blocks=200),
    "prompt lookup": partial(made, lookup=LookupConfig(4, 2)),
    "draft model": with_draft_model,
}


@pytest.fixture(scope="module", autouse=True)
def short_runs() -> Iterator[None]:
    """Attention takes several runs of keys, though the requests are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(invariant, "_RUN", 16)
        yield


@pytest.fixture(scope="module")
def guides() -> Any:
    pytest.importorskip("llguidance", reason="pip install 'inflight-llm[guided]'")
    from inflight.executors.reference.core.guides import Guides

    return Guides((DEMO / "tokenizer.json").read_text(encoding="utf-8"), CONFIG.vocab_size, END_IDS)


@pytest.fixture(scope="module")
def undisturbed(guides: Any) -> dict[str, Undisturbed]:
    """Each kind, alone in an engine."""
    found = {}
    for kind in KINDS:
        one = asked(1, kind)
        found[kind] = Undisturbed(one, Guided(made(), guides).run([one])[0])
    # A stop word that the answer completes, of three tokens.
    free = found["greedy"].told[1, 0].tokens
    one = replace(found["greedy"].request, stop_words=[free[6:9], [free[3], free[3], free[3]]])
    found["stop words"] = Undisturbed(one, Guided(made(), guides).run([one])[0])
    return found


def cuts(one: Undisturbed) -> list[Request]:
    """What is left of a request after each of its tokens; of several sequences, after each number of them."""
    sequences = [told.tokens for _, told in sorted(one.told.items())]
    parts = []
    for count in range(max(map(len, sequences))):
        generated = [None if count >= len(tokens) else tokens[:count] for tokens in sequences]
        parts.append(replace(one.request, client_id=CUT + count, generated=generated))
    return parts


def beside(seed: int, count: int) -> list[Request]:
    """Other requests, of all kinds but those that the tests' engines refuse."""
    mix = Mix(seed)
    found: list[Request] = []
    while len(found) < count:
        one, malformed = mix.request(OTHERS + len(found))
        names = {part.name for part in one.tensors}
        if not malformed and not names & {"lora_task_id", "guided_decoding_guide_type"}:
            found.append(replace(one, max_tokens=min(one.max_tokens, 12)))
    return found


def check(one: Undisturbed, part: Request, told: AllTold) -> None:
    """The tokens that were cut off came again, with the same of everything that is reported of them."""
    last = [sequence for sequence, so_far in enumerate(part.generated) if so_far is not None]
    finals = 0
    for sequence, so_far in enumerate(part.generated):
        whole, rest = one.told[one.request.client_id, sequence], told.get((part.client_id, sequence))
        if so_far is None:
            assert rest is None
            continue
        assert rest is not None
        assert rest.error is None
        count = len(so_far)
        assert rest.tokens == whole.tokens[count:], (count, whole.tokens)
        assert rest.finish_reason == whole.finish_reason
        same(rest.log_probs, whole.log_probs[count:])
        same(rest.top_values, whole.top_values[count:])
        assert not EXACT or rest.top_ids == whole.top_ids[count:]
        same(rest.logits, whole.logits[count:])
        assert all(found <= len(part.input_token_ids) for found in rest.cached_tokens)
        if sequence == last[0]:
            check_prompt(one.told[one.request.client_id, 0], rest)
        finals += rest.final
    assert finals == 1


def same(ours: Any, theirs: Any) -> None:
    if EXACT:
        assert np.array_equal(np.array(ours), np.array(theirs), equal_nan=True)
    else:
        np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=1e-4)


def check_prompt(whole: Told, rest: Told) -> None:
    assert len(rest.prompt_rows) == len(whole.prompt_rows)
    for ours, theirs in zip(rest.prompt_rows, whole.prompt_rows, strict=True):
        assert ours.prompt is not None
        assert theirs.prompt is not None
        same(ours.prompt.values, theirs.prompt.values)
        assert not EXACT or np.array_equal(ours.prompt.top_ids, theirs.prompt.top_ids)
    assert (rest.context_logits is None) == (whole.context_logits is None)
    if rest.context_logits is not None:
        same(rest.context_logits, whole.context_logits)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("kind", [*KINDS, "stop words"])
def test_a_request_goes_on_after_any_token(
    kind: str, name: str, guides: Any, undisturbed: dict[str, Undisturbed]
) -> None:
    one = undisturbed[kind]
    parts = cuts(one)
    assert len(parts) > 1
    executor = Guided(ENGINES[name](), guides)
    told, _ = executor.run([*beside(len(kind), 6), *parts])
    for part in parts:
        check(one, part, told)


def test_the_kinds_are_what_they_say(undisturbed: dict[str, Undisturbed]) -> None:
    """Cuts at every token are worth little where nothing happens between them."""
    reasons = {kind: one.told[1, 0].finish_reason for kind, one in undisturbed.items()}
    assert reasons["stop words"] == FinishReason.STOP_WORDS
    assert len(undisturbed["stop words"].told[1, 0].tokens) == 9
    for kind in ("json schema", "regex", "tool", "min_tokens"):
        assert reasons[kind] == FinishReason.END_ID, kind
    assert len(undisturbed["min_tokens"].told[1, 0].tokens) == 10
    assert len(undisturbed["a tool, perhaps"].told[1, 0].tokens) > 4
    assert undisturbed["bad words"].told[1, 0].tokens[1] != 203
    lengths = {len(undisturbed["several sequences"].told[1, index].tokens) for index in range(3)}
    assert len(lengths) > 1
    assert undisturbed["thinking"].told[1, 0].tokens[5:7] == [70, 71]
    begun = undisturbed["thinking that it begins"].told[1, 0].tokens
    assert begun[begun.index(72) + 5 :][:2] == [70, 71]
    assert undisturbed["adapter"].told[1, 0].log_probs != undisturbed["greedy"].told[1, 0].log_probs


def anything(seed: int, count: int) -> list[Request]:
    """Requests with all that there is, but for searches and those that are refused or generate nothing."""
    mix = Mix(seed)
    found: list[Request] = []
    while len(found) < count:
        one, malformed = mix.request(1)
        if malformed or not one.max_tokens or one.sampling_config.beam_width > 1:
            continue
        for part in one.tensors:
            if part.name == "lora_task_id":
                task_id = int(np.frombuffer(part.data, "<u8")[0])
                others = [other for other in one.tensors if other.name not in ("lora_weights", "lora_config")]
                one = replace(one, tensors=[*others, *SENT[task_id]])
        found.append(one)
    return found


@pytest.mark.parametrize("name", ENGINES)
def test_any_mixture_goes_on_after_any_tokens(name: str, guides: Any) -> None:
    """The sequences of a request are cut at different places."""
    draw = random.Random(len(name))
    wholes, parts = [], []
    for place, one in enumerate(anything(len(name), CUTS)):
        alone, _ = Guided(made(max_seq_len=160), guides).run([one])
        counts = [len(told.tokens) for _, told in sorted(alone.items())]
        generated: list[list[int] | None] = [
            None if draw.random() < 0.3 else alone[1, index].tokens[: draw.randrange(count)]
            for index, count in enumerate(counts)
        ]
        if any(tokens is not None for tokens in generated):
            wholes.append(Undisturbed(one, alone))
            parts.append(replace(one, client_id=CUT + place, generated=generated))
    told, _ = Guided(ENGINES[name](max_seq_len=160), guides).run(parts)
    for whole, part in zip(wholes, parts, strict=True):
        check(whole, part, told)


def test_what_was_generated_is_computed_as_context(guides: Any) -> None:
    whole = Guided(made(), guides)
    one = Undisturbed(asked(1, "greedy"), {})
    one.told, _ = whole.run([one.request])
    for reuse, computed in ((True, 1), (False, len(PROMPT) + 8)):
        executor = Guided(made(reuse=reuse), guides)
        executor.run([one.request])
        before = executor.context_tokens, executor.generated_tokens
        part = cuts(one)[8]
        told, _ = executor.run([part])
        assert executor.context_tokens - before[0] == computed
        assert executor.generated_tokens - before[1] == len(told[part.client_id, 0].tokens) == 14 - 8
        assert told[part.client_id, 0].cached_tokens == [len(PROMPT) if reuse else 0]


def test_those_that_were_begun_come_first(guides: Any) -> None:
    subject = made(max_batch_size=1)
    one = Undisturbed(asked(1, "greedy"), {})
    one.told, _ = Guided(subject, guides).run([one.request])
    _, steps = Guided(subject, guides).run([request(2, [5, 6], 2), request(3, [5, 7], 2), cuts(one)[5]])
    order = list(dict.fromkeys(row.client_id for rows in steps for row in rows))
    assert order == [CUT + 5, 2, 3]


def test_a_cut_ends_one_by_one_and_all_together(guides: Any, undisturbed: dict[str, Undisturbed]) -> None:
    one = undisturbed["several sequences"]
    part = cuts(one)[1]
    subject = made()
    iteration = Iteration()
    subject.add([part], iteration)
    subject.step(iteration)
    subject.cancel([part.client_id], iteration)
    while subject.has_work:
        # On a GPU an iteration may still be under way.
        subject.step(iteration)
    told = collect(iteration.rows)
    assert {found.finish_reason for found in told.values()} == {FinishReason.CANCELLED}
    assert sum(found.final for found in told.values()) == 1
    assert subject.pool.used == 0


def test_a_guide_that_is_prepared_on_its_thread_goes_on(undisturbed: dict[str, Undisturbed]) -> None:
    one = undisturbed["several guided sequences"]
    subject = create(DEMO, "cpu", batch_invariant=True)
    assert "resume" in subject.info().capabilities
    try:
        parts = cuts(one)
        subject.enqueue([*parts, replace(parts[0], client_id=2, generated=[[], [5] * 3])])
        told: AllTold = {}
        errors = []
        while sum(found.final for found in told.values()) <= len(parts):
            batch = subject.await_responses(30.0)
            collect(unpack(batch), told)
            errors += [(code, words) for _, code, words in batch.errors]
    finally:
        subject.shutdown()
    for part in parts:
        for index, so_far in enumerate(part.generated):
            rest = [] if so_far is None else [*so_far, *told[part.client_id, index].tokens]
            assert rest in ([], one.told[1, index].tokens)
    [(code, words)] = errors
    assert code == StatusCode.INVALID_ARGUMENT
    assert "sequence 1 cannot continue" in words


def test_pytorch_promises_no_bits() -> None:
    pytest.importorskip("torch")
    with pytest.raises(OptionError, match="`batch_invariant` needs backend `numpy`"):
        create(FIXTURES / "llama", "cpu", backend="pytorch", batch_invariant=True)


TWO = {"num_return_sequences": 2}


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"generated": [[5], [6]]}, StatusCode.INVALID_ARGUMENT, "of 2 sequences and num_return_sequences"),
        ({"generated": [[5]], "sampling": TWO}, StatusCode.INVALID_ARGUMENT, "of 1 sequences"),
        ({"generated": [None]}, StatusCode.INVALID_ARGUMENT, "every sequence has ended"),
        ({"generated": [[5, 3072]]}, StatusCode.INVALID_ARGUMENT, "`3072`; ids are 0 to 3071"),
        ({"generated": [[5, -1]]}, StatusCode.INVALID_ARGUMENT, "`-1`"),
        ({"generated": [[5] * 14]}, StatusCode.INVALID_ARGUMENT, "max_tokens is `14`"),
        ({"generated": [[5] * 85], "max_tokens": 900}, StatusCode.INVALID_ARGUMENT, "room for `85`"),
        ({"generated": [[5, END]]}, StatusCode.INVALID_ARGUMENT, "its end token; mark it as ended"),
        (
            {"generated": [[5], [7, 8]], "sampling": TWO, "stop_words": [[7, 8]]},
            StatusCode.INVALID_ARGUMENT,
            "sequence 1 end with its stop word",
        ),
        (
            {"generated": [[5]], "sampling": {"beam_width": 2}, "streaming": False, "output": {}},
            StatusCode.UNIMPLEMENTED,
            "beam search",
        ),
        (
            {"generated": [[300]], "tensors": guide("regex", "[0-9]+")},
            StatusCode.INVALID_ARGUMENT,
            "sequence 0 cannot continue after its generated tokens",
        ),
        (
            {"generated": [[END]], "end_id": None, "tensors": guide("regex", "[0-9]*")},
            StatusCode.INVALID_ARGUMENT,
            "they end it",
        ),
    ],
)
def test_what_cannot_go_on_is_refused_alone(
    fields: dict[str, Any], code: StatusCode, words: str, guides: Any
) -> None:
    refused = asked(1, "greedy", **fields)
    executor = Guided(made(), guides)
    told, _ = executor.run([refused, request(2, PROMPT, 3)])
    assert told[1, 0].final
    assert words in str(told[1, 0].error)
    assert len(told[2, 0].tokens) == 3
    iteration = Iteration()
    compiled = read_extras(refused).guide
    executor.subject.add([refused], iteration, {1: guides.compile(compiled)} if compiled else {})
    [row] = iteration.rows
    assert row.error is not None
    assert row.error[0] == code


def test_an_empty_beginning_is_none(guides: Any, undisturbed: dict[str, Undisturbed]) -> None:
    one = undisturbed["several sequences"]
    told, _ = Guided(made(), guides).run([replace(one.request, generated=[[], [], []])])
    assert {key: found.tokens for key, found in told.items()} == {
        key: found.tokens for key, found in one.told.items()
    }


FAMILIES = ["llama", "qwen3", "gpt2", "mixtral", "gemma", "gemma2", "gemma3", "baichuan2_alibi", "gpt_oss"]
WINDOW = {"max_attention_window_size": [16], "sink_token_length": 3}


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        *((name, attention) for attention in (None, WINDOW) for name in FAMILIES),
        # Latent attention has no windows.
        ("deepseek_v3", None),
    ],
)
def test_every_family_goes_on(name: str, attention: dict[str, Any] | None) -> None:
    config = load_config(FIXTURES / name)
    draw = np.random.default_rng(5)
    prompt = draw.integers(5, config.vocab_size, 13).tolist()
    sampling = {"temperature": 1.2, "top_p": 0.95, "seed": 7, "frequency_penalty": 0.2}
    one = request(1, prompt, 20, sampling=sampling, output=EVERYTHING)
    whole = Undisturbed(one, Guided(engine(name, attention=attention, invariant=True), None).run([one])[0])
    parts = cuts(whole)
    told, _ = Guided(engine(name, attention=attention, invariant=True, max_num_tokens=70), None).run(parts)
    for part in parts:
        check(whole, part, told)
