"""LoRA: equal to the model with merged weights, adapters beside each other, and their cache."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from inflight.errors import UserMistake
from inflight.executors.base import NamedTensor, Request
from inflight.executors.reference import create
from inflight.executors.reference.core import adapters as adapters_module
from inflight.executors.reference.core.adapters import Adapters, task_id_of
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.tensors import required_tensors
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights

from .support import FIXTURES, AllTold, engine, expected, request, run

Float32 = npt.NDArray[np.float32]
#: Names in a checkpoint -> (matrix down ``[rank, in]``, matrix up ``[out, rank]``), both before scaling.
Matrices = Mapping[str, tuple[Float32, Float32]]

RANK = 3
SCALE = 2.0
PROMPTS = [[3, 4, 5, 6, 7, 8, 9, 10, 11], [20, 21, 22], [(7 * token) % 61 + 3 for token in range(30)]]

#: TensorRT-LLM's module ids, by the modules of Llama's checkpoint.
LLAMA_MODULES = {
    "self_attn.q_proj": 1,
    "self_attn.k_proj": 2,
    "self_attn.v_proj": 3,
    "self_attn.o_proj": 4,
    "mlp.gate_proj": 5,
    "mlp.down_proj": 6,
    "mlp.up_proj": 7,
}
#: Modules of a checkpoint's layers that take an adapter, by fixture.
TARGETS = {
    "llama": tuple(LLAMA_MODULES),
    "qwen2_tied": ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"),
    "gpt2": ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
    "phi3_window": ("self_attn.qkv_proj", "mlp.gate_up_proj"),
    "gemma": ("self_attn.k_proj", "mlp.up_proj"),
    "phi3_long": ("self_attn.qkv_proj", "self_attn.o_proj"),
    "gpt_oss": ("self_attn.q_proj", "self_attn.o_proj", "mlp.router"),
    "deepseek_v2": ("self_attn.o_proj",),
    "gemma2": ("self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj"),
    "gemma3_seeing": ("self_attn.q_proj", "mlp.gate_proj", "mlp.down_proj"),
    "mixtral": (
        "self_attn.q_proj",
        "self_attn.o_proj",
        "block_sparse_moe.gate",
        *(f"block_sparse_moe.experts.{expert}.{name}" for expert in range(4) for name in ("w1", "w2", "w3")),
    ),
    "baichuan2_alibi": ("self_attn.W_pack", "self_attn.o_proj"),
    # Its shares are those among all experts, which must not be taken from shares.
    "qwen3_moe": (
        "self_attn.q_proj",
        *(
            f"mlp.experts.{expert}.{name}"
            for expert in range(6)
            for name in ("gate_proj", "up_proj", "down_proj")
        ),
    ),
}


def tensors_of(name: str) -> Iterator[tuple[str, Float32]]:
    config = load_config(FIXTURES / name)
    weights = CheckpointWeights.of(config, find_weights(FIXTURES / name))
    for tensor, _ in required_tensors(config):
        yield tensor, weights.tensor(tensor)


def matrices(name: str, seed: int) -> dict[str, tuple[Float32, Float32]]:
    """Random matrices for all targets of all layers."""
    draw = np.random.default_rng(seed)
    config = load_config(FIXTURES / name)
    shapes = {tensor: values.shape for tensor, values in tensors_of(name)}
    drawn = {}
    for layer in range(config.num_layers):
        for target in TARGETS[name]:
            module = f"{config.names.layer.format(layer)}.{target}"
            outputs, inputs = shapes[f"{module}.weight"][:: -1 if config.names.transposed else 1]
            # Representable in float16, which the tensors are sent in.
            drawn[module] = tuple(
                draw.normal(0, 0.2, shape).astype(np.float16).astype(np.float32)
                for shape in ((RANK, inputs), (outputs, RANK))
            )
    return drawn  # type: ignore[return-value]


def merge(folder: Path, name: str, adapter: Matrices) -> str:
    """A checkpoint with the adapter in its weights; its path."""
    folder.mkdir()
    shutil.copy(FIXTURES / name / "config.json", folder)
    transposed = load_config(FIXTURES / name).names.transposed
    merged = {}
    for tensor, values in tensors_of(name):
        module = tensor.removesuffix(".weight")
        if module in adapter:
            down, up = adapter[module]
            delta = SCALE * (up @ down)
            values = values + (delta.T if transposed else delta)
        merged[tensor] = np.ascontiguousarray(values, dtype=np.float32)
    save_file(merged, folder / "model.safetensors")
    return str(folder)


def save_peft(folder: Path, adapter: Matrices, **values: Any) -> None:
    """An adapter as PEFT writes it."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK * SCALE, "bias": "none", **values}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {}
    for module, (down, up) in adapter.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = down
        tensors[f"base_model.model.{module}.lora_B.weight"] = up
    save_file(tensors, folder / "adapter_model.safetensors")


def tensor(name: str, datatype: str, values: npt.NDArray[Any]) -> NamedTensor:
    return NamedTensor(name, datatype, values.shape, values.tobytes())


def task(task_id: int) -> NamedTensor:
    return tensor("lora_task_id", "UINT64", np.array([task_id], "<u8"))


def sent(task_id: int, adapter: Matrices) -> list[NamedTensor]:
    """An adapter of Llama in TensorRT-LLM's tensors, as its own converter lays them out."""
    rows, flat = [], []
    for module, (down, up) in adapter.items():
        layer, target = module.removeprefix("model.layers.").split(".", 1)
        rows.append([LLAMA_MODULES[target], int(layer), RANK])
        flat.append(np.concatenate([down.reshape(-1), (SCALE * up).reshape(-1)]))
    widest = max(len(row) for row in flat)
    weights = np.stack([np.pad(row, (0, widest - len(row))) for row in flat]).astype("<f2")
    return [
        task(task_id),
        tensor("lora_weights", "FP16", weights),
        tensor("lora_config", "INT32", np.array(rows, "<i4")),
    ]


def serving(
    name: str = "llama", directory: Path | None = None, limit: int = 1 << 24, **options: Any
) -> Engine:
    adapters = Adapters(load_config(FIXTURES / name), 8, limit, directory)
    return engine(name, adapters=adapters, **options)


def asked(client_id: int, prompt: list[int], tensors: list[NamedTensor] | None = None) -> Request:
    output = {"return_log_probs": True, "num_top_log_probs": 2}
    return request(client_id, prompt, 8, tensors=tensors or [], output=output)


def same(told: AllTold, expected: AllTold) -> None:
    for key, one in expected.items():
        assert told[key].error is None
        assert told[key].tokens == one.tokens
        assert told[key].log_probs == pytest.approx(one.log_probs, abs=1e-3)


@pytest.mark.parametrize("tokens", [256, 8])
def test_sent_adapters_beside_each_other_are_the_merged_models(tmp_path: Path, tokens: int) -> None:
    """Two adapters and the base in one batch; the second request of each sends its id alone."""
    adapters = {task_id: matrices("llama", task_id) for task_id in (1, 2)}
    subject = serving(max_num_tokens=tokens, max_batch_size=8)
    requests, expected = [], {}
    for task_id in (0, 1, 2):
        name = "llama" if task_id == 0 else merge(tmp_path / str(task_id), "llama", adapters[task_id])
        own = []
        for place, prompt in enumerate(PROMPTS):
            client_id = 10 * task_id + place
            own.append(asked(client_id, prompt))
            tensors = []
            if task_id:
                tensors = sent(task_id, adapters[task_id]) if place == 0 else [task(task_id)]
            requests.append(asked(client_id, prompt, tensors))
        expected.update(run(engine(name), own))
    same(run(subject, requests), expected)
    assert subject.pool.used == 0


def test_a_mixture_s_adapter_is_sent_with_its_experts_stacked(tmp_path: Path) -> None:
    """TensorRT-LLM's modules of a mixture: the matrices down of all experts, then the matrices up."""
    adapter = matrices("mixtral", 4)
    experts = load_config(FIXTURES / "mixtral").num_experts
    rows, flat = [], []
    for layer in range(load_config(FIXTURES / "mixtral").num_layers):
        prefix = f"model.layers.{layer}"
        modules = {1: [f"{prefix}.self_attn.q_proj"], 4: [f"{prefix}.self_attn.o_proj"]}
        modules[16] = [f"{prefix}.block_sparse_moe.gate"]
        for module, name in ((13, "w1"), (14, "w2"), (15, "w3")):
            modules[module] = [f"{prefix}.block_sparse_moe.experts.{one}.{name}" for one in range(experts)]
        for module, names in modules.items():
            rows.append([module, layer, RANK])
            downs = [adapter[name][0].reshape(-1) for name in names]
            ups = [SCALE * adapter[name][1].reshape(-1) for name in names]
            flat.append(np.concatenate([*downs, *ups]))
    widest = max(map(len, flat))
    weights = np.stack([np.pad(row, (0, widest - len(row))) for row in flat]).astype("<f2")
    tensors = [
        task(1),
        tensor("lora_weights", "FP16", weights),
        tensor("lora_config", "INT32", np.array(rows, "<i4")),
    ]
    told = run(serving("mixtral"), [asked(place, prompt, tensors) for place, prompt in enumerate(PROMPTS)])
    merged = engine(merge(tmp_path / "merged", "mixtral", adapter))
    same(told, run(merged, [asked(place, prompt) for place, prompt in enumerate(PROMPTS)]))


@pytest.mark.parametrize("name", sorted(one.parent.name for one in FIXTURES.glob("*/adapter")))
def test_logits_with_an_adapter_that_peft_saved_are_peft_s(name: str) -> None:
    token_ids, _ = expected(name)
    with np.load(FIXTURES / name / "adapter" / "expected.npz") as file:
        logits = file["logits"]
    subject = serving(name, FIXTURES / name, max_num_tokens=16)
    output = {"return_context_logits": True}
    asked = request(1, token_ids, 1, output=output, tensors=[task(task_id_of("adapter"))])
    told = run(subject, [asked])[1, 0]
    assert told.context_logits is not None
    np.testing.assert_allclose(told.context_logits, logits, atol=2e-4)


@pytest.mark.parametrize("name", TARGETS)
def test_an_adapter_of_peft_is_the_merged_model(tmp_path: Path, name: str) -> None:
    adapter = matrices(name, 5)
    save_peft(tmp_path / "adapters" / "support", adapter)
    subject = serving(name, tmp_path / "adapters")
    expected = run(
        engine(merge(tmp_path / "merged", name, adapter)),
        [asked(place, prompt) for place, prompt in enumerate(PROMPTS)],
    )
    tensors = [task(task_id_of("support"))]
    told = run(subject, [asked(place, prompt, tensors) for place, prompt in enumerate(PROMPTS)])
    same(told, expected)
    base = run(engine(name), [asked(place, prompt) for place, prompt in enumerate(PROMPTS)])
    assert all(told[key].log_probs != pytest.approx(one.log_probs, abs=1e-2) for key, one in base.items())


def test_beams_and_drafts_are_computed_with_the_adapter(tmp_path: Path) -> None:
    adapter = matrices("llama", 3)
    merged = merge(tmp_path / "merged", "llama", adapter)
    for sampling, drafts in (({"beam_width": 3}, []), ({}, [9, 9, 9])):
        drafted = [tensor("draft_input_ids", "INT32", np.array(drafts, "<i4"))] if drafts else []

        def ask(tensors: list[NamedTensor], sampling: Any = sampling) -> Request:
            return request(1, PROMPTS[0], 8, sampling=sampling, streaming=False, tensors=tensors)

        told = run(serving(), [ask(sent(7, adapter) + drafted)])
        expected = run(engine(merged), [ask(drafted)])
        assert {key: one.tokens for key, one in told.items()} == {
            key: one.tokens for key, one in expected.items()
        }


def test_cached_blocks_are_found_by_the_same_adapter_alone() -> None:
    subject, adapter, other = serving(), matrices("llama", 1), matrices("llama", 2)
    prompt = PROMPTS[2]
    alone = run(serving(), [asked(1, prompt, sent(2, other))])
    assert run(subject, [asked(1, prompt)])[1, 0].cached_tokens == [0]
    assert run(subject, [asked(2, prompt, sent(1, adapter))])[2, 0].cached_tokens == [0]
    told = run(subject, [asked(1, prompt, sent(2, other))])
    assert told[1, 0].cached_tokens == [0]
    assert told[1, 0].tokens == alone[1, 0].tokens
    assert run(subject, [asked(4, prompt, [task(1)])])[4, 0].cached_tokens != [0]


def test_the_least_recently_used_adapter_goes_first_and_must_be_sent_again() -> None:
    adapters = {task_id: matrices("llama", task_id) for task_id in (1, 2, 3)}
    size = sum(down.nbytes + up.nbytes for down, up in adapters[1].values())
    subject = serving(limit=2 * size)
    for task_id in (1, 2):
        assert run(subject, [asked(1, [5, 6], sent(task_id, adapters[task_id]))])[1, 0].error is None
    assert run(subject, [asked(1, [5, 6], [task(1)])])[1, 0].error is None
    assert run(subject, [asked(1, [5, 6], sent(3, adapters[3]))])[1, 0].error is None
    error = run(subject, [asked(1, [5, 6], [task(2)])])[1, 0].error
    assert error == "LoRA task 2 not found in cache. Please send LoRA weights with request"
    # Two in use leave no room for a third, until one of them has ended.
    iteration = Iteration()
    subject.add([asked(1, [5, 6], [task(1)]), asked(3, [5, 6], [task(3)])], iteration)
    subject.add([asked(2, [5, 6], sent(2, adapters[2]))], iteration)
    [row] = iteration.rows
    assert row.error is not None
    assert "`lora_cache_host_memory_bytes`" in row.error[1]
    subject.cancel([1], iteration)
    assert run(subject, [asked(2, [5, 6], sent(2, adapters[2]))])[2, 0].error is None


def spoiled(rows: Any = None, width: int | None = None) -> list[NamedTensor]:
    made = sent(7, matrices("llama", 1))
    if rows is not None:
        made[2] = tensor("lora_config", "INT32", np.array(rows, "<i4"))
        made[1] = tensor("lora_weights", "FP16", np.zeros((len(rows), width or 1000), "<f2"))
    return made


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (spoiled()[:2], "lora_config"),
        (spoiled()[1:], "lora_task_id"),
        (spoiled([[8, 0, 3]]), "cross_attn_qkv"),
        (spoiled([[13, 0, 3]]), "moe_h_to_4h"),
        (spoiled([[17, 0, 3]]), "mlp_router"),
        (spoiled([[99, 0, 3]]), "`99`"),
        (spoiled([[1, 2, 3]]), "layer `2`"),
        (spoiled([[1, -1, 3]]), "layer `-1`"),
        (spoiled([[1, 0, 9]]), "`lora_cache_max_adapter_size`"),
        (spoiled([[1, 0, 0]]), "rank is `0`"),
        (spoiled([[1, 0, 3], [1, 0, 3]]), "twice"),
        (spoiled([[1, 0, 3]], 10), "10 values"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(tensors: list[NamedTensor], words: str) -> None:
    subject = serving()
    told = run(subject, [asked(1, [5, 6], tensors)])
    assert words in (told[1, 0].error or "")
    assert run(subject, [asked(2, [5, 6])])[2, 0].error is None


@pytest.mark.parametrize(
    ("values", "extra", "words"),
    [
        ({"use_dora": True}, {}, "use_dora"),
        ({"bias": "all"}, {}, "bias"),
        ({"init_lora_weights": "pissa"}, {}, "init_lora_weights"),
        ({"rank_pattern": {"q_proj": 8}}, {}, "rank_pattern"),
        ({"modules_to_save": ["lm_head"]}, {}, "modules_to_save"),
        ({"r": 9}, {}, "lora_cache_max_adapter_size"),
        ({"r": 2}, {}, "shape"),
        (
            {},
            {"model.embed_tokens": (np.zeros((3, 64), np.float32), np.zeros((32, 3), np.float32))},
            "embed_tokens",
        ),
    ],
)
def test_a_directory_with_an_adapter_that_does_not_fit_is_named(
    tmp_path: Path, values: dict[str, Any], extra: dict[str, Any], words: str
) -> None:
    save_peft(tmp_path / "bad", {**matrices("llama", 1), **extra}, **values)
    with pytest.raises(UserMistake, match=words) as mistake:
        serving(directory=tmp_path)
    assert str(tmp_path / "bad") in mistake.value.what


def test_an_adapter_of_a_directory_is_read_again_after_its_eviction(tmp_path: Path) -> None:
    for task_id in (1, 2):
        save_peft(tmp_path / str(task_id), matrices("llama", task_id))
    size = sum(down.nbytes + up.nbytes for down, up in matrices("llama", 1).values())
    subject = serving(directory=tmp_path, limit=size)
    tokens = [run(subject, [asked(1, PROMPTS[0], [task(task_id)])])[1, 0].tokens for task_id in (1, 2, 1)]
    assert tokens[0] == tokens[2] != tokens[1]


def test_no_stream_waits_for_an_adapter_to_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preparing thread loads what requests bring, in their order; the next one may count on it."""
    save_peft(tmp_path / "adapters" / "9", matrices("llama", 2))
    size = sum(down.nbytes + up.nbytes for down, up in matrices("llama", 1).values())
    subject = create(
        FIXTURES / "llama",
        "cpu",
        lora_adapter_dir=str(tmp_path / "adapters"),
        lora_cache_host_memory_bytes=size,
    )
    threads: list[str] = []

    def noting(load: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            threads.append(threading.current_thread().name)
            return load(*arguments)

        return noted

    for name in ("from_tensors", "read_peft"):
        monkeypatch.setattr(adapters_module, name, noting(getattr(adapters_module, name)))
    try:
        for requests in (
            [asked(1, PROMPTS[0], sent(1, matrices("llama", 1))), asked(2, PROMPTS[0], [task(1)])],
            # Its place was taken.
            [asked(3, PROMPTS[0], [task(9)])],
        ):
            subject.enqueue(requests)
            finals = 0
            while finals < len(requests):
                batch = subject.await_responses(30.0)
                assert not batch.errors
                finals += sum(batch.finals)
    finally:
        subject.shutdown()
    assert len(threads) == 2
    assert set(threads) == {"reference-preparation"}


def test_names_are_told_with_their_task_ids(tmp_path: Path) -> None:
    for name in ("7", "support"):
        save_peft(tmp_path / name, matrices("llama", 1))
    adapters = Adapters(load_config(FIXTURES / "llama"), 8, 1 << 24, tmp_path)
    assert adapters.names == {"7": 7, "support": task_id_of("support")}
    save_peft(tmp_path / "07", matrices("llama", 1))
    with pytest.raises(UserMistake, match="`7`"):
        Adapters(load_config(FIXTURES / "llama"), 8, 1 << 24, tmp_path)
