"""What requests may ask for beyond OpenAI's plain fields, with OpenAI's client on `inflight serve`.

One test for each capability of the executor: structured output in every form, beams, words and tokens that
may not come, salts, priorities, and what becomes of stop strings and long prompts.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from support.http import post
from support.metrics import active_requests
from support.processes import wait_until
from support.servers import MODEL_ARGUMENTS, MODEL_NAME, Server, Start, wait_ready

MESSAGES: list[Any] = [{"role": "user", "content": "What is machine learning?"}]


class Answer(BaseModel):
    color: Literal["red", "blue"]
    sure: bool
    # Bounded: a small model that has begun a list of letters may never end it.
    more: Annotated[list[Literal["a", "b"]], Field(max_length=2)] | None


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["x", "y"]}},
    "required": ["kind"],
    "additionalProperties": False,
}


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"max_tokens": 40, "temperature": 0, "messages": MESSAGES, **fields}
    return client.chat.completions.create(model=MODEL_NAME, **fields)


def text(client: openai.OpenAI, **extra: Any) -> str:
    """An answer to a request with these extensions."""
    content = ask(client, extra_body=extra).choices[0].message.content
    assert isinstance(content, str)
    return content


@pytest.fixture(scope="module", autouse=True)
def _guided() -> None:
    pytest.importorskip("llguidance", reason="pip install 'inflight-llm[guided]'")


def test_a_pydantic_model_is_parsed(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model=MODEL_NAME, messages=MESSAGES, response_format=Answer, max_tokens=200, temperature=0
    )
    assert parsed.choices[0].finish_reason == "stop"
    assert isinstance(parsed.choices[0].message.parsed, Answer)
    with client.chat.completions.stream(
        model=MODEL_NAME, messages=MESSAGES, response_format=Answer, max_tokens=200, temperature=0
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == parsed.choices[0].message.parsed


def test_an_answer_that_is_cut_says_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL_NAME, messages=MESSAGES, response_format=Answer, max_tokens=2, temperature=0
        )


@pytest.mark.parametrize(
    "extra",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        {"response_format": {"type": "json", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
    ],
)
def test_every_form_of_a_schema_is_followed(client: openai.OpenAI, extra: dict[str, Any]) -> None:
    assert json.loads(text(client, **extra))["kind"] in ("x", "y")


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"response_format": {"type": "regex", "regex": "[0-9]{4}"}}, "[0-9]{4}"),
        ({"guided_regex": "(a|b)-[0-9]"}, "[ab]-[0-9]"),
        ({"structured_outputs": {"choice": ["yes.", "no?"]}}, r"yes\.|no\?"),
        ({"guided_choice": ["one", "two (2)"]}, r"one|two \(2\)"),
        ({"guided_grammar": 'root ::= "x" digit\ndigit ::= [0-9]'}, "x[0-9]"),
        ({"response_format": {"type": "ebnf", "ebnf": 'root ::= "ab" | "cd"'}}, "ab|cd"),
    ],
)
def test_expressions_choices_and_grammars_are_followed(
    client: openai.OpenAI, extra: dict[str, Any], pattern: str
) -> None:
    assert re.fullmatch(pattern, text(client, **extra))


def test_structural_tags_are_followed(client: openai.OpenAI) -> None:
    structure = {"begin": "<f>", "schema": SCHEMA, "end": "</f>"}
    answer = text(client, structural_tag={"structures": [structure], "triggers": ["<f"]})
    assert answer == ask(client).choices[0].message.content


def test_a_json_object_is_an_object(client: openai.OpenAI) -> None:
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=300, seed=3)
    content = answer.choices[0].message.content
    assert content.lstrip().startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(content), dict)


@pytest.mark.parametrize(
    ("extra", "param", "part"),
    [
        ({"guided_json": {"properties": {"a": {"not": {}}}}}, "guided_json", "`/properties/a/not`"),
        ({"guided_regex": "("}, "guided_regex", "regular expression"),
        ({"guided_grammar": "root ::= missing"}, "guided_grammar", "guided_decoding_guide"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "Send only one"),
    ],
)
def test_what_cannot_be_followed_is_400(
    client: openai.OpenAI, extra: dict[str, Any], param: str, part: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, extra_body=extra, stream=stream)
        assert refused.value.param == param
        assert part in refused.value.message


def test_beams_are_ranked(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"logprobs": True, "max_tokens": 12}

    def score(choice: Any) -> float:
        values: list[float] = [entry.logprob for entry in choice.logprobs.content]
        return sum(values) / len(values)

    beams = ask(client, n=3, extra_body={"use_beam_search": True}, **fields).choices
    assert len({beam.message.content for beam in beams}) == 3
    assert score(beams[0]) >= score(beams[1]) >= score(beams[2])
    best = ask(client, extra_body={"num_beams": 3}, **fields).choices
    assert [beam.message.content for beam in best] == [beams[0].message.content]
    with ask(client, extra_body={"num_beams": 3}, stream=True, **fields) as chunks:
        parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(parts) == beams[0].message.content
    ranked = client.completions.create(
        model=MODEL_NAME,
        prompt="Machine learning is",
        n=2,
        best_of=4,
        max_tokens=8,
        extra_body={"use_beam_search": True, "length_penalty": 0.5, "early_stopping": True},
    )
    assert [choice.index for choice in ranked.choices] == [0, 1]


def test_bad_words_do_not_come(client: openai.OpenAI) -> None:
    plain = ask(client).choices[0].message.content
    word = max(re.findall(r"[A-Za-z]+", plain), key=len)
    without = text(client, bad_words=[word])
    assert word not in without


def test_runs_of_tokens_come_once(client: openai.OpenAI) -> None:
    answer = ask(client, logprobs=True, max_tokens=60, extra_body={"no_repeat_ngram_size": 1})
    tokens = [entry.token for entry in answer.choices[0].logprobs.content]
    assert len(set(tokens)) == len(tokens)


def test_only_allowed_tokens_come(client: openai.OpenAI) -> None:
    answer = ask(client, logprobs=True, max_tokens=6, extra_body={"allowed_token_ids": [260, 261]})
    assert len({entry.token for entry in answer.choices[0].logprobs.content}) <= 2
    assert answer.choices[0].finish_reason == "length"


def test_a_salt_parts_the_cache(client: openai.OpenAI) -> None:
    found = []
    for salt in ("one", "one", "two"):
        answer = ask(client, max_tokens=2, extra_body={"cache_salt": salt})
        found.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert found[0] == found[2] == 0
    assert found[1] > 0


@pytest.mark.parametrize("extra", [{"min_p": 1.0}, {"top_k": 1}])
def test_only_the_likeliest_tokens_are_drawn(client: openai.OpenAI, extra: dict[str, Any]) -> None:
    greedy = ask(client).choices[0].message.content
    drawn = {"temperature": 2, "seed": 7}
    assert ask(client, **drawn).choices[0].message.content != greedy
    assert ask(client, **drawn, extra_body=extra).choices[0].message.content == greedy


def test_what_came_before_is_penalized(client: openai.OpenAI) -> None:
    def distinct(**extra: Any) -> int:
        extra = {"ignore_eos": True, **extra}
        answer = ask(client, logprobs=True, max_tokens=60, extra_body=extra)
        return len({entry.token for entry in answer.choices[0].logprobs.content})

    assert distinct(repetition_penalty=2.0) > distinct()


def test_special_tokens_are_shown_where_asked(client: openai.OpenAI) -> None:
    special = 3
    for skip in (True, False):
        extra = {"skip_special_tokens": skip, "allowed_token_ids": [special]}
        [choice] = ask(client, max_tokens=3, extra_body=extra).choices
        assert choice.message.content == ("" if skip else "<|im_start|>" * 3)


def test_an_answer_that_was_begun_is_continued(client: openai.OpenAI) -> None:
    plain = ask(client).choices[0].message.content
    begun = plain[: plain.index(" ", len(plain) // 2)]
    messages = [*MESSAGES, {"role": "assistant", "content": begun}]
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    rest = ask(client, messages=messages, extra_body=extra).choices[0].message.content
    assert (begun + rest).startswith(plain)


def test_variables_reach_the_template(client: openai.OpenAI) -> None:
    def prompt(**extra: Any) -> Any:
        return ask(client, max_tokens=1, extra_body={"return_token_ids": True, **extra}).prompt_token_ids

    plain = prompt()
    assert prompt(chat_template_kwargs={"bos_token": ""}) == plain[1:]
    assert plain[: len(prompt(add_generation_prompt=False))] == prompt(add_generation_prompt=False)
    assert len(prompt(add_generation_prompt=False)) < len(plain)
    assert prompt(add_special_tokens=True) == [plain[0], *plain]


def test_a_priority_goes_before_those_that_came_earlier(start: Start) -> None:
    """Each waits for the one place in the batch; the last to come is urgent."""
    process = start(
        "serve",
        *MODEL_ARGUMENTS,
        f"--served-model-name={MODEL_NAME}",
        "--executor-option=max_batch_size=1",
        "--max-queue-wait-s=60",
        "--port=0",
        "--grpc-port=0",
        "--metrics-port=0",
    )
    server = Server(wait_ready(process), process.address("grpc"), process.address("metrics"), MODEL_NAME)
    ended = []

    def asked(client: openai.OpenAI, priority: int) -> None:
        # Long enough that their ends are seen in their order.
        ask(client, max_tokens=400, extra_body={"priority": priority, "ignore_eos": True})
        ended.append(priority)

    def waits(waiting: int) -> None:
        wait_until("it waits", lambda: active_requests(server.metrics) == waiting + 1)

    with server.client() as client, ThreadPoolExecutor(3) as pool:
        # More than one may wait once the worker has seen how fast others end.
        with ThreadPoolExecutor(2) as two:
            list(two.map(lambda _: text(client), range(6)))
        holder = ask(client, stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
        next(iter(holder))
        for waiting, priority in enumerate((5, 0, -5), 1):
            pool.submit(asked, client, priority)
            waits(waiting)
        holder.close()
    assert ended == [-5, 0, 5]
    with server.client() as client, pytest.raises(openai.BadRequestError) as refused:
        text(client, priority=1000)
    assert refused.value.param == "priority"


def test_a_stop_string_is_told_and_shown_where_asked(client: openai.OpenAI) -> None:
    plain = ask(client).choices[0].message.content
    stop = plain[5:9]
    for stream in (False, True):
        for shows in (False, True):
            answer = ask(client, stop=[stop], stream=stream, extra_body={"include_stop_str_in_output": shows})
            if stream:
                chunks = [chunk.choices[0] for chunk in answer if chunk.choices]
                content = "".join(chunk.delta.content or "" for chunk in chunks)
                last = chunks[-1]
            else:
                last = answer.choices[0]
                content = last.message.content
            end = plain.index(stop) + (len(stop) if shows else 0)
            assert content == plain[:end]
            assert (last.finish_reason, last.stop_reason) == ("stop", stop)


def test_tokens_are_listed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"extra_body": {"return_token_ids": True, "return_tokens_as_token_ids": True}}
    whole = ask(client, logprobs=True, max_tokens=12, **asked)
    choice = whole.choices[0]
    assert len(whole.prompt_token_ids) == whole.usage.prompt_tokens
    assert len(choice.token_ids) == whole.usage.completion_tokens
    named = [entry.token for entry in choice.logprobs.content]
    assert named == [f"token_id:{token}" for token in choice.token_ids]
    chunks = list(ask(client, stream=True, max_tokens=12, **asked))
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids
    told = [token for chunk in chunks for token in getattr(chunk.choices[0], "token_ids", None) or []]
    assert told == choice.token_ids
    completion = client.completions.create(
        model=MODEL_NAME, prompt=[whole.prompt_token_ids, [5, 6]], max_tokens=2, temperature=0, **asked
    )
    assert [one.prompt_token_ids for one in completion.choices] == [whole.prompt_token_ids, [5, 6]]


def test_usage_comes_with_every_event(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(ask(client, stream=True, stream_options=options, max_tokens=8))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == counts[-2]
    assert len({chunk.usage.prompt_tokens for chunk in chunks}) == 1


def test_a_prompt_is_scored(client: openai.OpenAI) -> None:
    answer = ask(client, max_tokens=1, extra_body={"prompt_logprobs": 2, "return_token_ids": True})
    first, *others = answer.prompt_logprobs
    assert first is None
    for token, scored in zip(answer.prompt_token_ids[1:], others, strict=True):
        assert 2 <= len(scored) <= 3
        own = scored[str(token)]
        best = max(entry["logprob"] for entry in scored.values())
        assert own["logprob"] <= best
        assert (own["rank"] == 1) == (own["logprob"] == best)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, stream=True, extra_body={"prompt_logprobs": 1})
    assert refused.value.param == "prompt_logprobs"


def test_a_prompt_is_cut_to_its_end(server: Server, client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL_NAME, "max_tokens": 4, "temperature": 0}
    prompt = "one two three four five six seven eight"
    cut = client.completions.create(**fields, prompt=prompt, extra_body={"truncate_prompt_tokens": 3})
    assert cut.usage is not None
    assert cut.usage.prompt_tokens == 3
    whole = post(server.http, "/tokenize", {"model": MODEL_NAME, "prompt": prompt}).json()["tokens"]
    for side, kept in (("left", whole[-3:]), ("right", whole[:3])):
        body = {"truncate_prompt_tokens": 3, "truncation_side": side, "return_token_ids": True}
        cut = client.completions.create(**fields, prompt=prompt, extra_body=body)
        assert cut.choices[0].prompt_token_ids == kept
    long = client.completions.create(
        **fields, prompt=prompt * 20_000, extra_body={"truncate_prompt_tokens": -1}
    )
    assert long.usage is not None
    models = client.models.list().data
    assert long.usage.total_tokens <= max(getattr(model, "max_model_len", 1 << 30) for model in models)
    assert server.model == MODEL_NAME


def test_log_probabilities_of_named_tokens(client: openai.OpenAI) -> None:
    named = {"logprob_token_ids": [7, 2000, 9], "return_tokens_as_token_ids": True}
    answer = ask(client, logprobs=True, max_tokens=4, extra_body=named).choices[0]
    every: dict[str, Any] = {"prompt": "Hi", "max_tokens": 3, "temperature": 0}
    for token in answer.logprobs.content:
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == token.logprob
        assert [top.token for top in token.top_logprobs[1:]] == ["token_id:7", "token_id:2000", "token_id:9"]
        assert all(top.logprob < token.logprob for top in token.top_logprobs[1:])
    best = client.completions.create(
        model=MODEL_NAME, logprobs=3, extra_body={"return_tokens_as_token_ids": True}, **every
    ).choices[0]
    likeliest = list(best.logprobs.top_logprobs[0])
    named["logprob_token_ids"] = [int(name.removeprefix("token_id:")) for name in likeliest]
    same = client.completions.create(model=MODEL_NAME, logprobs=1, extra_body=named, **every).choices[0]
    assert same.logprobs.top_logprobs[0] == pytest.approx(best.logprobs.top_logprobs[0], abs=1e-5)
    assert set(likeliest) <= set(same.logprobs.top_logprobs[1])


def test_tokens_are_named_where_log_probabilities_are_asked_for(client: openai.OpenAI, paced: Server) -> None:
    for fields in ({}, {"logprobs": True, "extra_body": {"logprob_token_ids": []}}):
        with pytest.raises(openai.BadRequestError, match="logprob_token_ids"):
            ask(client, **{"extra_body": {"logprob_token_ids": [1]}, **fields})
    body = {"model": paced.model, "messages": MESSAGES, "logprobs": True, "logprob_token_ids": [1]}
    refused = post(paced.http, "/v1/chat/completions", body)
    assert refused.status == 400
