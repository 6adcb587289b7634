"""LoRA adapters by model name, with OpenAI's client on `inflight serve`: from files, and sent by a client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
import tritonclient.grpc as triton

from support.adapters import RANK, answer, matrices, save
from support.servers import MODEL_NAME, Server, Start, wait_ready
from support.triton import MODEL, inputs, tensor

#: TensorRT-LLM's id of the attention's dense layer.
ATTENTION_DENSE = 4


@pytest.fixture(scope="module")
def served(
    start_for_session: Start, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, openai.OpenAI]]:
    """A server with the adapters `plain`, which changes nothing, and `loud`."""
    folder = tmp_path_factory.mktemp("adapters")
    save(folder / "plain", 0)
    save(folder / "loud", 1)
    process = start_for_session(
        "serve",
        f"--served-model-name={MODEL_NAME}",
        f"--executor-option=lora_adapter_dir={folder}",
        "--port=0",
        "--grpc-port=0",
        "--metrics-port=0",
    )
    server = Server(wait_ready(process), process.address("grpc"), process.address("metrics"), MODEL_NAME)
    with server.client() as client:
        yield server, client


def test_adapters_answer_by_their_names(served: tuple[Server, openai.OpenAI]) -> None:
    _, client = served
    names = [MODEL_NAME, f"{MODEL_NAME}:plain", f"{MODEL_NAME}:loud"]
    base, plain, loud = (answer(client, name) for name in names)
    assert plain == base
    assert loud != base
    # Beside each other in one batch, as events.
    with ThreadPoolExecutor(9) as pool:
        told = list(pool.map(lambda name: answer(client, name, stream=True), names * 3))
    assert told == [base, plain, loud] * 3


def test_adapters_are_models(served: tuple[Server, openai.OpenAI]) -> None:
    _, client = served
    cards = {card.id: card for card in client.models.list()}
    assert set(cards) == {MODEL_NAME, f"{MODEL_NAME}:plain", f"{MODEL_NAME}:loud"}
    loud = client.models.retrieve(f"{MODEL_NAME}:loud")
    assert loud == cards[loud.id]
    assert loud.parent == MODEL_NAME  # type: ignore[attr-defined]
    for ask in (answer, lambda client, name: client.models.retrieve(name)):
        with pytest.raises(openai.NotFoundError) as refused:
            ask(client, f"{MODEL_NAME}:quiet")
        assert refused.value.code == "model_not_found"


def test_an_adapter_that_was_sent_is_named_by_its_task(served: tuple[Server, openai.OpenAI]) -> None:
    server, client = served
    with pytest.raises(openai.NotFoundError) as refused:
        answer(client, f"{MODEL_NAME}:41", stream=True)
    assert refused.value.code == "model_not_found"
    pairs = matrices(1).values()
    rows = [[ATTENTION_DENSE, layer, RANK] for layer in range(len(pairs))]
    flat = [np.concatenate([down.reshape(-1), up.reshape(-1)]) for down, up in pairs]
    adapter = [
        tensor("lora_task_id", [[41]], "UINT64"),
        tensor("lora_weights", [flat], "FP16"),
        tensor("lora_config", [rows], "INT32"),
    ]
    with triton.InferenceServerClient(server.grpc) as sender:
        sender.infer(MODEL, [*inputs([5, 6], 1), *adapter])
    sent = answer(client, f"{MODEL_NAME}:41")
    assert sent == answer(client, f"{MODEL_NAME}:41", stream=True)
    assert sent != answer(client, MODEL_NAME)
