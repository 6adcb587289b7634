"""`inflight worker --executor tensorrt_llm` as a process over the double, driven by tritonclient; and what
it says when it cannot start.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from inflight.launch.model import DEMO_DIRECTORY
from support import double
from support.double.package import write_double
from support.pictures import picture
from support.processes import InflightProcess
from support.servers import Start
from support.triton import TritonStream, inputs, tensor, tokens
from trtllm.harness import BIAS, write_encoder_decoder, write_engine
from trtllm.pytorch_setup import SEEING, write_adapter, write_checkpoint


def engine_with_tokenizer(directory: Path, **build: Any) -> Path:
    write_engine(directory, **build)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_DIRECTORY / name, directory / name)
    return directory


def checkpoint_with_tokenizer(directory: Path, **config: Any) -> Path:
    write_checkpoint(directory, **config)
    (directory / "model.safetensors").write_bytes(b"weights")
    shutil.copy(DEMO_DIRECTORY / "tokenizer.json", directory / "tokenizer.json")
    return directory


def run_worker(
    start: Start, model: Path, environment: dict[str, str], *options: str, worker: tuple[str, ...] = ()
) -> InflightProcess:
    arguments = [*(f"--executor-option={option}" for option in options), *worker]
    return start(
        "worker", str(model), "--executor=tensorrt_llm", "--grpc-port=0", "--metrics-port=0", *arguments,
        environment=environment,
    )  # fmt: skip


class Served:
    def __init__(self, process: InflightProcess, log: Path) -> None:
        self.process = process
        self.log = log
        self.client = InferenceServerClient(process.address("grpc"))
        process.wait_until("it is ready", lambda: self.client.is_model_ready("tensorrt_llm"))

    def last_request(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.log.read_text().splitlines()[-1])
        return found


@pytest.fixture
def served(start: Start, tmp_path: Path) -> Iterator[Served]:
    environment = write_double(tmp_path / "double")
    process = run_worker(
        start, engine_with_tokenizer(tmp_path / "engine"), environment, "guided_decoding_backend=xgrammar"
    )
    made = Served(process, Path(environment["DOUBLE_REQUESTS"]))
    yield made
    made.client.close()


def test_tensors_of_a_client_reach_the_request_and_rows_the_client(served: Served) -> None:
    made = [
        *inputs([8, 16], 2, temperature=0.5, runtime_top_k=3, seed=2**63, end_id=5, return_log_probs=True),
        tensor("embedding_bias", [BIAS], "FP32"),
        tensor("stop_words_list", [[[40, 41], [2, -1]]], "INT32"),
        tensor("lora_task_id", [[7]], "UINT64"),
        tensor("lora_weights", np.ones((1, 1, 2), dtype=np.float16), "FP16"),
        tensor("lora_config", [[[0, 1, 8]]], "INT32"),
        tensor("guided_decoding_guide_type", np.array([[b"regex"]], dtype=np.object_), "BYTES"),
        tensor("guided_decoding_guide", np.array([[b"a+"]], dtype=np.object_), "BYTES"),
        tensor("retention_decode_priority", [[5]], "INT32"),
        tensor("exclude_input_in_output", [[True]], "BOOL"),
        tensor("return_context_logits", [[True]], "BOOL"),
    ]
    answer = served.client.infer("tensorrt_llm", made)
    assert tokens(answer) == [17, 18]
    assert answer.as_numpy("output_log_probs").ravel().tolist() == [-17 / 64, -18 / 64]
    assert answer.as_numpy("cum_log_probs").ravel().tolist() == [-35 / 64]
    assert answer.as_numpy("context_logits").shape == (1, 2, double.WIDTH)
    held = served.last_request()
    sampling = {"class": "SamplingConfig", "beam_width": 1, "top_k": 3, "seed": 2**63, "temperature": 0.5}
    assert held["sampling_config"] == sampling
    assert (held["input_token_ids"], held["max_tokens"], held["end_id"]) == ([8, 16], 2, 5)
    assert held["stop_words"] == [[40, 41]]
    assert held["embedding_bias"]["values"] == BIAS.tolist()
    assert held["lora_config"]["task_id"] == 7
    assert held["lora_config"]["config"] == {"dtype": "int32", "shape": [1, 3], "values": [[0, 1, 8]]}
    assert held["guided_decoding_params"] == {
        "class": "GuidedDecodingParams",
        "guide_type": "REGEX",
        "guide": "a+",
    }
    assert held["kv_cache_retention_config"]["decode_retention_priority"] == 5
    assert held["output_config"]["exclude_input_from_output"] is True


def test_a_stream_and_its_cancel(served: Served) -> None:
    stream = TritonStream(served.process.address("grpc"))
    stream.send("one", inputs([8], 4, streaming=True))
    assert [token for result in stream.until_final() for token in tokens(result)] == [9, 10, 11, 12]
    stream.send("two", inputs([double.SILENCE], 4, streaming=True))
    stream.send("two", inputs([1], 1, stop=True))
    stream.close(cancel=True)


def test_request_parameters_reach_the_request(start: Start, tmp_path: Path) -> None:
    environment = write_double(tmp_path / "double")
    process = run_worker(
        start, engine_with_tokenizer(tmp_path / "engine"), environment, "cache_transceiver_backend=UCX"
    )
    served = Served(process, Path(environment["DOUBLE_REQUESTS"]))
    context = served.client.infer(
        "tensorrt_llm", inputs([8, 16], 1), parameters={"request_type": "context_only"}, priority=1
    )
    held = served.last_request()
    assert held["type"] == "REQUEST_TYPE_CONTEXT_ONLY"
    assert held["priority"] == pytest.approx(0.99)
    phase = context.as_numpy("context_phase_params")
    following = [
        *inputs([8, 16], 2, exclude_input_in_output=True),
        tensor("context_phase_params", phase, "UINT8"),
    ]
    answer = served.client.infer("tensorrt_llm", following, parameters={"request_type": "generation_only"})
    assert tokens(answer) == [17, 18]
    held = served.last_request()
    assert held["type"] == "REQUEST_TYPE_GENERATION_ONLY"
    assert held["context_phase_params"]["first_gen_tokens"] == [17]
    with pytest.raises(InferenceServerException, match="`request_type` is `generation_only` without"):
        served.client.infer("tensorrt_llm", inputs([8], 1), parameters={"request_type": "generation_only"})
    served.client.close()


def test_an_errored_request_and_an_absent_capability(served: Served) -> None:
    with pytest.raises(InferenceServerException, match="LoRA task 7 not found"):
        served.client.infer("tensorrt_llm", inputs([double.ERROR, 1], 2))
    with pytest.raises(InferenceServerException, match="lookahead"):
        served.client.infer(
            "tensorrt_llm", [*inputs([1], 2), tensor("lookahead_window_size", [[3]], "INT32")]
        )
    assert tokens(served.client.infer("tensorrt_llm", inputs([8], 1)))[-1] == 9


@pytest.mark.parametrize("version", double.LINES)
def test_a_checkpoint_is_served_by_the_pytorch_runtime(start: Start, tmp_path: Path, version: str) -> None:
    directory = checkpoint_with_tokenizer(tmp_path / "model")
    environment = write_double(tmp_path / "double", version=version)
    served = Served(run_worker(start, directory, environment, "max_seq_len=64"), tmp_path)
    made = inputs([8, 16], 3, temperature=0.5, end_id=20, return_log_probs=True, exclude_input_in_output=True)
    answer = served.client.infer("tensorrt_llm", made)
    assert tokens(answer) == [17, 18, 19]
    # From the double's logits: 4 for the token, 2 for the next, 0 for the others.
    value = 4 - np.log(np.exp(4) + np.exp(2) + double.VOCAB - 2)
    assert answer.as_numpy("output_log_probs").ravel().tolist() == pytest.approx([value] * 3, rel=1e-5)
    stream = TritonStream(served.process.address("grpc"))
    stream.send("one", inputs([8], 4, streaming=True))
    assert [token for result in stream.until_final() for token in tokens(result)] == [9, 10, 11, 12]
    stream.close()
    # The default sampler of 1.2 would ignore it.
    ignored = pytest.raises(InferenceServerException, match="penalties")
    with ignored if version == "1.2.1" else nullcontext():
        served.client.infer("tensorrt_llm", [*inputs([8], 1), tensor("presence_penalty", [[0.5]], "FP32")])
    served.client.close()


def test_images_of_a_client_reach_the_llm(start: Start, tmp_path: Path) -> None:
    directory = checkpoint_with_tokenizer(tmp_path / "model", **SEEING)
    environment = write_double(tmp_path / "double")
    served = Served(run_worker(start, directory, environment), Path(environment["DOUBLE_REQUESTS"]))
    prompt = inputs([8, 16], 2, exclude_input_in_output=True)
    files = np.array([[picture("PNG", (3, 2)), picture("JPEG", (4, 5))]], dtype=np.object_)
    answer = served.client.infer("tensorrt_llm", [*prompt, tensor("inflight_images", files, "BYTES")])
    assert tokens(answer) == [17, 18]
    held = served.last_request()["inputs"]
    assert held["prompt_token_ids"] == [8, 16]
    assert [image.partition(" at ")[0] for image in held["multi_modal_data"]["image"]] == [
        "<PIL.Image.Image image mode=RGB size=3x2",
        "<PIL.Image.Image image mode=RGB size=4x5",
    ]
    broken = tensor("inflight_images", np.array([[b"x"]], dtype=np.object_), "BYTES")
    with pytest.raises(InferenceServerException, match=r"`inflight_images\[0\]` is not an image"):
        served.client.infer("tensorrt_llm", [*prompt, broken])
    # No image is no image: also for executors that take none.
    none = tensor("inflight_images", np.zeros((1, 0), dtype=np.object_), "BYTES")
    assert tokens(served.client.infer("tensorrt_llm", [*prompt, none])) == [17, 18]
    served.client.close()


def test_an_executor_that_takes_no_images_refuses_them_by_name(served: Served) -> None:
    one = tensor("inflight_images", np.array([[picture()]], dtype=np.object_), "BYTES")
    with pytest.raises(InferenceServerException, match="`inflight_images` needs `images`"):
        served.client.infer("tensorrt_llm", [*inputs([8], 2), one])


def test_adapters_are_chosen_by_their_task_id(start: Start, tmp_path: Path) -> None:
    directory = checkpoint_with_tokenizer(tmp_path / "model")
    adapters = write_adapter(tmp_path / "adapters")
    environment = write_double(tmp_path / "double")
    process = run_worker(
        start, directory, environment, f"lora_adapter_dir={adapters}", "lora_target_modules=attn_q,attn_v"
    )
    served = Served(process, Path(environment["DOUBLE_REQUESTS"]))
    prompt = inputs([8], 2, exclude_input_in_output=True)
    task = tensor("lora_task_id", [[7]], "UINT64")
    assert tokens(served.client.infer("tensorrt_llm", [*prompt, task])) == [9, 10]
    path = str(adapters / "7")
    assert served.last_request()["lora_request"] == {"lora_name": "7", "lora_int_id": 7, "lora_path": path}
    weights = [
        tensor("lora_weights", np.ones((1, 1, 2), dtype=np.float16), "FP16"),
        tensor("lora_config", [[[0, 1, 8]]], "INT32"),
    ]
    for more, words in (
        ([task, *weights], "`lora_weights` cannot be taken"),
        ([tensor("lora_task_id", [[8]], "UINT64")], "LoRA task `8` is not in `lora_adapter_dir`"),
    ):
        with pytest.raises(InferenceServerException, match=words):
            served.client.infer("tensorrt_llm", [*prompt, *more])
    served.client.close()


def test_adapters_are_loaded_by_name_while_the_worker_runs(start: Start, tmp_path: Path) -> None:
    directory = checkpoint_with_tokenizer(tmp_path / "model")
    adapters = write_adapter(tmp_path / "adapters", "support")
    environment = write_double(tmp_path / "double")
    process = start(
        "worker", str(directory), "--executor=tensorrt_llm", "--grpc-port=0", "--metrics-port=0",
        "--executor-option=lora_target_modules=attn_q,attn_v", f"--adapter-dir={adapters}",
        environment=environment,
    )  # fmt: skip
    served = Served(process, Path(environment["DOUBLE_REQUESTS"]))
    prompt = inputs([8], 2, exclude_input_in_output=True)
    served.client.load_model("support")
    # The first id of those that are loaded later.
    task = tensor("lora_task_id", [[1_000_000]], "UINT64")
    assert tokens(served.client.infer("tensorrt_llm", [*prompt, task])) == [9, 10]
    assert served.last_request()["lora_request"]["lora_path"] == str(adapters / "support")
    served.client.unload_model("support")
    with pytest.raises(InferenceServerException, match="LoRA task `1000000` is not loaded"):
        served.client.infer("tensorrt_llm", [*prompt, task])
    with pytest.raises(InferenceServerException):
        served.client.load_model("nothing")
    served.client.close()


def test_an_encoder_decoder_is_served_from_its_one_directory(start: Start, tmp_path: Path) -> None:
    directory = write_encoder_decoder(tmp_path / "t5")
    shutil.copy(DEMO_DIRECTORY / "tokenizer.json", directory / "tokenizer.json")
    environment = write_double(tmp_path / "double")
    served = Served(run_worker(start, directory, environment), Path(environment["DOUBLE_REQUESTS"]))
    made = inputs(list(range(30)), 3, exclude_input_in_output=True)
    assert tokens(served.client.infer("tensorrt_llm", made)) == [8, 9, 10]
    held = served.last_request()
    assert (held["encoder_input_token_ids"], held["input_token_ids"]) == (list(range(30)), [7])
    made = [
        *inputs([1], 3, exclude_input_in_output=True),
        tensor("decoder_input_ids", [[20, 21]], "INT32"),
        tensor("decoder_input_lengths", [[2]], "INT32"),
    ]
    assert tokens(served.client.infer("tensorrt_llm", made)) == [22, 23, 24]
    served.client.close()


@pytest.mark.parametrize("runtime", ["engines", "pytorch"])
@pytest.mark.parametrize(
    ("prompt", "reasons"),
    [
        (double.CRASH, {"engines": "CUDA error: an illegal memory access", "pytorch": "has died"}),
        (double.FAULT, {"engines": "forwardAsync", "pytorch": "forwardAsync"}),
        (double.DEATH, {"engines": "one of its ranks has died", "pytorch": "one of its ranks has died"}),
        (double.SILENCE, {"engines": "no progress", "pytorch": "no progress"}),
    ],
    ids=["fatal error", "error of all", "dead rank", "no progress"],
)
def test_an_engine_that_cannot_go_on_ends_the_worker_with_its_own_code_and_the_reason(
    start: Start, tmp_path: Path, runtime: str, prompt: int, reasons: dict[str, str]
) -> None:
    environment = write_double(tmp_path / "double")
    if runtime == "engines":
        model = engine_with_tokenizer(tmp_path / "model")
    else:
        model = checkpoint_with_tokenizer(tmp_path / "model")
    # Longer than the question whether the engine lives, which is asked once a second.
    patience = "0.5" if prompt == double.SILENCE else "30"
    process = start(
        "worker", str(model), "--executor=tensorrt_llm", "--grpc-port=0", "--metrics-port=0",
        f"--progress-timeout-s={patience}", environment=environment,
    )  # fmt: skip
    served = Served(process, Path(environment["DOUBLE_REQUESTS"]))
    with pytest.raises(InferenceServerException):
        served.client.infer("tensorrt_llm", inputs([prompt, 1], 2))
    assert process.wait() == 3, process.log
    *_, last, status = process.log.splitlines()
    assert status == "[exit status 3]"
    assert reasons[runtime] in last, process.log
    served.client.close()


@pytest.mark.parametrize(
    ("version", "change", "words"),
    [
        (None, None, ("needs TensorRT-LLM, which is not installed", "NVIDIA's package index")),
        ("0.21.0", None, ("needs TensorRT-LLM 1.0 or later, and `0.21.0` is installed", "1.2.1")),
        ("1.3.0", None, ("`1.3.0` no longer runs engines", "1.2.1")),
        ("1.2.0", None, ("was built by TensorRT-LLM `1.2.1`, and `1.2.0` is installed", "inflight build")),
        ("1.2.1", "rank0.engine", ("rank0.engine` is missing or empty", "inflight build")),
        ("1.2.1", "config.json", ("`config.json` names no model", "inflight build")),
        ("1.2.1", "tokenizer.json", ("no `tokenizer.json`", "hint")),
        ("1.2.1", "ranks", ("split over `2` ranks, and this job has `1`", "mpirun -n 2")),
        ("1.2.1", "option", ("`max_beams` is not an option", "docs/reference/tensorrt-llm.md")),
        ("1.2.1", "value", ("`gpu_weights_percent` must be a number from 0 to 1, got `2`",)),
    ],
)
def test_what_cannot_work_is_one_sentence_with_a_remedy(
    start: Start, tmp_path: Path, version: str | None, change: str | None, words: tuple[str, str]
) -> None:
    environment = {} if version is None else write_double(tmp_path / "double", version=version)
    directory = engine_with_tokenizer(tmp_path / "engine")
    options = {"option": ["max_beams=2"], "value": ["gpu_weights_percent=2"]}.get(str(change), [])
    if change == "rank0.engine":
        (directory / change).write_bytes(b"")
    elif change == "config.json":
        (directory / change).write_text("{}")
    elif change == "tokenizer.json":
        (directory / change).unlink()
    elif change == "ranks":
        write_engine(directory, ranks=2)
    began = time.monotonic()
    process = run_worker(start, directory, environment, *options)
    assert process.wait() == 2, process.log
    # A second on a machine that does nothing else; the tests share theirs.
    assert time.monotonic() - began < 10
    for one in words:
        assert one in process.log
    assert "Traceback" not in process.log
