"""What a topology starts, as data. Pure: a topology in, process descriptions out; nothing is run.

Owns the order of start and stop, arguments and environments, and how an address found at run time reaches
the next process's arguments. Knows nothing of processes and clocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from inflight.errors import UserMistake
from inflight.launch.placing import WORKER_PORTS, Placed, gateway_ports, place
from inflight.launch.topology import (
    WORKER,
    Model,
    Pairs,
    Reload,
    Restart,
    Topology,
)

#: The line with which a child says where it listens; it holds the port that a 0 became.
ANNOUNCEMENT = re.compile(r"listening on (?P<scheme>grpc|https?)://(?P<address>\S+)")

#: Addresses that mean "every interface" to a server and cannot be connected to.
UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}

#: Seconds that each drains by its own default, where the topology does not say.
GATEWAY_DRAIN_S = 25.0
WORKER_DRAIN_S = 10.0
#: To close sockets, join threads and end an interpreter. Processes that are still there then are killed.
CLOSING_S = 5.0
#: Reading and compiling the largest model that fits one machine, with room to spare.
READY_WITHIN_S = 3600.0
#: Never shown.
SECRETS = frozenset({"INFLIGHT_API_KEY"})


@dataclass(frozen=True)
class ProcessSpec:
    """One child process: ``LAUNCHER… inflight ARGUMENTS…``."""

    #: Whole word, shown before its log lines and in messages.
    name: str
    #: May hold ``{name}`` of an earlier process, which becomes the address that it announced.
    arguments: tuple[str, ...]
    #: Added to the environment; where secrets go, because arguments are public on a machine.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Started once these are ready.
    after: tuple[str, ...] = ()
    #: HTTP path that answers 200 once it is ready; ``None``: ready when it listens.
    ready_path: str | None = None
    #: Seconds from the request to end until it is killed.
    stop_grace_s: float = WORKER_DRAIN_S + CLOSING_S
    #: The option with its port, if it is started again when it dies. Others know where it listened, so
    #: that a port that was free to choose is fixed from then on. ``None``: its end is the end of all.
    restart_port: str | None = None
    #: What starts it, such as mpirun and its arguments.
    launcher: tuple[str, ...] = ()
    #: What it is in the topology, such as the second replica of a model. Its name may change with the number
    #: of replicas and models; this does not.
    place: str = ""
    #: The arguments that the topology asks for: all but the ports that it leaves open.
    asked: tuple[str, ...] = ()

    def resolve(self, addresses: Mapping[str, str]) -> tuple[str, ...]:
        """The arguments with every address put in."""
        return tuple(_fill(argument, addresses) for argument in self.arguments)

    def resolve_again(self, addresses: Mapping[str, str]) -> tuple[str, ...]:
        """The same for a restart: it listens where it listened before."""
        port = addresses[self.name].rpartition(":")[2]
        option = f"{self.restart_port}="
        return tuple(
            option + port if argument.startswith(option) else argument for argument in self.resolve(addresses)
        )


@dataclass(frozen=True)
class LaunchPlan:
    """Processes in the order in which they start. They stop the other way round: nobody before those that
    started after it."""

    processes: tuple[ProcessSpec, ...]
    restart: Restart = field(default_factory=Restart)
    reload: Reload = field(default_factory=Reload)
    #: Lists the addresses of the workers, for gateways to follow; written by who runs the plan.
    worker_file: str | None = None
    ready_within_s: float = READY_WITHIN_S


def plan(topology: Topology, *, as_root: bool = False, worker_file: str | None = None) -> LaunchPlan:
    """Every worker, and the gateways in front of them once they listen.

    Workers stay on the loopback interface: they ask for no key. `as_root` lets Open MPI run as root. With
    a `worker_file`, gateways find the workers there, so that these can be replaced. Raises `UserMistake`
    where two ports are the same.
    """
    placed = place(topology)
    workers = tuple(_worker(one, topology, as_root=as_root) for one in placed)
    names = tuple(worker.name for worker in workers)
    gateways = tuple(
        _gateway(topology, number, names, worker_file) for number in range(topology.gateways.replicas)
    )
    return LaunchPlan(
        processes=(*workers, *gateways),
        restart=topology.restart,
        reload=topology.reload,
        worker_file=worker_file,
    )


@dataclass(frozen=True)
class Reach:
    """How workers of other machines or containers fetch a worker's KV cache blocks."""

    #: HOST:PORT as they reach it.
    address: str
    key_file: str
    #: `tcp` where no two workers share a host's memory.
    backend: str = "tcp"


def hands_over(model: Model) -> bool:
    """Whether a worker's blocks are fetched by others with the reference executor's own transceiver."""
    return model.phases != "both" and model.executor == "reference"


def worker_arguments(
    one: Placed,
    topology: Topology,
    *,
    host: str = "127.0.0.1",
    reach: Reach | None = None,
    known_as: str | None = None,
) -> tuple[str, ...]:
    """The arguments of `inflight` for a worker, on any plane. `reach` None: all workers are on this host.
    `known_as` is what listeners to its cache's events call it; by default its name.
    """
    model = one.model
    topic = (
        None if model.kv_events_topic is None else model.kv_events_topic.replace(WORKER, known_as or one.name)
    )
    return (
        "worker",
        *([] if model.path is None else [model.path]),
        f"--served-model-name={model.served_name}",
        f"--executor={model.executor}",
        *(
            f"--executor-option={name}={value}"
            for name, value in (*_parallel(model), *_transceiver(model, reach), *model.executor_options)
        ),
        *([] if model.phases == "both" else [f"--phases={model.phases}"]),
        f"--device={model.device}",
        f"--host={host}",
        *(f"{WORKER_PORTS[key]}={port}" for key, port in one.ports.items()),
        *([] if topic is None else [f"--kv-events-topic={topic}"]),
        *_drain("--drain-timeout-s", topology.drain.worker_s),
        *_options(model.worker_options),
    )


def worker_environment(one: Placed) -> dict[str, str]:
    """Environment variables of a worker."""
    # As nvidia-smi counts, whatever is the fastest GPU.
    visible = (
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(one.gpus)} if one.gpus else {}
    )
    return visible | dict(one.model.environment)


def gateway_arguments(
    topology: Topology,
    workers: Sequence[str],
    *,
    host: str,
    port: int,
    api_key_file: str | None,
    found_by: str = "--worker",
) -> tuple[str, ...]:
    """The arguments of `inflight` for a gateway in front of `workers`, on any plane; `found_by` is the option
    that takes each of them.
    """
    return (
        "gateway",
        *(f"{found_by}={worker}" for worker in workers),
        f"--host={host}",
        f"--port={port}",
        *([] if api_key_file is None else [f"--api-key-file={api_key_file}"]),
        *_drain("--shutdown-grace-s", topology.drain.gateway_s),
        *_options(topology.gateways.options),
    )


def worker_grace_s(topology: Topology) -> float:
    """Seconds from the request to end until a worker is killed."""
    drain = topology.drain.worker_s
    return (WORKER_DRAIN_S if drain is None else drain) + CLOSING_S


def gateway_grace_s(topology: Topology) -> float:
    """The same for a gateway."""
    drain = topology.drain.gateway_s
    return (GATEWAY_DRAIN_S if drain is None else drain) + CLOSING_S


def mpirun(model: Model, topology: Topology, environment: Iterable[str], *, as_root: bool) -> tuple[str, ...]:
    """What starts the ranks of a worker; empty where the worker itself does, or is the only one."""
    spans_machines = model.nodes > 1
    if (
        model.world_size == 1
        or model.mode == "orchestrator"
        or (model.mode == "pytorch" and not spans_machines)
    ):
        return ()
    mpi, each = topology.mpi, model.world_size // model.nodes
    if spans_machines and mpi.hostfile is None:
        raise UserMistake(
            f"`{model.served_name}` spans `{model.nodes}` machines, and `mpi.hostfile` is not set",
            "set it to a file with a line for each machine, or render the topology for Slurm",
        )
    tail = ("trtllm-llmapi-launch",) if model.mode == "pytorch" else ()
    if mpi.implementation == "mpich":
        return (
            "mpiexec.hydra",
            "-n",
            str(model.world_size),
            *(["-f", mpi.hostfile, "-ppn", str(each)] if spans_machines and mpi.hostfile else []),
            *mpi.arguments,
        )
    return (
        "mpirun",
        "-n",
        str(model.world_size),
        # A worker has many threads, and Open MPI would give two ranks a core each.
        "--bind-to",
        "none",
        *(["--allow-run-as-root"] if as_root else []),
        *(["--oversubscribe"] if mpi.oversubscribe else []),
        *(
            ["--hostfile", mpi.hostfile, "--map-by", f"ppr:{each}:node"]
            if spans_machines and mpi.hostfile
            else []
        ),
        *(argument for name in (environment if spans_machines else ()) for argument in ("-x", name)),
        *mpi.arguments,
        *tail,
    )


def describe(plan: LaunchPlan) -> list[dict[str, object]]:
    """The plan as people and programs read it: `inflight launch --plan`."""
    return [
        {
            "name": spec.name,
            "after": list(spec.after),
            "environment": {
                name: "…" if name in SECRETS else value for name, value in sorted(spec.environment.items())
            },
            "command": [*spec.launcher, "inflight", *spec.arguments],
            "ready": "listens" if spec.ready_path is None else f"GET {spec.ready_path} answers 200",
            "stop_grace_s": spec.stop_grace_s,
        }
        for spec in plan.processes
    ]


def announced_address(line: str) -> str | None:
    """The address to connect to, where `line` announces one: ``host:port``, or ``https://host:port``."""
    found = ANNOUNCEMENT.search(line)
    if found is None:
        return None
    host, separator, port = found["address"].rpartition(":")
    if not separator or not port.isdigit():
        return None
    scheme = "https://" if found["scheme"] == "https" else ""
    return f"{scheme}{UNSPECIFIED.get(host, host)}:{port}"


def example(address: str, model: str, *, key: bool) -> str:
    """What people see once everything is ready: the URL and a request to paste."""
    authorization = ' \\\n    -H "authorization: Bearer $INFLIGHT_API_KEY"' if key else ""
    url = address if "://" in address else f"http://{address}"
    return (
        f"Inflight serves `{model}` at {url}/v1\n"
        "\n"
        f"  curl {url}/v1/chat/completions \\\n"
        f"    -H 'content-type: application/json'{authorization} \\\n"
        f'    -d \'{{"model":"{model}","messages":[{{"role":"user",'
        '"content":"What is machine learning?"}],"stream":true}\'\n'
        "\n"
        "Press Ctrl-C to stop."
    )


def _worker(one: Placed, topology: Topology, *, as_root: bool) -> ProcessSpec:
    environment = worker_environment(one)
    if one.model.world_size > 1 and topology.mpi.implementation == "mpich":
        # mpi4py would load Open MPI, and every rank would be alone.
        environment = {"MPI4PY_MPIABI": "mpich"} | environment
    arguments = worker_arguments(one, topology)
    is_open = {"--grpc-port": one.model.grpc_port is None, "--metrics-port": one.model.metrics_port is None}
    return ProcessSpec(
        name=one.name,
        arguments=arguments,
        place="/".join(
            (
                one.model.served_name,
                *([] if one.model.phases == "both" else [one.model.phases]),
                str(one.replica),
            )
        ),
        asked=tuple(argument for argument in arguments if not is_open.get(argument.partition("=")[0])),
        environment=environment,
        stop_grace_s=worker_grace_s(topology),
        restart_port="--grpc-port",
        launcher=mpirun(one.model, topology, environment, as_root=as_root),
    )


def _gateway(
    topology: Topology, number: int, workers: tuple[str, ...], worker_file: str | None
) -> ProcessSpec:
    gateways = topology.gateways
    return ProcessSpec(
        name="gateway" if gateways.replicas == 1 else f"gateway-{number}",
        place=f"gateway/{number}",
        arguments=gateway_arguments(
            topology,
            ["{" + name + "}" for name in workers] if worker_file is None else [worker_file],
            host=gateways.host,
            port=gateway_ports(gateways)[number],
            api_key_file=gateways.api_key_file,
            found_by="--worker" if worker_file is None else "--worker-file",
        ),
        environment=dict(gateways.environment),
        after=workers,
        ready_path="/health/ready",
        stop_grace_s=gateway_grace_s(topology),
        restart_port="--port",
    )


def _parallel(model: Model) -> Iterator[tuple[str, str]]:
    if model.mode == "orchestrator":
        yield "communication_mode", "orchestrator"
    if model.mode == "pytorch":
        if model.tp_size > 1:
            yield "tensor_parallel_size", str(model.tp_size)
        if model.pp_size > 1:
            yield "pipeline_parallel_size", str(model.pp_size)


def _transceiver(model: Model, reach: Reach | None) -> Iterator[tuple[str, str]]:
    # What the entry's own options say, which come later, counts.
    if not hands_over(model):
        return
    yield "cache_transceiver_backend", "default" if reach is None else reach.backend
    if reach is not None:
        yield "cache_transceiver_address", reach.address
        yield "cache_transceiver_key_file", reach.key_file


def _drain(option: str, seconds: float | None) -> list[str]:
    return [] if seconds is None else [f"{option}={seconds:g}"]


def _options(pairs: Pairs) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in pairs]


def _fill(argument: str, addresses: Mapping[str, str]) -> str:
    # Not str.format, and only where an address belongs: a path or an option may hold braces.
    if not argument.startswith("--worker="):
        return argument
    for name, address in addresses.items():
        argument = argument.replace("{" + name + "}", address)
    return argument
