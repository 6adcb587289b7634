"""LoRA adapters that are loaded and unloaded while workers and a gateway serve."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from support.adapters import answer, save
from support.http import get, post
from support.servers import MODEL_NAME, Start, wait_ready
from support.triton import MODEL, inputs, tensor, tokens

NOT_ALLOWED = "explicit model load / unload is not allowed"
LOUD, PLAIN = f"{MODEL_NAME}:loud", f"{MODEL_NAME}:plain"


class Cluster:
    """Two workers of one model, and a gateway in front."""

    def __init__(self, start: Start, root: Path) -> None:
        self.adapters = root / "adapters"
        for name, scale in (("loud", 1), ("plain", 0), ("7", 1)):
            save(self.adapters / name, scale)
        save(root / "secret", 1)
        self.root = root
        save(root / "at-start" / "support", 0)
        (self.adapters / "link").symlink_to(root / "secret")
        (self.adapters / "empty").mkdir()
        workers = [
            start(
                "worker",
                f"--served-model-name={MODEL_NAME}",
                "--grpc-port=0",
                "--metrics-port=0",
                "--http-port=0",
                f"--adapter-dir={self.adapters}",
                "--executor-option=lora_max_adapters=2",
            )
            for _ in range(2)
        ]
        self.workers = workers
        self.grpc = [worker.address("grpc") for worker in workers]
        self.http = workers[0].address("http").removeprefix("http://")
        named = [f"--worker={address}" for address in self.grpc]
        self.gateway = start("gateway", "--port=0", "--allow-lora-loading", *named)
        self.url = wait_ready(self.gateway)
        self.gateway.wait_until("it has both workers", lambda: self.gateway.log.count("worker ready") == 2)

    @property
    def logs(self) -> str:
        return "".join(worker.log for worker in self.workers)

    def wait_for(self, client: openai.OpenAI, *names: str) -> None:
        """Until the gateway lists these adapters and no others."""
        wanted = {MODEL_NAME, *names}
        self.gateway.wait_until(f"it lists {wanted}", lambda: listed(client) == wanted)


def listed(client: openai.OpenAI) -> set[str]:
    return {card.id for card in client.models.list()}


@pytest.fixture(scope="module")
def cluster(start_for_session: Start, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(start_for_session, tmp_path_factory.mktemp("loading"))


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{cluster.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def worker(cluster: Cluster) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(cluster.grpc[0]) as made:
        yield made


def gone(client: openai.OpenAI, name: str) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        answer(client, name)
    assert refused.value.code == "model_not_found"


def test_an_adapter_of_one_worker_answers_beside_streams_until_it_is_unloaded(
    cluster: Cluster, client: openai.OpenAI, worker: triton.InferenceServerClient
) -> None:
    base = answer(client, MODEL_NAME)
    gone(client, LOUD)
    told: list[str] = []
    stop = threading.Event()

    def stream() -> None:
        while not stop.is_set():
            told.append(answer(client, MODEL_NAME, stream=True))

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        worker.load_model("loud")
        cluster.wait_for(client, LOUD)
        loud = answer(client, LOUD)
        assert loud != base
        # Again: the same files, the same answers. And in the place of others.
        worker.load_model("loud")
        assert answer(client, LOUD, stream=True) == loud
        worker.unload_model("loud")
        cluster.wait_for(client)
        gone(client, LOUD)
    finally:
        stop.set()
        thread.join(60)
    assert set(told) == {base}


def test_over_http_a_number_is_its_own_task(cluster: Cluster, worker: triton.InferenceServerClient) -> None:
    asked: Any = inputs([40, 41, 42], 8, exclude_input_in_output=True, runtime_top_k=1)
    seven = tensor("lora_task_id", [[7]], "UINT64")
    base = tokens(worker.infer(MODEL, asked))
    with triton_http.InferenceServerClient(cluster.http) as client:
        client.load_model("7")
        assert tokens(worker.infer(MODEL, [*asked, seven])) != base
        client.unload_model("7")
        with pytest.raises(InferenceServerException, match="no adapter `7` is loaded"):
            client.unload_model("7")
    with pytest.raises(InferenceServerException, match="LoRA task 7 not found in cache"):
        worker.infer(MODEL, [*asked, seven])


def load(cluster: Cluster, name: str, path: str, **more: Any) -> tuple[int, str]:
    body = {"lora_name": name, "lora_path": path, **more}
    answered = post(cluster.url, "/v1/load_lora_adapter", body)
    return answered.status, answered.body.decode()


def unload(cluster: Cluster, name: str) -> tuple[int, str]:
    answered = post(cluster.url, "/v1/unload_lora_adapter", {"lora_name": name})
    return answered.status, answered.body.decode()


def test_through_the_gateway_every_worker_loads_it(cluster: Cluster, client: openai.OpenAI) -> None:
    base = answer(client, MODEL_NAME)
    assert load(cluster, "loud", "loud") == (200, "Success: LoRA adapter 'loud' added successfully.")
    # At once, whichever worker gets the request.
    loud = {answer(client, LOUD) for _ in range(4)}
    assert len(loud) == 1
    assert base not in loud
    for address in cluster.grpc:
        with triton.InferenceServerClient(address) as worker:
            worker.unload_model("loud")
            worker.load_model("loud")
            # The gateway hears of a worker's adapters in order: with this one, it knows of what came before.
            worker.load_model("7")
            cluster.wait_for(client, LOUD, f"{MODEL_NAME}:7")
            worker.unload_model("7")
            cluster.wait_for(client, LOUD)
    status, text = load(cluster, LOUD, "plain")
    assert status == 400
    assert "loaded already" in text
    assert load(cluster, LOUD, str(cluster.adapters / "plain"), load_inplace=True)[0] == 200
    assert {answer(client, LOUD) for _ in range(4)} == {base}
    assert unload(cluster, "loud") == (200, "Success: LoRA adapter 'loud' removed successfully.")
    gone(client, LOUD)
    assert unload(cluster, "loud")[0] == 404


def test_what_only_one_worker_lacks_it_alone_is_asked_for(
    cluster: Cluster, client: openai.OpenAI, worker: triton.InferenceServerClient
) -> None:
    worker.load_model("plain")
    worker.load_model("7")
    cluster.wait_for(client, PLAIN, f"{MODEL_NAME}:7")
    assert load(cluster, "plain", "plain")[0] == 200
    # The first worker has as many as it may.
    status, text = load(cluster, "loud", "loud")
    assert status == 400
    assert "loaded by 1 of 2 workers" in text
    assert f"`{cluster.grpc[0]}`: `2` adapters are loaded" in text
    assert unload(cluster, "7")[0] == 200
    assert load(cluster, "loud", "loud")[0] == 200
    for name in ("plain", "loud"):
        assert unload(cluster, name)[0] == 200
    cluster.wait_for(client)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("../secret", "is not in the worker's `--adapter-dir`"),
        ("loud/../../secret", "is not in the worker's `--adapter-dir`"),
        ("/etc", "is not in the worker's `--adapter-dir`"),
        ("link", "is a link out of the worker's `--adapter-dir`"),
        ("missing", "there is no directory `missing` in the worker's `--adapter-dir`"),
        ("empty", "cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_each_worker(cluster: Cluster, path: str, words: str) -> None:
    status, text = load(cluster, "bad", path)
    assert status == 400
    assert "loaded by 0 of 2 workers" in text
    for address in cluster.grpc:
        assert f"`{address}`" in text
    assert text.count(words) == 2


def generate(address: str, **more: Any) -> tuple[int, str]:
    """The text that follows a prompt, or the error, of a request with llmapi's tensors."""
    body = {"text_input": "Hello", "sampling_param_max_tokens": 8, **more}
    answered = post(address, f"/v2/models/{MODEL}/generate", body)
    found = answered.json()
    return answered.status, found["text_output"] if answered.status == 200 else found["error"]


def files(name: str, path: str) -> dict[str, Any]:
    """As llmapi's tensors name an adapter; its number is the client's affair."""
    return {"lora_id": 1, "lora_name": name, "lora_path": path}


def test_a_request_that_names_the_files_has_them_loaded_once(
    cluster: Cluster, client: openai.OpenAI, worker: triton.InferenceServerClient
) -> None:
    base = generate(cluster.http)
    loud = generate(cluster.http, **files("loud", "loud"))
    assert (loud[0], base[0]) == (200, 200)
    assert loud != base
    cluster.wait_for(client, LOUD)
    # Each worker reads them when it is the first time asked, and only then.
    before = cluster.logs.count("adapter loaded")
    assert {generate(cluster.url, **files("loud", "loud")) for _ in range(4)} == {loud}
    assert generate(cluster.http, **files("loud", str(cluster.adapters / "loud"))) == loud
    assert cluster.logs.count("adapter loaded") <= before + 1
    status, text = generate(cluster.http, **files("loud", "plain"))
    assert status == 400
    assert "an adapter `loud` is loaded, and not from these files" in text
    for name in cluster.grpc:
        with triton.InferenceServerClient(name) as one:
            # Whichever of the two was asked.
            one.load_model("loud")
            one.unload_model("loud")
    cluster.wait_for(client)
    assert generate(cluster.http, **files("loud", "plain")) == base
    worker.unload_model("loud")
    cluster.wait_for(client)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (files("bad", "../secret"), "is not in the worker's `--adapter-dir`"),
        (files("bad", "missing"), "there is no directory `missing`"),
        (files("bad", ""), "`lora_path` must be a string of 1 to 4096 bytes"),
        (files("", "loud"), "an adapter's name is empty"),
        (files("a:b", "loud"), "has a colon or a control character"),
        (files("bad", "empty"), "cannot be read: No such file or directory"),
        ({"lora_name": "loud", "lora_path": "loud"}, "`lora_id` is missing"),
        ({"lora_id": 1, "lora_path": "loud"}, "`lora_name` is missing"),
        ({"lora_ckpt_source": "hf"}, "`lora_id` is missing"),
        ({**files("loud", "loud"), "lora_ckpt_source": "nemo"}, "`lora_ckpt_source` is `nemo`"),
        ({**files("loud", "loud"), "lora_id": "one"}, "lora_id"),
    ],
)
def test_files_that_a_request_cannot_have_are_refused(
    cluster: Cluster, worker: triton.InferenceServerClient, more: dict[str, Any], words: str
) -> None:
    status, text = generate(cluster.http, **more)
    assert status == 400
    assert words in text
    for name in ("bad", "loud"):
        with pytest.raises(InferenceServerException, match=f"no adapter `{name}` is loaded"):
            worker.unload_model(name)


def test_a_name_that_the_worker_started_with_is_not_replaced(start: Start, cluster: Cluster) -> None:
    process = start(
        "worker",
        f"--served-model-name={MODEL_NAME}",
        "--grpc-port=0",
        "--metrics-port=0",
        "--http-port=0",
        f"--adapter-dir={cluster.adapters}",
        f"--executor-option=lora_adapter_dir={cluster.root / 'at-start'}",
    )
    address = process.address("http")
    process.wait_until("it is ready", lambda: get(address, "/v2/health/ready").status == 200)
    status, text = generate(address, **files("support", "loud"))
    assert status == 400
    assert "an adapter `support` is loaded, and not from these files" in text
    assert generate(address, **files("other", "loud")) == generate(cluster.http, **files("loud", "loud"))
    with triton.InferenceServerClient(cluster.grpc[0]) as worker:
        worker.unload_model("loud")


def test_who_was_not_started_for_it_refuses(start: Start, cluster: Cluster) -> None:
    gateway = start("gateway", "--port=0", f"--worker={cluster.grpc[0]}")
    url = wait_ready(gateway)
    status, text = generate(url, **files("loud", "loud"))
    assert status == 403
    assert "`lora_path` has a server load a LoRA adapter" in text
    answered = post(url, "/v1/load_lora_adapter", {"lora_name": "loud", "lora_path": "loud"})
    assert answered.status == 403
    assert "`--allow-lora-loading`" in answered.body.decode()
    with triton.InferenceServerClient(cluster.grpc[0]) as worker:
        with pytest.raises(InferenceServerException, match=NOT_ALLOWED):
            worker.load_model(MODEL)
        with pytest.raises(InferenceServerException, match="`config` is not supported"):
            worker.load_model("loud", config="{}")
