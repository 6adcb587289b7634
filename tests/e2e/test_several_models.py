"""Two models in one worker process: one address for both, as of a Triton server whose repository has two
sets of models, and a gateway that serves each under its name.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton
import tritonclient.http
from tritonclient.utils import InferenceServerException

from inflight.launch.model import DEMO_DIRECTORY
from support.http import get, post
from support.processes import START_S, InflightProcess
from support.servers import MODEL_NAME, Start, start_gateway, wait_ready
from support.triton import MODEL, TritonStream, inputs, is_final, tensor, tokens

PROMPT = [40, 41, 42, 43]
SECOND = "second"
SECOND_MODEL = f"{SECOND}_{MODEL}"
#: Of each model, in the order of the index.
OWN = (MODEL, "preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls")
NAMES = [prefix + name for prefix in ("", f"{SECOND}_") for name in OWN]


@dataclass
class Two:
    """A worker of two models, and a gateway in front of it."""

    worker: InflightProcess
    grpc: str
    http: str
    gateway: str


@pytest.fixture(scope="module")
def two(start_for_session: Start, tmp_path_factory: pytest.TempPathFactory) -> Two:
    # A template of its own tells a chat with the second model from one with the first.
    directory = tmp_path_factory.mktemp("models") / "copy"
    shutil.copytree(DEMO_DIRECTORY, directory)
    (directory / "chat_template.jinja").write_text("{{ messages[0]['content'] * 20 }}", encoding="utf-8")
    worker = start_for_session(
        "worker",
        f"--add-model={SECOND}={directory}",
        f"--served-model-name={MODEL_NAME}",
        "--grpc-port=0",
        "--metrics-port=0",
        "--http-port=0",
    )
    http = worker.address("http")
    worker.wait_until("it is ready", lambda: get(http, "/v2/health/ready").status == 200, START_S)
    gateway = start_gateway(start_for_session, [worker])
    return Two(worker, worker.address("grpc"), http, wait_ready(gateway))


def text(prompt: str, max_tokens: int) -> list[triton.InferInput]:
    return [
        tensor("text_input", [[prompt.encode()]], "BYTES"),
        tensor("max_tokens", [[max_tokens]], "INT32"),
    ]


def successes(address: str) -> dict[str, int]:
    with triton.InferenceServerClient(address) as client:
        statistics = client.get_inference_statistics().model_stats
    return {model.name: model.inference_stats.success.count for model in statistics}


def test_the_index_and_readiness_are_of_all_models(two: Two) -> None:
    with triton.InferenceServerClient(two.grpc) as client:
        assert client.is_server_ready()
        index = client.get_model_repository_index().models
        assert [(model.name, model.state) for model in index] == [(name, "READY") for name in NAMES]
        for name in NAMES:
            assert client.is_model_ready(name)
            assert client.get_model_metadata(name).name == name
            assert client.get_model_config(name).config.name == name
        steps = client.get_model_config(f"{SECOND}_ensemble").config.ensemble_scheduling.step
        assert {step.model_name for step in steps} <= set(NAMES[len(OWN) :])
        assert not client.is_model_ready("third")
        with pytest.raises(InferenceServerException, match="unknown model: `third` is not found"):
            client.infer("third", inputs(PROMPT, 1))
    with tritonclient.http.InferenceServerClient(two.http) as client:
        assert client.is_model_ready(SECOND_MODEL)
        assert [model["name"] for model in client.get_model_repository_index()] == NAMES


def test_each_request_reaches_the_model_that_it_names(two: Two) -> None:
    before = successes(two.grpc)
    with triton.InferenceServerClient(two.grpc) as client:
        for model in (MODEL, SECOND_MODEL, SECOND_MODEL):
            answer = client.infer(model, inputs(PROMPT, 3))
            assert answer.get_response().model_name == model
            assert len(tokens(answer)) == len(PROMPT) + 3
        for model in ("ensemble", f"{SECOND}_ensemble", f"{SECOND}_preprocessing"):
            made = (
                [tensor("QUERY", [[b"Hi"]], "BYTES"), tensor("REQUEST_OUTPUT_LEN", [[1]], "INT32")]
                if model.endswith("preprocessing")
                else text("Hi", 3)
            )
            assert client.infer(model, made).get_response().model_name == model
        with pytest.raises(InferenceServerException, match=f"`{SECOND}_ensemble` lists its inputs"):
            client.infer(f"{SECOND}_ensemble", [*text("Hi", 1), tensor("nonsense", [[1]], "INT32")])
        files = [tensor("lora_id", [1], "UINT64")]
        files += [tensor(f"lora_{name}", [b"support"], "BYTES") for name in ("name", "path")]
        with pytest.raises(InferenceServerException, match="is for the first model of a worker"):
            client.infer(SECOND_MODEL, [tensor("text_input", [b"Hi"], "BYTES"), *files])
    counts = successes(two.grpc)
    more = {name: counts[name] - before[name] for name in NAMES if counts[name] != before[name]}
    assert more == {
        MODEL: 2,
        SECOND_MODEL: 3,
        "ensemble": 1,
        f"{SECOND}_ensemble": 1,
        f"{SECOND}_preprocessing": 1,
    }
    page = get(two.worker.address("metrics"), "/metrics").body.decode()
    families = [line for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    for model in (MODEL, SECOND_MODEL):
        sample = f'nv_inference_request_success{{model="{model}",version="1"}} {counts[model]}'
        assert sample in page.splitlines()


def test_one_stream_carries_requests_of_both_models(two: Two) -> None:
    stream = TritonStream(two.grpc)
    asked = {
        "a": (MODEL, inputs(PROMPT, 40, streaming=True)),
        "b": (SECOND_MODEL, inputs(PROMPT, 40, streaming=True)),
        "c": (f"{SECOND}_tensorrt_llm_bls", [*text("Hi", 20), tensor("stream", [[True]], "BOOL")]),
    }
    for request_id, (model, made) in asked.items():
        stream.client.async_stream_infer(model, made, request_id=request_id, enable_empty_final_response=True)
    seen: dict[str, list[int]] = {request_id: [] for request_id in asked}
    unfinished = set(asked)
    while unfinished:
        result, error = stream.next()
        assert error is None, error
        response = result.get_response()
        assert response.model_name == asked[response.id][0]
        if response.id != "c":
            seen[response.id] += tokens(result)
        if is_final(result):
            unfinished.remove(response.id)
    # The weights are the same, and so are the tokens.
    assert len(seen["a"]) == 40
    assert seen["a"] == seen["b"]
    # An unknown model is the failure of its own request; the stream goes on.
    stream.client.async_stream_infer("third", inputs(PROMPT, 1), request_id="d")
    result, error = stream.next()
    assert result is None
    assert "unknown model" in str(error)
    stream.send("e", inputs(PROMPT, 1))
    assert len(tokens(next(stream.until_final()))) == len(PROMPT) + 1
    stream.close()


def test_http_reaches_both_models(two: Two) -> None:
    for model in ("ensemble", f"{SECOND}_ensemble"):
        answer = post(two.http, f"/v2/models/{model}/generate", {"text_input": "Hi", "max_tokens": 2})
        assert answer.status == 200, answer.body
        assert answer.json()["model_name"] == model
    answer = post(two.http, "/v2/models/third/generate", {"text_input": "Hi", "max_tokens": 2})
    assert answer.status == 404


def test_a_gateway_serves_each_model_under_its_name(two: Two) -> None:
    before = successes(two.grpc)
    models = get(two.gateway, "/v1/models").json()["data"]
    assert sorted(model["id"] for model in models) == sorted([MODEL_NAME, SECOND])
    usage: dict[str, Any] = {}
    for model in (MODEL_NAME, SECOND):
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        answer = post(two.gateway, "/v1/chat/completions", body)
        assert answer.status == 200, answer.body
        assert answer.json()["model"] == model
        usage[model] = answer.json()["usage"]["prompt_tokens"]
    # Each with its own template.
    assert usage[MODEL_NAME] != usage[SECOND]
    counts = successes(two.grpc)
    assert [counts[model] - before[model] for model in (MODEL, SECOND_MODEL)] == [1, 1]
    # KServe's clients find all of them there as well.
    with tritonclient.http.InferenceServerClient(two.gateway) as client:
        assert sorted(model["name"] for model in client.get_model_repository_index()) == sorted(NAMES)
        assert client.is_model_ready(SECOND_MODEL)
    answer = post(
        two.gateway, f"/v2/models/{SECOND}_ensemble/generate", {"text_input": "Hi", "max_tokens": 2}
    )
    assert answer.json()["model_name"] == f"{SECOND}_ensemble"


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "one server for two models, from a repository with `tensorrt_llm` and `llama_tensorrt_llm`",
    "inflight serve MODEL --add-model llama=MODEL",
)
def test_serve_puts_a_model_into_its_worker(start: Start) -> None:
    server = start(
        "serve", f"--add-model=llama={DEMO_DIRECTORY}", "--port=0", "--grpc-port=0", "--metrics-port=0"
    )
    address = wait_ready(server)
    for model in (MODEL_NAME, "llama"):
        body = {"model": model, "prompt": "Hi", "max_tokens": 2}
        assert post(address, "/v1/completions", body).json()["model"] == model
    for model in ("ensemble", "llama_ensemble"):
        asked = {"text_input": "Hi", "max_tokens": 2}
        assert post(address, f"/v2/models/{model}/generate", asked).json()["model_name"] == model


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("b=/no/such/model", "model `b`: the model directory `/no/such/model` does not exist"),
        ("b", "`--add-model` must be NAME=MODEL, got `b`"),
        ("a/b=x", "`a/b` cannot name a model"),
        (f"{MODEL_NAME}=x", f"two models of this worker would be called `{MODEL_NAME}`"),
    ],
)
def test_a_model_that_cannot_be_added_is_named(start: Start, given: str, told: str) -> None:
    worker = start("worker", f"--served-model-name={MODEL_NAME}", f"--add-model={given}", "--grpc-port=0")
    assert worker.wait() == 2
    assert told in worker.log


def test_the_ranks_of_a_job_run_one_model(start: Start) -> None:
    worker = start(
        "worker",
        f"--add-model=b={DEMO_DIRECTORY}",
        "--grpc-port=0",
        environment={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
    )
    assert worker.wait() == 2
    assert "`--add-model` was given to one of `2` ranks" in worker.log


def test_damaged_weights_name_their_model(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(DEMO_DIRECTORY, directory)
    for weights in directory.glob("*.safetensors"):
        weights.write_bytes(weights.read_bytes()[:100])
    worker = start("worker", f"--add-model=damaged={directory}", "--grpc-port=0", "--metrics-port=0")
    assert worker.wait() == 2
    assert "model `damaged`: " in worker.log
