"""Chat completions on the real model, through the real OpenAI client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from support.servers import MODEL, Server

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is machine learning?"}]


def greedy(client: openai.OpenAI, model: str, max_tokens: int = 24) -> ChatCompletion:
    return client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=max_tokens, logprobs=True
    )


def text_of(answer: ChatCompletion, index: int = 0) -> str:
    content = answer.choices[index].message.content
    assert content is not None
    return content


@pytest.mark.skipif(MODEL is not None, reason="only the embedded model is known to make sense")
def test_the_embedded_model_answers_sensibly_and_ends_its_turn(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(model=server.model, messages=QUESTION)
    text = text_of(answer)
    assert "learn" in text.lower()
    assert answer.choices[0].finish_reason == "stop"
    assert "<|" not in text


def test_an_answer_has_openai_shape_and_exact_usage(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(
        model=server.model, messages=QUESTION, max_tokens=7, extra_body={"ignore_eos": True}, logprobs=True
    )
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == server.model
    assert answer._request_id
    [choice] = answer.choices
    assert choice.index == 0
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert len(choice.logprobs.content or []) == 7
    usage = answer.usage
    assert usage is not None
    assert usage.completion_tokens == 7
    assert usage.total_tokens == usage.prompt_tokens + 7
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_a_stream_adds_up_to_the_whole_answer(client: openai.OpenAI, server: Server) -> None:
    whole = greedy(client, server.model)
    stream = client.chat.completions.create(
        model=server.model,
        messages=QUESTION,
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == text_of(whole)
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_the_stream_helper_sees_one_role_and_a_final_answer(client: openai.OpenAI, server: Server) -> None:
    text = text_of(greedy(client, server.model))
    # The helper takes `length` for a failure; a stop string ends any model's answer.
    stop = text[len(text) // 2 :][:4]
    with client.chat.completions.stream(
        model=server.model, messages=QUESTION, temperature=0, max_tokens=24, stop=stop
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].message.content == text[: text.index(stop)]


def test_n_choices_are_numbered_and_counted(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(
        model=server.model,
        messages=QUESTION,
        n=4,
        temperature=2,
        seed=3,
        max_tokens=8,
        extra_body={"ignore_eos": True},
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4 * 8
    assert len({text_of(answer, index) for index in range(4)}) > 1


def test_n_streams_keep_their_choices_apart(client: openai.OpenAI, server: Server) -> None:
    def texts(answer: ChatCompletion) -> list[str]:
        return [text_of(answer, index) for index in range(3)]

    whole = client.chat.completions.create(
        model=server.model, messages=QUESTION, n=3, temperature=1.5, seed=5, max_tokens=8
    )
    streamed = ["", "", ""]
    ended: dict[int, str] = {}
    for chunk in client.chat.completions.create(
        model=server.model, messages=QUESTION, n=3, temperature=1.5, seed=5, max_tokens=8, stream=True
    ):
        for choice in chunk.choices:
            assert choice.index not in ended
            streamed[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ended[choice.index] = choice.finish_reason
    assert streamed == texts(whole)
    assert ended == {choice.index: choice.finish_reason for choice in whole.choices}


def test_a_seed_repeats_an_answer(client: openai.OpenAI, server: Server) -> None:
    # Of facts the embedded model is sure at any temperature.
    story: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a story about a cat."}]

    def sample(seed: int) -> str:
        return text_of(
            client.chat.completions.create(
                model=server.model, messages=story, seed=seed, temperature=2, max_tokens=16
            )
        )

    first = sample(11)
    assert sample(11) == first
    assert any(sample(seed) != first for seed in (12, 13, 14, 15))


def test_a_stop_string_across_tokens_ends_the_answer_before_it(client: openai.OpenAI, server: Server) -> None:
    whole = greedy(client, server.model)
    text = text_of(whole)
    assert whole.choices[0].logprobs is not None
    tokens = [token.token for token in whole.choices[0].logprobs.content or []]
    assert "".join(tokens) == text
    # Two characters on each side of every border between two tokens.
    stops = {
        text[max(0, border - 2) : border + 2]
        for border in (len("".join(tokens[:count])) for count in range(2, len(tokens) - 2, 3))
    }
    assert stops
    for stop in stops:
        for stream in (False, True):
            if stream:
                chunks = list(
                    client.chat.completions.create(
                        model=server.model,
                        messages=QUESTION,
                        temperature=0,
                        max_tokens=24,
                        stop=["never said", stop],
                        stream=True,
                    )
                )
                choices = [choice for chunk in chunks for choice in chunk.choices]
                stopped = "".join(choice.delta.content or "" for choice in choices)
                reason = choices[-1].finish_reason
            else:
                answer = client.chat.completions.create(
                    model=server.model, messages=QUESTION, temperature=0, max_tokens=24, stop=stop
                )
                stopped, reason = text_of(answer), answer.choices[0].finish_reason
            assert stopped == text[: text.index(stop)], (stop, stream)
            assert reason == "stop", (stop, stream)


def test_a_stop_string_that_does_not_come_changes_nothing(client: openai.OpenAI, server: Server) -> None:
    text = text_of(greedy(client, server.model))
    answer = client.chat.completions.create(
        model=server.model, messages=QUESTION, temperature=0, max_tokens=24, stop=[text + "!", "\x00"]
    )
    assert text_of(answer) == text


def test_log_probabilities_are_the_sampler_s(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(
        model=server.model, messages=QUESTION, temperature=0, max_tokens=8, logprobs=True, top_logprobs=5
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content
    for token in content:
        values = [top.logprob for top in token.top_logprobs]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
        assert all(value <= 0 for value in values)
        # Greedy: the token is the likeliest.
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob, abs=1e-4)
        assert bytes(token.bytes or []).decode("utf-8", "replace") == token.token
    stream = client.chat.completions.create(
        model=server.model,
        messages=QUESTION,
        temperature=0,
        max_tokens=8,
        logprobs=True,
        top_logprobs=5,
        stream=True,
    )
    streamed = [
        token
        for chunk in stream
        for choice in chunk.choices
        if choice.logprobs is not None
        for token in choice.logprobs.content or []
    ]
    assert [token.token for token in streamed] == [token.token for token in content]
    for one, other in zip(streamed, content, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


def test_log_probabilities_without_alternatives(client: openai.OpenAI, server: Server) -> None:
    answer = greedy(client, server.model, 3)
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert [token.top_logprobs for token in content] == [[]] * len(content)


def test_a_logit_bias_decides_the_token(client: openai.OpenAI, server: Server) -> None:
    def answer(bias: dict[str, int]) -> ChatCompletion:
        return client.chat.completions.create(
            model=server.model,
            messages=QUESTION,
            temperature=0,
            max_tokens=4,
            logit_bias=bias,
            extra_body={"ignore_eos": True},
            logprobs=True,
        )

    forced = answer({"70": 100})
    assert forced.choices[0].logprobs is not None
    tokens = [token.token for token in forced.choices[0].logprobs.content or []]
    assert len(tokens) == 4
    assert len(set(tokens)) == 1
    banned = answer({"70": 100, "71": -100})
    assert text_of(banned) == text_of(forced)


def test_penalties_change_what_repeats(client: openai.OpenAI, server: Server) -> None:
    def answer(**fields: Any) -> str:
        # Two tokens are far ahead of all others; penalties grow until the second is preferred.
        return text_of(
            client.chat.completions.create(
                model=server.model,
                messages=QUESTION,
                temperature=0,
                max_tokens=32,
                logit_bias={"70": 100, "71": 90},
                extra_body={"ignore_eos": True},
                **fields,
            )
        )

    assert len(set(answer())) == 1
    assert answer(presence_penalty=2.0, frequency_penalty=2.0) != answer()


def test_every_role_and_text_parts_are_taken(client: openai.OpenAI, server: Server) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]
    answer = client.chat.completions.create(model=server.model, messages=messages, max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 10


def test_absent_max_tokens_is_the_rest_of_the_context(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(
        model=server.model,
        messages=QUESTION,
        temperature=0,
        extra_body={"ignore_eos": True, "min_tokens": 40},
        stop=None,
        max_completion_tokens=40,
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40
    assert answer.choices[0].finish_reason == "length"


def test_the_models_are_listed(client: openai.OpenAI, server: Server) -> None:
    [model] = client.models.list().data
    assert model.id == server.model
    assert model.object == "model"
    assert client.models.retrieve(server.model) == model
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("gpt-9")
    assert raised.value.code == "model_not_found"
