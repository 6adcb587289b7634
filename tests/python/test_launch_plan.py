"""What `inflight serve` would start: options in, process descriptions out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.errors import UserMistake
from inflight.launch.plan import ProcessSpec, ServeOptions, announced_address, example, plan_serve

OPTIONS = ServeOptions(
    model="/models/tiny",
    served_model_name="tiny",
    host="0.0.0.0",
    port=8000,
    grpc_port=8001,
    metrics_port=8002,
    executor="simulated",
    device="cpu",
)


def test_the_worker_starts_first_and_the_gateway_waits_for_it() -> None:
    worker, gateway = plan_serve(OPTIONS).processes
    assert (worker.name, worker.after) == ("worker", ())
    assert (gateway.name, gateway.after) == ("gateway", ("worker",))


def test_every_option_reaches_its_owner() -> None:
    worker, gateway = plan_serve(OPTIONS).processes
    assert worker.arguments == (
        "worker",
        "/models/tiny",
        "--served-model-name=tiny",
        "--executor=simulated",
        "--device=cpu",
        "--host=127.0.0.1",
        "--grpc-port=8001",
        "--metrics-port=8002",
    )
    assert gateway.resolve({"worker": "127.0.0.1:8001"}) == (
        "gateway",
        "--worker=127.0.0.1:8001",
        "--host=0.0.0.0",
        "--port=8000",
    )


def test_a_restarted_worker_listens_where_it_did_and_the_gateway_is_not_restarted() -> None:
    worker, gateway = plan_serve(replace(OPTIONS, grpc_port=0)).processes
    again = worker.resolve_again({"worker": "127.0.0.1:41234"})
    assert again == tuple(
        "--grpc-port=41234" if argument == "--grpc-port=0" else argument for argument in worker.arguments
    )
    assert gateway.restart_port is None


def test_the_executors_own_options_are_handed_on_as_given() -> None:
    given = ("max_tokens_in_paged_kv_cache=4096", "medusa_choices={{0}, {worker}}")
    worker, _ = plan_serve(replace(OPTIONS, executor="tensorrt_llm", executor_options=given)).processes
    arguments = worker.resolve({})
    assert [one for one in arguments if one.startswith("--executor-option")] == [
        "--executor-option=max_tokens_in_paged_kv_cache=4096",
        "--executor-option=medusa_choices={{0}, {worker}}",
    ]


def test_without_a_model_the_worker_chooses_the_embedded_one() -> None:
    worker, _ = plan_serve(replace(OPTIONS, model=None)).processes
    assert worker.arguments[1] == "--served-model-name=tiny"


def test_the_api_key_is_never_an_argument() -> None:
    worker, gateway = plan_serve(replace(OPTIONS, api_key="secret")).processes
    assert gateway.environment == {"INFLIGHT_API_KEY": "secret"}
    assert worker.environment == {}
    assert not any("secret" in argument for argument in worker.arguments + gateway.arguments)


def test_two_equal_ports_are_refused_by_name() -> None:
    with pytest.raises(UserMistake, match="`--port` and `--metrics-port` are both `8000`"):
        plan_serve(replace(OPTIONS, metrics_port=8000))


def test_port_zero_may_stand_everywhere() -> None:
    plan_serve(replace(OPTIONS, port=0, grpc_port=0, metrics_port=0))


def test_a_path_with_braces_is_left_alone() -> None:
    spec = ProcessSpec(name="worker", arguments=("worker", "/models/{x}/{0}"))
    assert spec.resolve({"gateway": "a:1"}) == spec.arguments


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("inflight worker: listening on grpc://127.0.0.1:41234", "127.0.0.1:41234"),
        ("inflight gateway: listening on http://0.0.0.0:8000", "127.0.0.1:8000"),
        ("inflight gateway: listening on http://[::]:8000", "[::1]:8000"),
        ("inflight gateway: listening on http://[::1]:8000", "[::1]:8000"),
        ("inflight worker: metrics on http://127.0.0.1:8002/metrics", None),
        ("listening on grpc://somewhere", None),
        ("", None),
    ],
)
def test_the_announced_address_can_be_connected_to(line: str, address: str | None) -> None:
    assert announced_address(line) == address


def test_the_example_names_address_model_and_key() -> None:
    text = example("127.0.0.1:8123", "tiny", key=True)
    assert "curl http://127.0.0.1:8123/v1/chat/completions" in text
    assert '"model":"tiny"' in text
    assert "authorization: Bearer $INFLIGHT_API_KEY" in text
    assert "authorization" not in example("127.0.0.1:8123", "tiny", key=False)
