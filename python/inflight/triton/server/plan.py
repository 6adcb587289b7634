"""Which tritonservers a repository needs, as NVIDIA's launch_triton_server.py starts them: one for each rank,
under one mpirun. Pure: starts nothing and looks at nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inflight.errors import UserMistake

#: Set where what started the ranks also ends those above 0: they wait for that when rank 0 has ended.
SUPERVISED = "INFLIGHT_TRITON_SUPERVISED"
#: TensorRT-LLM's launcher: it runs its command as rank 0 alone, and the other ranks work for that.
LLMAPI_LAUNCH = "trtllm-llmapi-launch"
#: What NVIDIA's launcher logs with.
VERBOSE = 3


@dataclass(frozen=True)
class ServerOptions:
    """What `inflight repository serve` was asked for."""

    repository: str
    tritonserver: str
    world_size: int = 1
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    #: Of the requests and ranks of the core models; the other ranks load nothing else.
    core_models: tuple[str, ...] = ("tensorrt_llm",)
    #: Where Triton logs verbosely; `None`: to its standard error, briefly.
    log_file: str | None = None
    #: Orchestrator mode: rank 0 alone serves, and starts or finds the ranks of its engines.
    multi_model: bool = False
    spawn_processes: bool = True
    #: Of this machine; pools of Triton's own on them would take the memory of the ranks that are started.
    gpus: int = 0
    multimodal_pool_bytes: int = 0
    mpirun: str = "mpirun"
    oversubscribe: bool = False
    #: `LLMAPI_LAUNCH` in front of each tritonserver, for the llmapi model over several machines.
    llmapi_launch: bool = False
    #: Seconds that tritonserver itself waits for its requests at its end; `None`: its default.
    exit_timeout_s: int | None = None
    #: Further arguments of every tritonserver.
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerPlan:
    """One command, and what it needs in its environment."""

    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 1
    #: Whether only rank 0 is a tritonserver, below a launcher that waits for its end.
    is_launched: bool = False
    #: Where rank 0 answers `GET /v2/health/ready`.
    http: str = ""


def plan(options: ServerOptions) -> ServerPlan:
    """The command for these options. Raises `UserMistake` for those that contradict each other."""
    if options.multi_model and options.spawn_processes and options.world_size != 1:
        raise UserMistake(
            f"`--multi-model` with `--world-size {options.world_size}`: an orchestrator starts the ranks of "
            "its engines itself",
            "leave out `--world-size`, or pass `--disable-spawn-processes`",
        )
    environment: dict[str, str] = {}
    if options.multi_model:
        environment = {
            "TRTLLM_ORCHESTRATOR": "1",
            "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1" if options.spawn_processes else "0",
        }
    servers = [_server(options, rank) for rank in range(options.world_size)]
    http = f"127.0.0.1:{options.http_port}"
    if options.world_size == 1:
        return ServerPlan(servers[0], environment, 1, options.llmapi_launch, http)
    command = [options.mpirun]
    if options.oversubscribe:
        command.append("--oversubscribe")
    for rank, server in enumerate(servers):
        command += [":"] if rank else []
        command += ["-n", "1", *server]
    # Containers run as root, as NVIDIA's do.
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", SUPERVISED: "1"}
    return ServerPlan(command, environment, options.world_size, options.llmapi_launch, http)


def _server(options: ServerOptions, rank: int) -> list[str]:
    command = [options.tritonserver, f"--model-repository={options.repository}"]
    if options.llmapi_launch:
        command.insert(0, LLMAPI_LAUNCH)
    if options.exit_timeout_s is not None:
        command.append(f"--exit-timeout-secs={options.exit_timeout_s}")
    if rank == 0:
        if options.log_file is not None:
            command += [f"--log-verbose={VERBOSE}", f"--log-file={options.log_file}"]
        if options.multimodal_pool_bytes:
            command.append(f"--cuda-memory-pool-byte-size=0:{options.multimodal_pool_bytes}")
        command += [
            f"--http-port={options.http_port}",
            f"--grpc-port={options.grpc_port}",
            f"--metrics-port={options.metrics_port}",
        ]
    else:
        # They compute for rank 0 and answer nobody.
        command.append("--model-control-mode=explicit")
        command += [f"--load-model={model}" for model in options.core_models]
        command += ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]
    if options.multi_model and options.spawn_processes:
        command += ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
        command += [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(options.gpus)]
    # One region of shared memory per rank: their models have the same names.
    command += [
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name=prefix{rank}_",
    ]
    return [*command, *options.more]


def conflicts(ports: Sequence[int]) -> UserMistake | None:
    """Why these ports cannot be those of one server."""
    if len(set(ports)) == len(ports):
        return None
    return UserMistake(
        f"the ports `{', '.join(map(str, ports))}` of HTTP, gRPC and metrics must differ",
        "choose three ports",
    )
