"""LoRA adapters that are loaded and unloaded while the PyTorch runtime serves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inflight.executors.base import AdapterRefused, Request, StatusCode
from inflight.executors.tensorrt_llm import adapters
from inflight.model.lora import PEFT_WEIGHTS
from support import double
from trtllm.harness import collect, passed
from trtllm.pytorch_setup import start, write_adapter

BOTH_LINES = True


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Any]:
    """A worker with LoRA and without a folder of adapters."""
    with double.installed():
        made = start(tmp_path, lora_target_modules="attn_q,attn_v")
        yield made
        made.shutdown()


def ask(executor: Any, task_id: int, client_id: int = 1) -> str | None:
    """Why a request for the adapter is refused; None: it is answered."""
    tensors = [passed("lora_task_id", "UINT64", (1,), task_id)]
    executor.enqueue([Request(client_id=client_id, input_token_ids=[10], max_tokens=1, tensors=tensors)])
    errors = collect(executor, client_id)[client_id][-1].errors
    return errors[0][1] if errors else None


def files(tmp_path: Path, name: str, **more: Any) -> str:
    return str(write_adapter(tmp_path / "files", name, **more) / name)


def test_an_adapter_serves_from_its_load_to_its_unload(serving: Any, tmp_path: Path) -> None:
    assert {"lora", "adapter_loading"} <= set(serving.info().capabilities)
    assert serving.info().adapters == ()
    assert ask(serving, 7) == "LoRA task `7` is not loaded"
    task_id = serving.load_adapter("support", files(tmp_path, "a"))
    assert ask(serving, task_id) is None
    sent = double.REQUESTS[-1]["lora_request"].dump()
    assert sent == {
        "lora_name": str(task_id),
        "lora_int_id": task_id,
        "lora_path": str(tmp_path / "files" / "a"),
    }
    serving.unload_adapter("support")
    assert ask(serving, task_id) == f"LoRA task `{task_id}` is not loaded"
    with pytest.raises(AdapterRefused, match="no adapter `support` is loaded") as refusal:
        serving.unload_adapter("support")
    assert refusal.value.code == StatusCode.NOT_FOUND


def test_new_weights_get_a_new_id_because_an_id_keeps_its_weights(serving: Any, tmp_path: Path) -> None:
    first = serving.load_adapter("support", files(tmp_path, "a"))
    assert ask(serving, first) is None
    second = serving.load_adapter("support", files(tmp_path, "b"))
    assert second != first
    assert ask(serving, second, 2) is None
    assert "is not loaded" in str(ask(serving, first, 3))


def test_files_that_change_after_their_load_are_refused(serving: Any, tmp_path: Path) -> None:
    task_id = serving.load_adapter("support", files(tmp_path, "a"))
    weights = tmp_path / "files" / "a" / PEFT_WEIGHTS
    weights.write_bytes(weights.read_bytes() + b"\0")
    assert "publish new weights under a new id" in str(ask(serving, task_id))


@pytest.mark.parametrize(
    ("more", "words"), [({"rank": 65}, "has rank `65`"), ({"module": "k_proj"}, "changes `k_proj`")]
)
def test_what_could_not_be_loaded_is_refused_and_nothing_changes(
    serving: Any, tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    good = serving.load_adapter("support", files(tmp_path, "good"))
    with pytest.raises(AdapterRefused, match=words) as refusal:
        serving.load_adapter("support", files(tmp_path, "bad", **more))
    assert refusal.value.code == StatusCode.INVALID_ARGUMENT
    assert str(tmp_path) not in refusal.value.text
    shutil.rmtree(tmp_path / "files" / "bad")
    with pytest.raises(AdapterRefused, match="is not an adapter's config"):
        serving.load_adapter("other", str(tmp_path / "files" / "bad"))
    assert ask(serving, good) is None


def test_the_number_of_loaded_adapters_is_bounded(
    serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "MAX_LOADED", 1)
    directory = files(tmp_path, "a")
    serving.load_adapter("one", directory)
    serving.load_adapter("one", directory)
    with pytest.raises(AdapterRefused, match="`1` adapters are loaded") as refusal:
        serving.load_adapter("two", directory)
    assert refusal.value.code == StatusCode.RESOURCE_EXHAUSTED
    serving.unload_adapter("one")
    serving.load_adapter("two", directory)


def test_an_adapter_of_the_folder_can_be_unloaded_too(pytorch_executor: Any) -> None:
    assert ask(pytorch_executor, 7) is None
    pytorch_executor.unload_adapter("7")
    assert ask(pytorch_executor, 7, 2) == "LoRA task `7` is not in `lora_adapter_dir`"
    task_id = pytorch_executor.load_adapter("7", "adapters/7")
    assert ask(pytorch_executor, task_id, 3) is None


def test_without_lora_nothing_is_loaded(tmp_path: Path) -> None:
    with double.installed():
        made = start(tmp_path)
        offered = made.info().capabilities
        with pytest.raises(AdapterRefused, match="started without LoRA"):
            made.load_adapter("support", str(tmp_path))
        made.shutdown()
    assert not {"lora", "adapter_loading"} & set(offered)
