"""LoRA adapters that are loaded and unloaded while requests run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.errors import UserMistake
from inflight.executors.base import AdapterRefused, Executor, Request, StatusCode
from inflight.executors.reference import create
from inflight.executors.reference.core.adapters import Adapters, task_id_of
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.refusal import Refused
from inflight.executors.reference.executor import ReferenceExecutor
from inflight.executors.reference.model.config import load_config

from .support import FIXTURES, engine, run
from .test_lora import PROMPTS, asked, matrices, merge, same, save_peft, sent, serving, task

SIZE = sum(down.nbytes + up.nbytes for down, up in matrices("llama", 1).values())

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture
def executor() -> Iterator[ReferenceExecutor]:
    """With a cache for two adapters."""
    made = create(
        FIXTURES / "llama",
        "cpu",
        lora_cache_max_adapter_size=8,
        lora_cache_host_memory_bytes=2 * SIZE,
        lora_max_adapters=2,
    )
    assert isinstance(made, ReferenceExecutor)
    yield made
    made.shutdown()


def install(adapters: Adapters, name: str, path: Path) -> int:
    return adapters.install(adapters.read(name, path))


def answers(executor: Executor, *requests: Request) -> dict[int, tuple[list[int], str | None]]:
    """Tokens and error of each, by client id."""
    executor.enqueue(requests)
    tokens: dict[int, list[int]] = {one.client_id: [] for one in requests}
    errors: dict[int, str | None] = dict.fromkeys(tokens)
    missing = len(requests)
    while missing:
        batch = executor.await_responses(30.0)
        client_ids = np.frombuffer(batch.client_ids, "<u8").tolist()
        offsets = np.frombuffer(batch.token_offsets, "<u4").tolist()
        ids = np.frombuffer(batch.token_ids, "<i4").tolist()
        for row, client_id in enumerate(client_ids):
            tokens[client_id] += ids[offsets[row] : offsets[row + 1]]
        for row, _, text in batch.errors:
            errors[client_ids[row]] = text
        missing -= sum(batch.finals)
    return {client_id: (tokens[client_id], errors[client_id]) for client_id in tokens}


@pytest.mark.parametrize("backend", ["numpy", "pytorch"])
def test_a_loaded_adapter_answers_until_it_is_unloaded(tmp_path: Path, backend: str) -> None:
    if backend == "pytorch":
        pytest.importorskip("torch")
    subject = create(FIXTURES / "llama", "cpu", backend=backend)
    assert isinstance(subject, ReferenceExecutor)
    adapter = matrices("llama", 5)
    save_peft(tmp_path / "files", adapter)
    merged = create(merge(tmp_path / "merged", "llama", adapter), "cpu", backend=backend)
    try:
        expected = answers(merged, asked(1, PROMPTS[0]))[1]
        base = answers(subject, asked(1, PROMPTS[0]))[1]
        assert base != expected
        assert "adapter_loading" in subject.info().capabilities
        task_id = subject.load_adapter("support", str(tmp_path / "files"))
        assert task_id == task_id_of("support")
        told = answers(subject, asked(1, PROMPTS[0], [task(task_id)]), asked(2, PROMPTS[0]))
        assert told == {1: expected, 2: base}
        subject.unload_adapter("support")
        _, error = answers(subject, asked(1, PROMPTS[0], [task(task_id)]))[1]
        assert error == f"LoRA task {task_id} not found in cache. Please send LoRA weights with request"
    finally:
        subject.shutdown()
        merged.shutdown()


DEEP = "[" * 100_000 + "]" * 100_000


def _fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda files: (files / CONFIG).write_text(f'{{"r": {DEEP}}}'), "nested too deeply"),
        (lambda files: (files / CONFIG).write_text("[]"), "JSON object"),
        (lambda files: (files / CONFIG).write_text('{"r": 1e999, "lora_alpha": 1}'), "`r`"),
        (lambda files: (files / CONFIG).write_text(f'{{"r": 1, "lora_alpha": {10**400}}}'), "`lora_alpha`"),
        (lambda files: (files / CONFIG).write_text(" " * 2_000_000), "larger than"),
        (lambda files: _fifo(files / CONFIG), "not a regular file"),
        (lambda files: _fifo(files / WEIGHTS), "not a regular file"),
        (lambda files: (files / WEIGHTS).write_bytes(b"\x10" + b"\0" * 7 + b"["), "truncated"),
        (lambda files: (files / WEIGHTS).unlink(), "cannot be read"),
    ],
)
def test_hostile_files_are_refused_and_the_next_load_works(
    executor: ReferenceExecutor, tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    for name in ("good", "bad"):
        save_peft(tmp_path / name, matrices("llama", 1))
    spoil(tmp_path / "bad")
    with pytest.raises(AdapterRefused, match=words) as refusal:
        executor.load_adapter("bad", str(tmp_path / "bad"))
    # Where the worker keeps its files is not for clients.
    assert "`bad`" in refusal.value.text
    assert str(tmp_path) not in refusal.value.text
    executor.load_adapter("good", str(tmp_path / "good"))


def test_requests_keep_the_adapter_they_started_with(tmp_path: Path) -> None:
    """While it is replaced, and while it is unloaded; its memory is free after the last of them."""
    for name in ("first", "second"):
        save_peft(tmp_path / name, matrices("llama", 1 if name == "first" else 2))
    adapters = Adapters(load_config(FIXTURES / "llama"), 8, 3 * SIZE)
    subject = engine("llama", adapters=adapters)
    expected = [
        run(
            engine(merge(tmp_path / f"merged{seed}", "llama", matrices("llama", seed))),
            [asked(1, PROMPTS[0])],
        )
        for seed in (1, 2)
    ]
    tensors = [task(install(adapters, "support", tmp_path / "first"))]
    iteration = Iteration()
    subject.add([asked(1, PROMPTS[0], tensors)], iteration)
    subject.step(iteration)
    install(adapters, "support", tmp_path / "second")
    assert adapters.memory_bytes == 2 * SIZE
    subject.add([asked(2, PROMPTS[0], tensors)], iteration)
    subject.step(iteration)
    adapters.unload("support")
    subject.add([asked(3, PROMPTS[0], tensors)], iteration)
    assert [row.client_id for row in iteration.rows if row.error] == [3]
    rows = [row for row in iteration.rows if not row.error]
    while subject.has_work:
        iteration = Iteration()
        subject.step(iteration)
        rows += iteration.rows
    for client_id, alone in ((1, expected[0]), (2, expected[1])):
        told = [token for row in rows if row.client_id == client_id for token in row.tokens]
        assert told == alone[1, 0].tokens
    assert adapters.memory_bytes == 0


def test_a_name_that_is_loaded_again_stands_for_its_new_files(
    executor: ReferenceExecutor, tmp_path: Path
) -> None:
    told = []
    for seed in (1, 2):
        save_peft(tmp_path / str(seed), matrices("llama", seed))
        task_id = executor.load_adapter("support", str(tmp_path / str(seed)))
        told.append(answers(executor, asked(seed, PROMPTS[2], [task(task_id)]))[seed][0])
    assert told[0] != told[1]
    # The same files twice are no news.
    executor.load_adapter("support", str(tmp_path / "2"))
    assert answers(executor, asked(3, PROMPTS[2], [task(task_id)]))[3] == (told[1], None)


def test_a_name_takes_the_place_of_what_a_client_sent_under_its_number(tmp_path: Path) -> None:
    named = matrices("llama", 2)
    save_peft(tmp_path / "7", named)
    subject = serving()
    assert run(subject, [asked(1, PROMPTS[0], sent(7, matrices("llama", 1)))])[1, 0].error is None
    adapters = subject.adapters
    assert adapters is not None
    assert install(adapters, "7", tmp_path / "7") == 7
    told = run(subject, [asked(1, PROMPTS[0], [task(7)])])
    same(told, run(engine(merge(tmp_path / "merged", "llama", named)), [asked(1, PROMPTS[0])]))


def test_what_was_read_for_a_request_does_not_outlive_its_name(tmp_path: Path) -> None:
    """A request's adapter is read where no stream waits; the name may be gone when the engine gets to it."""
    save_peft(tmp_path / "files", matrices("llama", 1))
    subject = serving(limit=SIZE)
    adapters = subject.adapters
    assert adapters is not None
    task_id = install(adapters, "support", tmp_path / "files")
    # It is not in the cache any more, so that the request's own copy is read.
    assert run(subject, [asked(1, PROMPTS[0], sent(1, matrices("llama", 2)))])[1, 0].error is None
    request = asked(2, PROMPTS[0], [task(task_id)])
    from inflight.executors.reference.core.extras import read_extras

    lora = read_extras(request).lora
    assert lora is not None
    loaded = adapters.load(lora)
    assert loaded is not None
    adapters.unload("support")
    iteration = Iteration()
    subject.add([request], iteration, loaded={2: loaded})
    [row] = iteration.rows
    assert row.error is not None
    assert "not found in cache" in row.error[1]


def refused(executor: ReferenceExecutor, name: str, path: Path) -> tuple[StatusCode, str]:
    with pytest.raises(AdapterRefused) as refusal:
        executor.load_adapter(name, str(path))
    return refusal.value.code, refusal.value.text


def test_files_that_do_not_fit_are_refused_in_the_words_of_the_start(
    executor: ReferenceExecutor, tmp_path: Path
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [({"use_dora": True}, "use_dora"), ({"r": 9}, "rank is `9`")]
    for place, (values, words) in enumerate(cases):
        folder = tmp_path / str(place) / "bad"
        save_peft(folder, matrices("llama", 1), **values)
        with pytest.raises(UserMistake, match=words) as mistake:
            serving(directory=folder.parent)
        code, text = refused(executor, "bad", folder)
        assert code is StatusCode.INVALID_ARGUMENT
        told = mistake.value.what.replace(str(folder), "bad")  # clients learn no path
        assert text == f"{told}; load one that fits the model"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "adapter_config.json" in refused(executor, "bad", empty)[1]
    save_peft(tmp_path / "cut", matrices("llama", 1))
    weights = tmp_path / "cut" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "`adapter_model.safetensors` is truncated" in refused(executor, "bad", tmp_path / "cut")[1]
    # Nothing has changed.
    assert answers(executor, asked(1, PROMPTS[0]))[1][1] is None


def test_their_number_and_their_memory_are_bounded(executor: ReferenceExecutor, tmp_path: Path) -> None:
    save_peft(tmp_path / "files", matrices("llama", 1))
    files = tmp_path / "files"
    for name in ("a", "b"):
        executor.load_adapter(name, str(files))
    code, text = refused(executor, "c", files)
    assert code is StatusCode.RESOURCE_EXHAUSTED
    assert "`2` adapters are loaded" in text
    assert "`lora_max_adapters`" in text
    executor.load_adapter("a", str(files))
    executor.unload_adapter("b")
    assert executor.load_adapter("7", str(files)) == 7
    executor.unload_adapter("a")
    code, text = refused(executor, "007", files)
    assert code is StatusCode.INVALID_ARGUMENT
    assert "`7`, which `7` has" in text
    with pytest.raises(UserMistake, match="`lora_max_adapters`"):
        Adapters(load_config(FIXTURES / "llama"), 8, 1 << 24, tmp_path, max_names=0)
    with pytest.raises(AdapterRefused, match="no adapter `a` is loaded") as refusal:
        executor.unload_adapter("a")
    assert refusal.value.code is StatusCode.NOT_FOUND


def test_an_adapter_that_has_no_room_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    save_peft(tmp_path / "files", matrices("llama", 1))
    adapters = Adapters(load_config(FIXTURES / "llama"), 8, SIZE)
    subject = engine("llama", adapters=adapters)
    tensors = [task(install(adapters, "a", tmp_path / "files"))]
    iteration = Iteration()
    subject.add([asked(1, PROMPTS[0], tensors)], iteration)
    for name in ("a", "b"):
        with pytest.raises(Refused, match="`lora_cache_host_memory_bytes`"):
            install(adapters, name, tmp_path / "files")
    assert adapters.names == {"a": task_id_of("a")}
    assert run(subject, [asked(2, PROMPTS[0], tensors)])[2, 0].error is None


def test_a_change_does_not_wait_for_requests_to_end(executor: ReferenceExecutor, tmp_path: Path) -> None:
    """Loading goes on beside a stream, and the stream beside it."""
    save_peft(tmp_path / "files", matrices("llama", 1))
    long = asked(1, PROMPTS[0])
    long.max_tokens = 60
    told: dict[int, tuple[list[int], str | None]] = {}
    thread = threading.Thread(target=lambda: told.update(answers(executor, long)))
    thread.start()
    for _ in range(5):
        executor.load_adapter("support", str(tmp_path / "files"))
        executor.unload_adapter("support")
    thread.join(60)
    assert told[1] == answers(executor, long)[1]


def test_an_executor_that_is_shut_down_takes_none(tmp_path: Path) -> None:
    save_peft(tmp_path / "files", matrices("llama", 1))
    subject = create(FIXTURES / "llama", "cpu")
    assert isinstance(subject, ReferenceExecutor)
    subject.shutdown()
    assert refused(subject, "support", tmp_path / "files")[0] is StatusCode.UNAVAILABLE
