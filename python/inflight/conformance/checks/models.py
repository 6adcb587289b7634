"""`/v1/models`."""

from __future__ import annotations

from inflight.conformance.check import check, expect, expect_equal
from inflight.conformance.target import Target

TOPIC = "Models"


@check(TOPIC, "lists its models")
def lists(target: Target) -> None:
    models = target.openai.models.list().data
    expect(any(model.id == target.model for model in models), f"`{target.model}` is not listed")
    for model in models:
        expect_equal(f"`object` of `{model.id}`", model.object, "model")


@check(TOPIC, "describes one model")
def describes(target: Target) -> None:
    expect_equal("`id`", target.openai.models.retrieve(target.model).id, target.model)


@check(TOPIC, "lists its models to Anthropic's SDK, page by page", optional=True)
def lists_to_anthropic(target: Target) -> None:
    page = target.anthropic.models.list(limit=1)
    ids = [model.id for model in page]
    expect(target.model in ids, f"`{target.model}` is not listed")
    model = target.anthropic.models.retrieve(target.model)
    expect_equal("`type` and `id`", (model.type, model.id), ("model", target.model))
    expect(model.display_name and model.created_at, "a name or a time is missing")


@check(TOPIC, "answers 404 for an unknown model")
def unknown(target: Target) -> None:
    import openai

    try:
        target.openai.models.retrieve("no-such-model")
    except openai.NotFoundError as error:
        expect_equal("`code`", error.code, "model_not_found")
        return
    raise AssertionError("`no-such-model` was described")
