"""The executor of a model that sees: it decodes images on a thread of its own, and the engine gets pixels.

With `INFLIGHT_TEST_DEVICE` `cpu` or `cuda` in the environment PyTorch computes there.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.executors import images
from inflight.executors.base import Executor, FinishReason, StatusCode
from inflight.executors.reference import create
from inflight.executors.reference.executor import ReferenceExecutor
from support.processes import wait_until

from . import seen
from .quantize import make
from .seen import CASES, IMAGE, NAME, asked
from .support import FIXTURES, AllTold, collect, request, unpack

BACKENDS = ("pytorch",) if "INFLIGHT_TEST_DEVICE" in os.environ else ("numpy", "pytorch")


def made(backend: str, model: str | Path = NAME, **options: Any) -> Executor:
    device = os.environ.get("INFLIGHT_TEST_DEVICE", "cpu")
    return create(
        FIXTURES / model,
        device,
        backend=backend,
        dtype="float32",
        max_batch_size=4,
        max_num_tokens=64,
        tokens_per_block=4,
        max_tokens_in_paged_kv_cache=2048,
        **options,
    )


@pytest.fixture(params=BACKENDS)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "pytorch":
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
    subject = made(request.param)
    yield subject
    subject.shutdown()


def drain(subject: Executor, count: int) -> tuple[AllTold, dict[int, tuple[int, str]]]:
    """What is told until ``count`` requests are final, and the errors by client id."""
    told: AllTold = {}
    errors: dict[int, tuple[int, str]] = {}
    while sum(one.final for one in told.values()) < count:
        batch = subject.await_responses(60.0)
        rows = unpack(batch)
        assert rows, "nothing came within a minute"
        errors |= {rows[row].client_id: (code, text) for row, code, text in batch.errors}
        collect(rows, told)
    return told, errors


def test_images_are_prepared_and_seen(executor: Executor) -> None:
    assert "images" in executor.info().capabilities
    cases = [seen.case(name) for name in CASES]
    for _ in range(2):  # the second time from the cache
        requests = [asked(at, one.prompt, one.numbers) for at, one in enumerate(cases)]
        executor.enqueue([*requests, request(9, [5, 6, 7], 4), asked(8, [5, IMAGE, IMAGE], [0])])
        told, errors = drain(executor, len(cases) + 2)
        assert [told[at, 0].tokens for at in range(len(cases))] == [one.tokens for one in cases]
        assert len(told[9, 0].tokens) == 4
        assert errors[8][0] == StatusCode.INVALID_ARGUMENT
        assert "2 placeholders" in errors[8][1]


def test_a_request_may_be_cancelled_while_its_images_are_decoded(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released, open_image = threading.Event(), threading.Event(), images._open

    def wait(what: str, file: bytes) -> Any:
        begun.set()
        assert released.wait(20)
        return open_image(what, file)

    monkeypatch.setattr(images, "_open", wait)
    case = seen.case("one")
    executor.enqueue([asked(1, case.prompt, case.numbers), asked(2, case.prompt, case.numbers)])
    assert begun.wait(20)
    # Others do not wait for it.
    executor.enqueue([request(3, [5, 6, 7], 4)])
    assert len(drain(executor, 1)[0][3, 0].tokens) == 4
    executor.cancel([1])
    released.set()
    told, _ = drain(executor, 2)
    assert told[1, 0].finish_reason == FinishReason.CANCELLED
    assert told[2, 0].tokens == case.tokens


def test_cancelled_requests_leave_no_pixels_behind(executor: Executor) -> None:
    draw = np.random.default_rng(6)
    cases = [seen.case(name) for name in CASES]
    requests = [asked(at, one.prompt, one.numbers) for at, one in enumerate(cases * 8)]
    executor.enqueue(requests)
    executor.cancel(draw.integers(0, len(requests), 15).tolist())
    told, _ = drain(executor, len(requests))
    for at, one in enumerate(cases * 8):
        if told[at, 0].error is None and told[at, 0].finish_reason == FinishReason.LENGTH:
            assert told[at, 0].tokens == one.tokens
    assert isinstance(executor, ReferenceExecutor)
    seeing = executor._seeing
    assert seeing is not None
    del told
    wait_until("nobody holds an image", lambda: not seeing._in_use)
    assert executor._engine.pool.used == 0


@pytest.mark.parametrize("case", ["no Pillow", "no tower"])
def test_who_cannot_see_refuses_images_by_name(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if case == "no Pillow":
        monkeypatch.setattr(images, "are_decodable", lambda: False)
    subject = made(BACKENDS[0], NAME if case == "no Pillow" else "llama")
    assert "images" not in subject.info().capabilities
    subject.enqueue([asked(1, [5, IMAGE], [0]), request(2, [5, 6, 7], 4)])
    told, errors = drain(subject, 2)
    assert errors == {1: (StatusCode.UNIMPLEMENTED, errors[1][1])}
    assert "`inflight_images`" in errors[1][1]
    assert len(told[2, 0].tokens) == 4
    subject.shutdown()


def test_a_stream_continues_only_where_images_become_the_same_tokens() -> None:
    identities = []
    for most in (None, 1000, 8):
        subject = made(BACKENDS[0], max_image_tokens=most)
        identities.append(subject.info().weights)
        subject.shutdown()
    # The second bound is above the checkpoint's.
    assert identities[0] == identities[1] != identities[2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_quantized_checkpoint_sees_what_its_twin_does(backend: str, tmp_path: Path) -> None:
    """Of its tower too."""
    if backend == "pytorch":
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
    case, found = seen.case("two"), []
    for directory in make(NAME, "fp8_block", tmp_path):
        shutil.copy(FIXTURES / NAME / "preprocessor_config.json", directory)
        subject = made(backend, directory)
        subject.enqueue([asked(1, case.prompt, case.numbers)])
        found.append(drain(subject, 1)[0][1, 0].tokens)
        subject.shutdown()
    assert found[0] == found[1]


def test_random_weights_see_as_well() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
    subject = made("pytorch", load_format="dummy", max_image_tokens=8)
    case = seen.case("two")
    subject.enqueue([asked(1, case.prompt, case.numbers)])
    assert len(drain(subject, 1)[0][1, 0].tokens) == 12
    subject.shutdown()
