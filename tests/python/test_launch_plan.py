"""What a topology would start: a description in, process descriptions out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.errors import UserMistake
from inflight.launch.placing import place
from inflight.launch.plan import LaunchPlan, ProcessSpec, announced_address, describe, example, plan
from inflight.launch.topology import Drain, Gateways, Model, Mpi, Topology

MODEL = Model(
    name="tiny",
    path="/models/tiny",
    executor="simulated",
    device="cpu",
    grpc_port=8001,
    metrics_port=8002,
)
ONE = Topology(models=(MODEL,), gateways=Gateways(host="0.0.0.0"))


def serving(**changes: object) -> Topology:
    return replace(ONE, models=(replace(MODEL, **changes),))  # type: ignore[arg-type]


def names(made: LaunchPlan) -> list[str]:
    return [spec.name for spec in made.processes]


def test_the_worker_starts_first_and_the_gateway_waits_for_it() -> None:
    worker, gateway = plan(ONE).processes
    assert (worker.name, worker.after) == ("worker", ())
    assert (gateway.name, gateway.after) == ("gateway", ("worker",))


def test_every_key_reaches_its_owner() -> None:
    worker, gateway = plan(ONE).processes
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
    assert (worker.launcher, worker.environment) == ((), {})
    assert gateway.resolve({"worker": "127.0.0.1:8001"}) == (
        "gateway",
        "--worker=127.0.0.1:8001",
        "--host=0.0.0.0",
        "--port=8000",
    )


def test_prompts_and_what_follows_them_have_workers_each() -> None:
    own = ("cache_transceiver_backend", "other")
    models = (
        Model(name="tiny", phases="context", replicas=2),
        Model(name="tiny", phases="generation", executor_options=(own,)),
    )
    made = plan(Topology(models=models))
    assert names(made) == [
        "worker-tiny-context-0",
        "worker-tiny-context-1",
        "worker-tiny-generation",
        "gateway",
    ]
    assert [spec.place for spec in made.processes][:3] == [
        "tiny/context/0",
        "tiny/context/1",
        "tiny/generation/0",
    ]
    options = [
        [one for one in spec.arguments if one.startswith(("--phases", "--executor-option"))]
        for spec in made.processes[1:3]
    ]
    transceiver = "--executor-option=cache_transceiver_backend="
    assert options == [
        [f"{transceiver}default", "--phases=context"],
        [f"{transceiver}default", f"{transceiver}other", "--phases=generation"],
    ]


def test_what_is_restarted_listens_where_it_did() -> None:
    worker, gateway = plan(replace(serving(grpc_port=0), gateways=Gateways(port=0))).processes
    again = worker.resolve_again({"worker": "127.0.0.1:41234"})
    assert again == tuple(
        "--grpc-port=41234" if argument == "--grpc-port=0" else argument for argument in worker.arguments
    )
    addresses = {"worker": "127.0.0.1:41234", "gateway": "127.0.0.1:41235"}
    assert gateway.resolve_again(addresses)[1:] == (
        "--worker=127.0.0.1:41234",
        "--host=127.0.0.1",
        "--port=41235",
    )


def test_the_executors_own_options_are_handed_on_as_given() -> None:
    given = (("max_tokens_in_paged_kv_cache", "4096"), ("medusa_choices", "{{0}, {worker}}"))
    worker, _ = plan(serving(executor="tensorrt_llm", executor_options=given)).processes
    arguments = worker.resolve({"worker": "127.0.0.1:1"})
    assert [one for one in arguments if one.startswith("--executor-option")] == [
        "--executor-option=max_tokens_in_paged_kv_cache=4096",
        "--executor-option=medusa_choices={{0}, {worker}}",
    ]


def test_options_of_both_and_the_time_to_drain_are_handed_on() -> None:
    topology = replace(
        serving(worker_options=(("max_queued_requests", "7"),)),
        gateways=Gateways(options=(("max-body-bytes", "1024"),), api_key_file="/keys"),
        drain=Drain(gateway_s=60, worker_s=1.5),
    )
    worker, gateway = plan(topology).processes
    assert worker.arguments[-2:] == ("--drain-timeout-s=1.5", "--max-queued-requests=7")
    assert gateway.arguments[-3:] == (
        "--api-key-file=/keys",
        "--shutdown-grace-s=60",
        "--max-body-bytes=1024",
    )
    assert (worker.stop_grace_s, gateway.stop_grace_s) == (6.5, 65)


def test_without_a_model_the_worker_chooses_the_embedded_one() -> None:
    worker, _ = plan(serving(path=None)).processes
    assert worker.arguments[1] == "--served-model-name=tiny"


def test_the_api_key_is_never_an_argument_and_never_shown() -> None:
    made = plan(replace(ONE, gateways=Gateways(environment=(("INFLIGHT_API_KEY", "secret"),))))
    worker, gateway = made.processes
    assert gateway.environment == {"INFLIGHT_API_KEY": "secret"}
    assert worker.environment == {}
    assert not any("secret" in argument for argument in worker.arguments + gateway.arguments)
    assert "secret" not in str(describe(made))


def test_replicas_get_names_ports_and_gpus_of_their_own() -> None:
    topology = serving(executor="tensorrt_llm", replicas=2, tp_size=2, gpus=(("0", "1"), ("2", "3")))
    made = plan(topology)
    assert names(made) == ["worker-0", "worker-1", "gateway"]
    assert [(one.grpc_port, one.metrics_port) for one in place(topology)] == [(8001, 8002), (8003, 8004)]
    assert [spec.environment.get("CUDA_VISIBLE_DEVICES") for spec in made.processes] == ["0,1", "2,3", None]
    assert made.processes[2].arguments[1:3] == ("--worker={worker-0}", "--worker={worker-1}")


def test_open_ports_are_numbers_that_nobody_asked_for() -> None:
    models = (Model(name="a", grpc_port=8003), Model(name="A!"), Model(name="b"))
    topology = Topology(models=models, gateways=Gateways(replicas=2))
    # The gateways have 8000 and 8001.
    assert [(one.name, one.grpc_port, one.metrics_port) for one in place(topology)] == [
        ("worker-a", 8003, 8002),
        ("worker-a-2", 8004, 8005),
        ("worker-b", 8006, 8007),
    ]


def test_each_replica_publishes_on_ports_and_under_a_topic_of_its_own() -> None:
    model = Model(
        replicas=2, kv_events_port=5557, kv_events_replay_port=5558, kv_events_topic="kv@{worker}@demo"
    )
    first, second, _ = plan(Topology(models=(model,))).processes
    for spec, ports in ((first, (5557, 5558)), (second, (5559, 5560))):
        assert f"--kv-events-port={ports[0]}" in spec.arguments
        assert f"--kv-events-replay-port={ports[1]}" in spec.asked
        assert f"--kv-events-topic=kv@{spec.name}@demo" in spec.arguments
    assert not [one for one in plan(serving()).processes[0].arguments if one.startswith("--kv-events")]


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (
            serving(replicas=2, kv_events_port=5557, kv_events_replay_port=5559),
            "`models[0].kv_events_replay_port` and `models[0].kv_events_port` of replica 1 are both `5559`",
        ),
        (serving(metrics_port=8000), "`gateways.port` and `models[0].metrics_port` are both `8000`"),
        (
            serving(replicas=3, metrics_port=8005),
            "`models[0].metrics_port` and `models[0].grpc_port` of replica 2 are both `8005`",
        ),
        (serving(replicas=2, grpc_port=65534), "leads to the port `65536`"),
        (
            replace(serving(metrics_port=8000), spelled=(("gateways.port", "--port"),)),
            "`--port` and `models[0].metrics_port` are both `8000`",
        ),
    ],
)
def test_ports_that_collide_are_refused_by_key(topology: Topology, message: str) -> None:
    with pytest.raises(UserMistake) as raised:
        plan(topology)
    assert message in raised.value.what


def test_port_zero_may_stand_everywhere() -> None:
    ports = dict.fromkeys(("grpc_port", "metrics_port", "kv_events_port", "kv_events_replay_port"), 0)
    plan(replace(serving(**ports, replicas=2), gateways=Gateways(port=0, replicas=2)))


SPLIT = {"executor": "tensorrt_llm", "tp_size": 2, "pp_size": 2}


@pytest.mark.parametrize(
    ("model", "mpi", "as_root", "launcher", "options"),
    [
        (
            SPLIT,
            Mpi(),
            False,
            "mpirun -n 4 --bind-to none",
            [],
        ),
        (
            SPLIT,
            Mpi(oversubscribe=True, arguments=("--display-map",)),
            True,
            "mpirun -n 4 --bind-to none --allow-run-as-root --oversubscribe --display-map",
            [],
        ),
        (
            SPLIT | {"nodes": 2, "gpus": (("0", "1"),)},
            Mpi(hostfile="/hosts"),
            False,
            "mpirun -n 4 --bind-to none --hostfile /hosts"
            " --map-by ppr:2:node -x CUDA_DEVICE_ORDER -x CUDA_VISIBLE_DEVICES",
            [],
        ),
        (
            SPLIT | {"nodes": 2},
            Mpi(implementation="mpich", hostfile="/hosts"),
            True,
            "mpiexec.hydra -n 4 -f /hosts -ppn 2",
            [],
        ),
        (SPLIT | {"mode": "orchestrator"}, Mpi(), False, "", ["communication_mode=orchestrator"]),
        (
            SPLIT | {"mode": "pytorch"},
            Mpi(),
            False,
            "",
            ["tensor_parallel_size=2", "pipeline_parallel_size=2"],
        ),
        (
            SPLIT | {"mode": "pytorch", "nodes": 2},
            Mpi(hostfile="/hosts"),
            False,
            "mpirun -n 4 --bind-to none --hostfile /hosts --map-by ppr:2:node trtllm-llmapi-launch",
            ["tensor_parallel_size=2", "pipeline_parallel_size=2"],
        ),
        ({"executor": "reference"}, Mpi(), True, "", []),
    ],
)
def test_ranks_are_started_as_the_mode_says(
    model: dict[str, object], mpi: Mpi, as_root: bool, launcher: str, options: list[str]
) -> None:
    worker, _ = plan(replace(serving(**model), mpi=mpi), as_root=as_root).processes
    assert " ".join(worker.launcher) == launcher
    given = [one for one in worker.arguments if one.startswith("--executor-option=")]
    assert given == [f"--executor-option={option}" for option in options]


def test_ranks_of_mpich_load_mpich() -> None:
    split = serving(executor="reference", tp_size=2)
    worker, gateway = plan(replace(split, mpi=Mpi(implementation="mpich"))).processes
    assert (worker.environment, gateway.environment) == ({"MPI4PY_MPIABI": "mpich"}, {})
    assert plan(split).processes[0].environment == {}


def test_several_machines_need_a_hostfile() -> None:
    with pytest.raises(UserMistake, match=r"`tiny` spans `2` machines, and `mpi\.hostfile` is not set"):
        plan(serving(**SPLIT, nodes=2))


def test_a_path_with_braces_is_left_alone() -> None:
    spec = ProcessSpec(name="worker", arguments=("worker", "/models/{x}/{worker}"))
    assert spec.resolve({"worker": "a:1"}) == spec.arguments


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
