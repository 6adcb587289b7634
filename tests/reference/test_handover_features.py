"""What a prompt may come with, from one executor to another: adapters, images, guides, guesses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inflight.executors.base import NamedTensor
from inflight.launch.model import DEMO_DIRECTORY as DEMO

from . import seen
from .test_guides import tensors as guide
from .test_lora import matrices, save_peft, task
from .transferring import Asking, pair, phase, single

PROMPT = [3 + (7 * place) % 50 for place in range(41)]


def check(
    workers: list[Asking], whole: Asking, prompt: list[int], tensors: list[NamedTensor], **fields: Any
) -> dict[str, Any]:
    """Two workers answer as one; returns the transfers."""
    context, generation = workers
    expected = whole.ask(prompt, tensors=tensors, **fields)
    assert expected.error is None
    told = context.ask(prompt, tensors=[*tensors, *phase("context_only")], **fields)
    asked = [*tensors, *phase("generation_only", told.params)]
    answer = generation.ask(prompt, tensors=asked, **fields)
    assert (answer.error, answer.tokens) == (None, expected.tokens)
    context.wait_until_free()
    generation.wait_until_free()
    return generation.transferred()


def test_adapters(tmp_path: Path) -> None:
    for name in ("1", "2"):
        save_peft(tmp_path / name, matrices("llama", int(name)))
    options: dict[str, Any] = {"lora_adapter_dir": str(tmp_path)}
    with pair(**options) as workers, single(**options) as whole:
        for count, task_id in enumerate((1, 2), 1):
            # What one adapter computed is nothing to the other.
            assert check(workers, whole, PROMPT, [task(task_id)]) == {"blocks": 11 * count}
        context, generation = workers
        told = context.ask(PROMPT, tensors=[task(1), *phase("context_only")])
        asked = [task(2), *phase("generation_only", told.params)]
        assert generation.ask(PROMPT, tensors=asked).error is None
        assert generation.transferred()["other_prompt"] == 1


@pytest.mark.parametrize("name", seen.CASES)
def test_images(name: str) -> None:
    case = seen.case(name)
    pictures = seen.files(*map(seen.picture_file, case.numbers))
    with pair(seen.NAME) as workers, single(seen.NAME) as whole:
        transferred = check(workers, whole, case.prompt, [pictures])
        assert transferred.pop("blocks") > 0
        assert not transferred


def test_guides() -> None:
    pytest.importorskip("llguidance", reason="pip install 'inflight-llm[guided]'")
    options: dict[str, Any] = {"tokens_per_block": 8}
    tensors = guide("regex", "[a-z]{3}(, [a-z]{3}){5}")
    prompt = [40 + place for place in range(50)]
    with pair(str(DEMO), **options) as workers, single(str(DEMO), **options) as whole:
        for sampling in ({}, {"top_p": 0.95, "temperature": 1.3, "seed": 4}):
            check(workers, whole, prompt, tensors, max_tokens=60, sampling=sampling, end_id=4)


def test_guesses() -> None:
    """Of a worker that checks several tokens at once."""
    options: dict[str, Any] = {"max_draft_len": 3}
    prompt = [3, 4, 5, 6] * 10
    with pair(**options) as workers, single(**options) as whole:
        assert check(workers, whole, prompt, [], max_tokens=30) == {"blocks": 10}
