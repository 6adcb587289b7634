"""Embedding models over `LLM.encode` of TensorRT-LLM 1.3."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from inflight.errors import UserMistake
from inflight.executors.base import FinishReason, NamedTensor, StatusCode
from inflight.executors.tensorrt_llm import pytorch_start
from inflight.executors.tensorrt_llm.options import parse
from support import double
from support.double.newer import LOST
from support.double.package import write_double
from support.servers import NO_KEY, Start, start_gateway, wait_ready
from trtllm.harness import await_until_broken, collect, passed, request_of
from trtllm.pytorch_setup import write_checkpoint
from trtllm.test_worker import checkpoint_with_tokenizer, run_worker

NEWER = list(double.LINES)[-1]
WIDTH = 8
MODEL = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": WIDTH}
POOLED = [passed("inflight_pooling", "BYTES", (1,), "last")]


@pytest.fixture(autouse=True)
def newer(line: str) -> Iterator[None]:
    with double.line(NEWER), double.installed():
        yield


def make(tmp_path: Path, config: dict[str, Any] | None = None, **options: Any) -> Any:
    model = write_checkpoint(tmp_path / "model", **(MODEL if config is None else config))
    return pytorch_start.create_pytorch(
        model, parse({"encode_only": True} | options, "pytorch", {}), double.version()
    )


def expected(tokens: list[int]) -> Any:
    vector = np.bincount([token % WIDTH for token in tokens], minlength=WIDTH)
    return vector / np.linalg.norm(vector)


def embedding(tensors: dict[str, NamedTensor]) -> Any:
    return np.frombuffer(tensors["inflight_embedding"].data, "<f4")


def test_prompts_become_vectors_of_length_one(tmp_path: Path) -> None:
    made = make(tmp_path, max_batch_size=4, max_num_tokens=20)
    assert made.info().capabilities == ("embeddings",)
    assert double.ENGINES[-1].values["model_kwargs"] == {"architectures": ["Qwen3ForTextEmbedding"]}
    prompts = {number: [number, *range(number)] for number in range(1, 15)}
    made.enqueue(
        [
            request_of({"client_id": number, "input_token_ids": prompt, "tensors": POOLED})
            for number, prompt in prompts.items()
        ]
    )
    for number, [row] in collect(made, *prompts).items():
        np.testing.assert_allclose(embedding(row.tensors), expected(prompts[number]), rtol=1e-6)
        assert (row.tokens, row.reason, row.errors) == ([], FinishReason.END_ID, [])
    # Together, as many as fit.
    sizes = double.ENGINES[-1]._sim_encoded
    assert sum(sizes) == len(prompts) + 1
    assert max(sizes) > 1
    made.shutdown()


def test_what_is_not_one_embedding_is_refused_by_name(tmp_path: Path) -> None:
    made = make(tmp_path, max_num_tokens=4)
    # The worker's own first one.
    made.enqueue([request_of({"input_token_ids": [0], "max_tokens": 1})])
    [row] = collect(made, 9)[9]
    assert (row.errors, row.tensors, row.final) == ([], {}, True)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "ask `/v1/embeddings`"),
        ({"tensors": [passed("inflight_pooling", "BYTES", (1,), "mean")]}, "`mean`"),
        ({"tensors": [*POOLED, passed("lora_task_id", "UINT64", (1,), 7)]}, "`lora_task_id`"),
        ({"tensors": POOLED, "input_token_ids": [1] * 5}, "has 5 tokens; the model takes 4"),
    ]
    for given, words in cases:
        made.enqueue([request_of(given)])
        [(code, text)] = collect(made, 9)[9][-1].errors
        assert code == StatusCode.INVALID_ARGUMENT
        assert words in text
    made.shutdown()


def test_a_cancelled_request_ends_and_a_broken_encoder_ends_the_worker(tmp_path: Path) -> None:
    made = make(tmp_path)
    made.enqueue([request_of({"client_id": number, "tensors": POOLED}) for number in range(1, 50)])
    made.cancel([48, 49, 77])
    rows = collect(made, *range(1, 50))
    assert all(len(one) == 1 for one in rows.values())
    assert {rows[number][0].reason for number in (48, 49)} <= {FinishReason.CANCELLED, FinishReason.END_ID}
    made.enqueue([request_of({"input_token_ids": [LOST], "tensors": POOLED})])
    with pytest.raises(RuntimeError, match="illegal memory access"):
        await_until_broken(made)
    made.shutdown()


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (None, {"tensor_parallel_size": 2}, "`tensor_parallel_size` is `2`"),
        (None, {"guided_decoding_backend": "xgrammar"}, "`guided_decoding_backend` is for models"),
        (None, {"cache_transceiver_backend": "UCX"}, "`cache_transceiver_config` is for models"),
        # It gives logits.
        ({"hidden_size": WIDTH}, {}, f"shape `[{double.VOCAB}]`, and its `hidden_size` is `{WIDTH}`"),
    ],
)
def test_what_cannot_be_an_embedding_model_is_refused_at_start(
    tmp_path: Path, config: dict[str, Any] | None, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserMistake) as raised:
        make(tmp_path, config, **options)
    assert words in raised.value.what


def test_older_versions_have_no_encoder(tmp_path: Path) -> None:
    with (
        double.line(next(iter(double.LINES))),
        double.installed(),
        pytest.raises(UserMistake, match="no argument `encode_only`"),
    ):
        make(tmp_path)


def test_a_gateway_serves_its_embeddings_and_refuses_chats(start: Start, tmp_path: Path) -> None:
    environment = write_double(tmp_path / "double", version=NEWER)
    model = checkpoint_with_tokenizer(tmp_path / "served", **MODEL)
    worker = run_worker(start, model, environment, "encode_only=true", worker=("--served-model-name=m",))
    address = wait_ready(start_gateway(start, [worker]))
    with openai.OpenAI(base_url=f"http://{address}/v1", api_key=NO_KEY, max_retries=0) as client:
        answer = client.embeddings.create(model="m", input=[[1, 2, 3], [9, 9]])
        assert [len(one.embedding) for one in answer.data] == [WIDTH, WIDTH]
        np.testing.assert_allclose(answer.data[0].embedding, expected([1, 2, 3]), rtol=1e-6)
        assert math.isclose(sum(value * value for value in answer.data[1].embedding), 1, rel_tol=1e-6)
        for asked in ({"extra_body": {"pooling": "mean"}}, {"extra_body": {"dimensions": 3}}):
            with pytest.raises(openai.BadRequestError):
                client.embeddings.create(model="m", input="hello", **asked)
        with pytest.raises(openai.BadRequestError, match="makes embeddings"):
            client.completions.create(model="m", prompt=[1, 2, 3], max_tokens=4)
