"""What gRPC clients ask of a worker besides plain answers: log settings, shared memory, health, reflection,
and a second worker that guesses.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from support.processes import START_S, InflightProcess, wait_until
from support.servers import MODEL_ARGUMENTS, MODEL_NAME, Server, Start
from support.triton import MODEL, TritonStream, inputs, tensor, tokens

PROMPT = [40, 41, 42, 43]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(server.grpc)
    yield made
    made.close()


def start_worker(start: Start, *arguments: str, **options: Any) -> tuple[InflightProcess, str]:
    """A worker on the reference executor, once it is ready, and its address."""
    worker = start(
        "worker",
        *MODEL_ARGUMENTS,
        f"--served-model-name={MODEL_NAME}",
        "--grpc-port=0",
        "--metrics-port=0",
        *arguments,
        **options,
    )
    address = worker.address("grpc")
    client = triton.InferenceServerClient(address)

    def is_ready() -> bool:
        try:
            return bool(client.is_server_ready())
        except InferenceServerException:
            return False

    worker.wait_until("it is ready", is_ready, START_S)
    client.close()
    return worker, address


def text(prompt: str, max_tokens: int, **scalars: Any) -> list[triton.InferInput]:
    """A request of one row for a text model."""
    made = [
        tensor("text_input", [[prompt.encode()]], "BYTES"),
        tensor("max_tokens", [[max_tokens]], "INT32"),
    ]
    for name, value in scalars.items():
        made.append(tensor(name, [[value]], "BOOL" if isinstance(value, bool) else "INT32"))
    return made


def test_log_settings_act(start: Start) -> None:
    worker, address = start_worker(start)
    client = triton.InferenceServerClient(address)
    settings = client.get_log_settings(as_json=True)["settings"]
    assert settings["log_info"]["bool_param"]
    assert settings["log_format"]["string_param"] == "ISO8601"
    assert "DEBUG" not in worker.log
    changed = client.update_log_settings({"log_verbose_level": 2}, as_json=True)["settings"]
    assert changed["log_verbose_level"]["uint32_param"] == 2
    client.infer(MODEL, inputs(PROMPT, 2))
    worker.wait_until("it says more", lambda: "TRACE" in worker.log or "DEBUG" in worker.log, 10)
    quiet = client.update_log_settings(
        {"log_verbose_level": 0, "log_info": False, "log_warning": False, "log_error": False}, as_json=True
    )["settings"]
    assert "bool_param" not in quiet["log_info"] or not quiet["log_info"]["bool_param"]
    for setting, reason in [
        ({"log_file": "/tmp/x"}, "log file location can not be updated"),
        ({"log_format": "default"}, "the log's format is `ISO8601`"),
        ({"log_nothing": True}, "unknown log setting `log_nothing`"),
    ]:
        with pytest.raises(InferenceServerException, match=reason):
            client.update_log_settings(setting)
    client.close()


@pytest.fixture
def region(client: triton.InferenceServerClient) -> Iterator[tuple[str, Any]]:
    """A region of 4 KiB that the worker knows."""
    name = f"inflight-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(name, f"/{name}", 4096)
    client.register_system_shared_memory(name, f"/{name}", 4096)
    yield name, handle
    client.unregister_system_shared_memory(name)
    shm.destroy_shared_memory_region(handle)


@pytest.mark.migrates(
    "Triton",
    "tritonclient.utils.shared_memory: create_shared_memory_region",
    "tritonclient.utils.shared_memory: create_shared_memory_region",
)
@pytest.mark.parametrize("model", [MODEL, "ensemble", "preprocessing"])
def test_tensors_may_lie_in_shared_memory(
    client: triton.InferenceServerClient, region: tuple[str, Any], model: str
) -> None:
    name, handle = region
    output = {MODEL: "output_ids", "ensemble": "text_output", "preprocessing": "INPUT_ID"}[model]
    if model == MODEL:
        asked = inputs(PROMPT, 4, runtime_top_k=1)
        first, array = "input_ids", np.array([PROMPT], np.int32)
    else:
        asked = text("Hello", 4)
        if model == "preprocessing":
            asked = [tensor("QUERY", [[b"Hello"]], "BYTES"), tensor("REQUEST_OUTPUT_LEN", [[4]], "INT32")]
        first, array = asked[0].name(), np.array([[b"Hello"]], dtype=np.object_)
    expected = client.infer(model, asked).as_numpy(output)
    shm.set_shared_memory_region(handle, [array if model == MODEL else serialize_byte_tensor(array)])
    size = 16 if model == MODEL else len(b"Hello") + 4
    placed = triton.InferInput(first, list(array.shape), "INT32" if model == MODEL else "BYTES")
    placed.set_shared_memory(name, size)
    wanted = triton.InferRequestedOutput(output)
    wanted.set_shared_memory(name, 2048, offset=1024)
    result = client.infer(model, [placed, *asked[1:]], outputs=[wanted])
    described = result.get_output(output)
    assert described.parameters["shared_memory_region"].string_param == name
    found = shm.get_contents_as_numpy(handle, expected.dtype, list(described.shape), offset=1024)
    assert found.tolist() == expected.tolist()


def test_regions_are_listed_and_refused_by_name(
    client: triton.InferenceServerClient, region: tuple[str, Any]
) -> None:
    name, _ = region
    status = client.get_system_shared_memory_status(name).regions
    assert (status[name].key, status[name].offset, status[name].byte_size) == (f"/{name}", 0, 4096)
    rest = inputs(PROMPT, 4)[1:]
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: client.register_system_shared_memory(name, f"/{name}", 16), "already in manager"),
        (
            lambda: client.register_system_shared_memory("x", "/nothing-there", 16),
            "Unable to open shared memory",
        ),
        (
            lambda: client.register_system_shared_memory("x", "/../etc/passwd", 16),
            "Unable to open shared memory",
        ),
        (lambda: client.register_system_shared_memory("x", f"/{name}", 8192), "invalid args"),
        (lambda: client.get_system_shared_memory_status("x"), "Unable to find shared memory region: 'x'"),
    ]
    for call, reason in calls:
        with pytest.raises(InferenceServerException, match=reason):
            call()
    for region_name, size, offset, reason in [
        ("nowhere", 16, 0, "Unable to find shared memory region: 'nowhere'"),
        (name, 16, 4090, "Invalid offset"),
        (name, 8, 0, "input_ids"),
    ]:
        placed = triton.InferInput("input_ids", [1, 4], "INT32")
        placed.set_shared_memory(region_name, size, offset=offset)
        with pytest.raises(InferenceServerException, match=reason):
            client.infer(MODEL, [placed, *rest])
    small = triton.InferRequestedOutput("output_ids")
    small.set_shared_memory(name, 4)
    with pytest.raises(InferenceServerException, match="should be at least"):
        client.infer(MODEL, inputs(PROMPT, 4), outputs=[small])


def test_probes_and_tools_find_the_services(server: Server) -> None:
    """Over the wire's own bytes: the packages of the two services are not among the tests' needs."""
    with grpc.insecure_channel(server.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        # `status` (field 1) is SERVING (1).
        for service in ("", "inference.GRPCInferenceService"):
            asked = b"" if not service else bytes([0x0A, len(service)]) + service.encode()
            assert check(asked) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as raised:
            check(b"\x0a\x07nothing")
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        for version in ("v1", "v1alpha"):
            call = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
            # `list_services` (field 7).
            [answer] = list(call(iter([b"\x3a\x00"])))
            for name in (
                b"inference.GRPCInferenceService",
                b"inflight.v1.CacheState",
                b"inflight.v1.ModelAssets",
                b"grpc.health.v1.Health",
            ):
                assert name in answer


@pytest.fixture(scope="module")
def drafting(start_for_session: Start) -> str:
    """A worker that asks a second one, of the same model, for guesses."""
    _, draft = start_worker(start_for_session, "--core-model-name=draft")
    _, address = start_worker(
        start_for_session,
        f"--draft-worker={draft}",
        "--draft-model-name=draft",
        "--executor-option=enable_kv_cache_reuse=true",
    )
    return address


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "`e2e_grpc_speculative_decoding_client.py --num-draft-tokens 5`, with a `tensorrt_llm_draft_model_name`",
    "inflight worker LARGE --draft-worker HOST:PORT",
)
@pytest.mark.parametrize("stream_call", [False, True])
@pytest.mark.parametrize("use_draft_logits", [False, True])
def test_guesses_of_a_draft_worker_change_no_token(
    drafting: str, use_draft_logits: bool, stream_call: bool
) -> None:
    client = triton.InferenceServerClient(drafting)
    asked = text("Hello", 12, exclude_input_in_output=True, return_num_output_tokens=True)
    expected = client.infer("tensorrt_llm_bls", asked)
    guessed = [*asked, *text("", 0, num_draft_tokens=3, use_draft_logits=use_draft_logits)[2:]]
    before = client.get_inference_statistics(MODEL).model_stats[0].inference_stats.success.count
    if stream_call:
        stream = TritonStream(drafting)
        stream.client.async_stream_infer("tensorrt_llm_bls", guessed, request_id="d")
        result, error = stream.next()
        stream.close()
        assert error is None
    else:
        result = client.infer("tensorrt_llm_bls", guessed, request_id="d")
    rounds = client.get_inference_statistics(MODEL).model_stats[0].inference_stats.success.count - before
    client.close()
    assert result.get_response().id == "d"
    assert result.as_numpy("text_output").tolist() == expected.as_numpy("text_output").tolist()
    count = int(expected.as_numpy("num_output_tokens")[0, 0])
    assert int(result.as_numpy("num_output_tokens")[0, 0]) == count
    # The same model guesses right: four tokens a round, and not one.
    assert rounds <= count // 4 + 2


def test_a_request_in_rounds_can_be_stopped(drafting: str) -> None:
    made = text("Hello", 1500, num_draft_tokens=3, return_num_output_tokens=True, end_id=0)
    stream = TritonStream(drafting)
    stream.client.async_stream_infer("tensorrt_llm_bls", made, request_id="rounds")
    with triton.InferenceServerClient(drafting) as client:
        statistics = client.get_inference_statistics(MODEL).model_stats[0].inference_stats
        before = statistics.success.count

        def rounds() -> int:
            stats = client.get_inference_statistics(MODEL).model_stats[0].inference_stats
            return int(stats.success.count) - int(before)

        wait_until("it goes in rounds", lambda: rounds() > 2)
        client.infer(MODEL, inputs([0], 0, stop=True), request_id="rounds")
        result, error = stream.next()
        stream.close()
    assert error is None, error
    assert 2 < int(result.as_numpy("num_output_tokens")[0, 0]) < 1500


def test_what_does_not_go_with_guesses_is_refused(
    drafting: str, client: triton.InferenceServerClient
) -> None:
    own = triton.InferenceServerClient(drafting)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"beam_width": 2}, "not supported with beam_width"),
        ({"return_context_logits": True}, "not supported with return_context_logits"),
        ({"num_return_sequences": 2}, "not supported with num_return_sequences"),
        ({"stream": True}, "not supported with `stream`"),
    ]
    for scalars, reason in cases:
        with pytest.raises(InferenceServerException, match=reason):
            own.infer("tensorrt_llm_bls", text("Hello", 4, num_draft_tokens=2, **scalars))
    assert own.infer("tensorrt_llm_bls", text("Hello", 4, num_draft_tokens=0)) is not None
    own.close()
    with pytest.raises(InferenceServerException, match="`num_draft_tokens` is not supported by this model"):
        client.infer("tensorrt_llm_bls", text("Hello", 4, num_draft_tokens=2))


def test_a_draft_worker_that_is_gone_is_named(start: Start) -> None:
    _, address = start_worker(start, "--draft-worker=127.0.0.1:1")
    client = triton.InferenceServerClient(address)
    with pytest.raises(
        InferenceServerException, match=r"the draft worker `127\.0\.0\.1:1` returned no tokens"
    ) as raised:
        client.infer("tensorrt_llm_bls", text("Hello", 4, num_draft_tokens=2))
    assert raised.value.status() == "StatusCode.UNAVAILABLE"
    # Without guesses it answers.
    assert len(tokens(client.infer(MODEL, inputs(PROMPT, 2)))) > 0
    client.close()
