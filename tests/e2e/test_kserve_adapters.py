"""LoRA adapters and prompt tables, through tritonclient by Triton's tensors, on a worker with the model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as triton
from safetensors.numpy import load_file, save_file
from tritonclient.utils import InferenceServerException

from inflight.executors import reference
from inflight.executors.base import Request, SamplingConfig
from support.servers import MODEL_NAME, Start
from support.spoiling_worker import DESCRIBE
from support.triton import MODEL, TritonStream, inputs, is_final, tensor, tokens

Float32 = npt.NDArray[np.float32]
#: By module of the checkpoint: the matrices down ``[rank, in]`` and up ``[out, rank]``.
Matrices = Mapping[str, tuple[Float32, Float32]]

RANK, SCALE = 4, 2.0
PROMPT = [40 + token % 90 for token in range(70)]
TOKENS = 12
#: TensorRT-LLM's ids of the modules of a layer.
MODULES = {
    "self_attn.q_proj": 1,
    "self_attn.k_proj": 2,
    "self_attn.v_proj": 3,
    "self_attn.o_proj": 4,
    "mlp.gate_proj": 5,
    "mlp.down_proj": 6,
    "mlp.up_proj": 7,
}
#: An adapter that the worker finds in a directory, and the task that clients send.
NAMED, SENT, LATER = "support", 5, 6


@dataclass(frozen=True)
class Checkpoint:
    """The model's files, and its weights by name."""

    directory: Path
    weights: Mapping[str, Float32]

    @classmethod
    def read(cls, directory: Path) -> Checkpoint:
        weights: dict[str, Any] = {}
        for file in directory.glob("*.safetensors"):
            weights |= load_file(file)
        return cls(directory, {name: np.asarray(one, np.float32) for name, one in weights.items()})

    def adapter(self, seed: int) -> Matrices:
        draw = np.random.default_rng(seed)

        def matrix(*shape: int) -> Float32:
            # Representable in float16, in which they are sent.
            return draw.normal(0, 0.1, shape).astype(np.float16).astype(np.float32)

        return {
            name.removesuffix(".weight"): (matrix(RANK, weight.shape[1]), matrix(weight.shape[0], RANK))
            for name, weight in self.weights.items()
            if any(name.endswith(f"{module}.weight") for module in MODULES)
        }

    def merged(self, directory: Path, adapter: Matrices) -> Path:
        """A checkpoint with the adapter in its weights."""
        directory.mkdir()
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(self.directory / name, directory)
        weights = dict(self.weights)
        for module, (down, up) in adapter.items():
            weights[f"{module}.weight"] = weights[f"{module}.weight"] + SCALE * (up @ down)
        save_file(weights, directory / "model.safetensors")
        return directory


def save_peft(directory: Path, adapter: Matrices) -> None:
    directory.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK * SCALE, "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    saved = {}
    for module, (down, up) in adapter.items():
        saved[f"base_model.model.{module}.lora_A.weight"] = down
        saved[f"base_model.model.{module}.lora_B.weight"] = up
    save_file(saved, directory / "adapter_model.safetensors")


def weights_of(adapter: Matrices) -> list[triton.InferInput]:
    """As TensorRT-LLM's converter lays an adapter out: flat rows, padded to the widest."""
    rows, flat = [], []
    for module, (down, up) in adapter.items():
        layer, _, target = module.removeprefix("model.layers.").partition(".")
        rows.append([MODULES[target], int(layer), RANK])
        flat.append(np.concatenate([down.reshape(-1), (SCALE * up).reshape(-1)]))
    widest = max(map(len, flat))
    padded = np.stack([np.pad(row, (0, widest - len(row))) for row in flat])
    return [tensor("lora_weights", padded[None], "FP16"), tensor("lora_config", [rows], "INT32")]


def generated(directory: Path) -> list[int]:
    """What a model says after the prompt, without a worker around it."""
    executor = reference.create(directory, "cpu")
    try:
        executor.enqueue(
            [Request(1, PROMPT, TOKENS, streaming=False, sampling_config=SamplingConfig(top_k=1))]
        )
        found: list[int] = []
        while True:
            batch = executor.await_responses(30.0)
            found += np.frombuffer(batch.token_ids, dtype="<i4").tolist()
            if any(batch.finals):
                return found
    finally:
        executor.shutdown()


@pytest.fixture(scope="module")
def checkpoint(model_directory: Path) -> Checkpoint:
    return Checkpoint.read(model_directory)


@pytest.fixture(scope="module")
def worker(start_for_session: Start, checkpoint: Checkpoint, tmp_path_factory: Any) -> Iterator[str]:
    """A worker that has an adapter, and a cache for two."""
    directory = tmp_path_factory.mktemp("adapters")
    save_peft(directory / NAMED, checkpoint.adapter(1))
    size = sum(down.nbytes + up.nbytes for down, up in checkpoint.adapter(1).values())
    process = start_for_session(
        "worker",
        str(checkpoint.directory),
        f"--served-model-name={MODEL_NAME}",
        "--grpc-port=0",
        "--metrics-port=0",
        f"--executor-option=lora_adapter_dir={directory}",
        f"--executor-option=lora_cache_host_memory_bytes={2 * size}",
    )
    address = process.address("grpc")
    process.wait_until("it is ready", lambda: "worker ready" in process.log)
    yield address
    process.stop()


@pytest.fixture(scope="module")
def client(worker: str) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(worker)
    yield made
    made.close()


def ask(client: triton.InferenceServerClient, *more: triton.InferInput) -> list[int]:
    made = inputs(PROMPT, TOKENS, exclude_input_in_output=True, runtime_top_k=1)
    return tokens(client.infer(MODEL, [*made, *more]))


def task(task_id: int) -> triton.InferInput:
    return tensor("lora_task_id", [[task_id]], "UINT64")


def announced(worker: str) -> int:
    """The task id that the worker's description has for the adapter: its messages are read by hand."""
    with grpc.insecure_channel(worker) as channel:
        description: bytes = channel.unary_unary(DESCRIBE)(b"", timeout=30)
    _, _, rest = description.partition(b"\x0a" + bytes([len(NAMED)]) + NAMED.encode() + b"\x10")
    task_id = shift = 0
    for byte in rest:
        task_id |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return task_id
    raise AssertionError(f"no `{NAMED}` in {description!r}")


def test_adapters_are_the_merged_models_beside_each_other_and_go_when_room_is_needed(
    worker: str, client: triton.InferenceServerClient, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    unknown = f"LoRA task {SENT} not found in cache. Please send LoRA weights with request"
    with pytest.raises(InferenceServerException, match=unknown):
        ask(client, task(SENT))
    own = checkpoint.adapter(2)
    expected = {
        "base": generated(checkpoint.directory),
        "named": generated(checkpoint.merged(tmp_path / "named", checkpoint.adapter(1))),
        "sent": generated(checkpoint.merged(tmp_path / "sent", own)),
    }
    assert len({tuple(one) for one in expected.values()}) == 3
    named = task(announced(worker))
    stream = TritonStream(worker)
    try:
        for name, more in (("base", []), ("named", [named]), ("sent", [task(SENT), *weights_of(own)])):
            made = inputs(PROMPT, TOKENS, exclude_input_in_output=True, runtime_top_k=1, streaming=True)
            stream.send(name, [*made, *more])
        told: dict[str, list[int]] = {name: [] for name in expected}
        missing = set(expected)
        while missing:
            result, error = stream.next()
            assert error is None
            name = result.get_response().id
            told[name] += tokens(result)
            missing -= {name} if is_final(result) else set()
    finally:
        stream.close()
    assert told == expected
    # Both are in the cache; a third takes the place of the one that was asked for least recently.
    assert ask(client, task(SENT)) == expected["sent"]
    assert ask(client, named) == expected["named"]
    assert ask(client, task(LATER), *weights_of(checkpoint.adapter(3))) not in expected.values()
    with pytest.raises(InferenceServerException, match=unknown):
        ask(client, task(SENT))
    assert ask(client, task(SENT), *weights_of(own)) == expected["sent"]
    # Its files are read again.
    assert ask(client, named) == expected["named"]


def test_an_adapter_that_does_not_fit_is_refused(client: triton.InferenceServerClient) -> None:
    weights = tensor("lora_weights", np.zeros((1, 1, 8)), "FP16")
    with pytest.raises(InferenceServerException, match="cross_attn_q"):
        ask(client, task(9), weights, tensor("lora_config", [[[9, 0, 4]]], "INT32"))


def test_virtual_tokens_are_what_the_table_says_and_are_cached_by_their_extra_ids(
    client: triton.InferenceServerClient, checkpoint: Checkpoint
) -> None:
    embedding = checkpoint.weights["model.embed_tokens.weight"]
    virtual = range(40, len(PROMPT))
    prompt = [len(embedding) + place - 40 if place in virtual else id for place, id in enumerate(PROMPT)]
    found = triton.InferRequestedOutput("inflight_cached_tokens")

    def ask_tuned(table: Float32, extra_id: int) -> tuple[list[int], int]:
        marks = [extra_id if place in virtual else 0 for place in range(len(prompt))]
        made = inputs(
            prompt, TOKENS, exclude_input_in_output=True, runtime_top_k=1, prompt_vocab_size=len(table)
        )
        made += [
            tensor("prompt_embedding_table", table[None], "FP32"),
            tensor("prompt_table_extra_ids", [marks], "UINT64"),
        ]
        answer = triton.InferRequestedOutput("output_ids")
        result = client.infer(MODEL, made, outputs=[answer, found])
        return tokens(result), int(result.as_numpy("inflight_cached_tokens").item())

    table = embedding[[PROMPT[place] for place in virtual]]
    plain = ask(client)
    told, cached = ask_tuned(table, 7)
    assert told == plain
    # Up to the first virtual token it is the same text.
    assert cached == virtual.start
    assert ask_tuned(table, 7) == (plain, len(prompt) - 1)
    other, cached = ask_tuned(-table, 8)
    assert cached == virtual.start
    assert other != plain
    with pytest.raises(InferenceServerException, match="prompt_table_extra_ids"):
        client.infer(MODEL, [*inputs(prompt, TOKENS), tensor("prompt_embedding_table", table[None], "FP32")])
