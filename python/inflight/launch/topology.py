"""What is served and on what, as data: models, replicas, GPUs, ports, gateways, limits. The one declaration
of every key of a topology file and of the options of `inflight serve` that mean the same.

Owns the keys, their types, defaults and reasons, and what must fit together. Reads no file, and knows
nothing of processes.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from inflight import executors
from inflight.errors import OptionError, UserMistake
from inflight.launch.gpus import Groups, parse_groups
from inflight.launch.model import DEMO_NAME
from inflight.options import Option, option

#: Names with a value each; a dataclass does not accept a dict as default.
Pairs = tuple[tuple[str, str], ...]
LARGEST_PORT = 65535
#: In `kv_events_topic`: listeners know each worker by its topic.
WORKER = "{worker}"


@dataclass(frozen=True)
class PortOption(Option):
    """A TCP port."""

    def parse(self, value: Any) -> int:
        """Raises `OptionError` unless it is from 0 to 65535."""
        port: int = super().parse(value)
        if port > LARGEST_PORT:
            raise OptionError(
                f"option `{self.name}` must be a port, got `{value}`", f"pass a port from 0 to {LARGEST_PORT}"
            )
        return port


@dataclass(frozen=True)
class GpuOption(Option):
    """GPUs for each replica."""

    def parse(self, value: Any) -> Groups:
        """Raises `OptionError`."""
        try:
            return parse_groups(value)
        except ValueError as error:
            raise OptionError(
                f"option `{self.name}` must be GPUs, got `{value}`: {error}",
                "pass indices, or UUIDs of GPUs or MIG slices, separated by commas, with `;` between"
                " replicas: `0,1;2,3`",
            ) from None


_port = partial(option, "int", of=PortOption, minimum=0)
_pairs = partial(option, "mapping", default=())


@dataclass(frozen=True)
class Model:
    """A model and the workers that serve it."""

    name: str | None = option(
        "text", f"The name that clients use; by default the directory's, `{DEMO_NAME}` without `path`"
    )
    path: str | None = option(
        "path",
        "A Hugging Face checkpoint or what `inflight build` wrote; relative to the topology file. Without it,"
        " the embedded model",
    )
    executor: str = option(
        "choice",
        "What generates the tokens; `reference` runs everywhere",
        default="reference",
        choices=executors.NAMES,
    )
    device: str = option(
        "choice",
        "Where the reference executor computes",
        default="auto",
        choices=executors.DEVICES,
    )
    tp_size: int = option(
        "int",
        "Tensor parallelism: GPUs that share every layer; as the engine was built",
        default=1,
        minimum=1,
    )
    pp_size: int = option(
        "int",
        "Pipeline parallelism: groups of GPUs with a share of the layers each; as the engine was built",
        default=1,
        minimum=1,
    )
    mode: str = option(
        "choice",
        "Who starts the ranks of a worker with several: `leader`: mpirun or srun, one process each;"
        " `orchestrator`: a worker with a TensorRT engine; `pytorch`: TensorRT-LLM's PyTorch runtime",
        default="leader",
        choices=("leader", "orchestrator", "pytorch"),
    )
    phases: str = option(
        "choice",
        "`context`: its workers compute prompts, and those of a second entry of the same name, with"
        " `generation`, what follows. `both`: each does all",
        default="both",
        choices=("both", "context", "generation"),
    )
    replicas: int = option("int", "Workers that serve this model", default=1, minimum=1)
    nodes: int = option("int", "Machines that one replica spans", default=1, minimum=1)
    gpus: tuple[tuple[str, ...], ...] | None = option(
        "text",
        "GPUs on each machine: indices, or UUIDs of GPUs or MIG slices; `0,1;2,3` is for two replicas of two."
        " By default, all are visible to every worker",
        of=GpuOption,
    )
    grpc_port: int | None = _port(
        "The first replica's KServe port, the next one's is 2 higher; 0 lets each pick one. By default, free"
        " numbers of the topology from 8001 on"
    )
    metrics_port: int | None = _port("The same for metrics")
    kv_events_port: int | None = _port(
        "The first replica's port for [its cache's events in vLLM's form](kv-events.md), the next one's is 2"
        " higher; 0 lets each pick one. By default, they publish none"
    )
    kv_events_replay_port: int | None = _port("The same, for listeners that ask for what they missed")
    kv_events_topic: str | None = option(
        "text",
        f"Topic of these events. `{WORKER}` in it becomes the worker: its name such as `worker-0`, or in"
        " Kubernetes its pod's IP:PORT for requests",
    )
    executor_options: tuple[tuple[str, str], ...] = _pairs(
        "Options by TensorRT-LLM's or Triton's names, as `--executor-option`"
    )
    worker_options: tuple[tuple[str, str], ...] = _pairs(
        "Further options of `inflight worker`, without the dashes: `max_queued_requests: 100`"
    )
    environment: tuple[tuple[str, str], ...] = _pairs("Environment variables of its workers")

    @property
    def world_size(self) -> int:
        """Ranks of one replica."""
        return self.tp_size * self.pp_size

    @property
    def served_name(self) -> str:
        """What clients call it."""
        return self.name or (DEMO_NAME if self.path is None else PurePosixPath(self.path).name)

    @property
    def gpus_per_node(self) -> int:
        """GPUs that a replica needs on each of its machines; 0 where none was asked for."""
        wants = self.gpus is not None or self.executor == "tensorrt_llm" or self.device == "cuda"
        return self.world_size // self.nodes if wants else 0


@dataclass(frozen=True)
class Gateways:
    """The gateways: all in front of all workers."""

    replicas: int = option("int", "How many; each further one has the next port", default=1, minimum=0)
    host: str = option(
        "text",
        "Address to listen on; only this machine by default, because no key is asked for",
        default="127.0.0.1",
    )
    port: int = _port("HTTP port of the first; 0 picks a free one", default=8000)
    api_key_file: str | None = option("path", "File of accepted keys, one on each line")
    options: tuple[tuple[str, str], ...] = _pairs(
        "Further options of `inflight gateway`, without the dashes: `max_body_bytes: 1048576`"
    )
    environment: tuple[tuple[str, str], ...] = _pairs("Environment variables of the gateways")


@dataclass(frozen=True)
class Restart:
    """When a process that died is started again."""

    most: int = option(
        "int",
        "Restarts of a process until it has been ready for `forgiven_after_s`; then everything ends. 0: none."
        " Five waits are half a minute: what has not passed by then needs a person",
        default=5,
        minimum=0,
    )
    first_wait_s: float = option(
        "float",
        "Seconds before the first restart, doubled each time: long enough for a port and a GPU's memory to be"
        " free, short enough for clients that retry",
        default=1.0,
        minimum=0,
    )
    forgiven_after_s: float = option(
        "float",
        "Seconds of being ready after which earlier restarts no longer count",
        default=600.0,
        minimum=0,
    )


@dataclass(frozen=True)
class Reload:
    """How `inflight launch --reload` replaces workers, and then gateways, one after the other."""

    order: str = option(
        "choice",
        "`start-first`: the new worker serves before the old one goes; it needs memory for both, and picks"
        " its own ports. `stop-first`: for GPUs that hold one; the other replicas serve meanwhile, and"
        " ports stay",
        default="start-first",
        choices=("start-first", "stop-first"),
    )
    finish_s: float = option(
        "float",
        "Seconds for the open requests of a worker or gateway that goes; then it is asked to end and drains."
        " Longer than nearly every answer",
        default=300.0,
        minimum=0,
    )
    workers: str = option(
        "choice",
        "Which workers are replaced. `changed`: those with other arguments or environment; all of them if the"
        " file changes none, for new weights or a new version of the package. `always`: all",
        default="changed",
        choices=("changed", "always"),
    )
    gateways: str = option(
        "choice",
        "Which gateways are replaced. `changed`: those with other arguments or environment. `always`: all,"
        " for a new version of the package. A new gateway does not know what the old one kept for"
        " `previous_response_id`",
        default="changed",
        choices=("changed", "always"),
    )


@dataclass(frozen=True)
class Drain:
    """How long requests get when a process is asked to end."""

    gateway_s: float | None = option("float", "Seconds for open requests; 25 by default", minimum=0)
    worker_s: float | None = option("float", "Seconds for running sequences; 10 by default", minimum=0)


@dataclass(frozen=True)
class Mpi:
    """How mpirun starts the ranks of a leader-mode worker."""

    implementation: str = option(
        "choice", "Whose arguments to use", default="openmpi", choices=("openmpi", "mpich")
    )
    hostfile: str | None = option("path", "Machines for replicas that span several")
    oversubscribe: bool = option("bool", "Allow more ranks than cores (Open MPI)", default=False)
    arguments: tuple[str, ...] = option("texts", "Further arguments of mpirun", default=())


@dataclass(frozen=True)
class Deploy:
    """What only `--render` needs."""

    image: str = option("text", "Container image of workers and gateways", default="inflight:latest")
    gateway_image: str | None = option("text", "Image of the gateways; by default `image`")
    executable: str = option(
        "path", "The `inflight` command on the target machine", default="/opt/inflight/bin/inflight"
    )
    user: str = option("text", "Account of the systemd units", default="inflight")
    namespace: str | None = option("text", "Kubernetes namespace; by default kubectl's")
    discovery: str = option(
        "choice",
        "How Kubernetes' gateways find workers: `dns` looks their Service up every 5 s, `endpointslices`"
        " watches it, with an account that may",
        default="dns",
        choices=("dns", "endpointslices"),
    )
    model_volume: str | None = option(
        "text", "Kubernetes PersistentVolumeClaim with the models, mounted at `model_mount`"
    )
    model_mount: str = option(
        "path", "Directory of the Kubernetes pods that holds the models", default="/models"
    )
    api_key_secret: str | None = option(
        "text", "Kubernetes Secret with the key `api-keys`: the accepted keys, one on each line"
    )
    cache_key_secret: str | None = option(
        "text",
        "Kubernetes Secret with the key `kv.key`: what workers of `phases` prove to each other when KV cache"
        " blocks go from pod to pod",
    )
    cache_key_file: str | None = option(
        "path", "File with that secret: on Compose's machine, or on each of Slurm's where there are several"
    )
    gpu_resource: str = option(
        "text",
        "Kubernetes resource of a GPU; `nvidia.com/mig-3g.40gb` is a MIG slice",
        default="nvidia.com/gpu",
    )
    gpus_per_node: int = option("int", "GPUs of each of Slurm's machines", default=8, minimum=1)
    partition: str | None = option("text", "Slurm partition; by default the cluster's")
    time_limit: str | None = option("text", "Slurm time limit such as `24:00:00`; by default the partition's")
    gateway_inside: bool = option("bool", "Whether Slurm's job runs the gateways too", default=True)


@dataclass(frozen=True)
class Topology:
    """Everything that one `inflight launch` runs. `check` has been called on what a reader returns."""

    models: tuple[Model, ...] = (Model(),)
    gateways: Gateways = field(default_factory=Gateways)
    restart: Restart = field(default_factory=Restart)
    reload: Reload = field(default_factory=Reload)
    drain: Drain = field(default_factory=Drain)
    mpi: Mpi = field(default_factory=Mpi)
    deploy: Deploy = field(default_factory=Deploy)
    #: What the user typed in place of a key: `models[0].gpus` is `--gpus` on a command line.
    spelled: Pairs = ()

    def key(self, path: str) -> str:
        """The key as messages show it."""
        return dict(self.spelled).get(path, path)


def check(topology: Topology) -> None:
    """Raises `UserMistake` with the key's path where keys do not fit together."""
    _check_words(topology)
    if not topology.models:
        raise UserMistake("the topology has no `models`", "add one; `- {}` serves the embedded model")
    names: dict[str, list[int]] = {}
    for index, model in enumerate(topology.models):
        _check_model(model, topology, index)
        names.setdefault(model.served_name, []).append(index)
    for name, places in names.items():
        _check_name(name, places, topology)


def _check_name(name: str, places: list[int], topology: Topology) -> None:
    """Entries of one name are the workers for its prompts and those for what follows."""
    phases = [topology.models[place].phases for place in places]
    if sorted(phases) == ["context", "generation"]:
        first, second = (topology.models[place] for place in places)
        for key in ("path", "executor"):
            one, other = getattr(first, key), getattr(second, key)
            if one != other:
                raise UserMistake(
                    f"`models[{places[0]}].{key}` is `{one}` and `models[{places[1]}].{key}` is `{other}`,"
                    f" and both serve `{name}`",
                    f"give both the same `{key}`",
                )
        return
    if len(places) > 1:
        raise UserMistake(
            f"`models[{places[0]}]` and `models[{places[1]}]` are both named `{name}`",
            "name one differently, set `replicas` for several workers of one model, or `phases` to `context`"
            " for one and `generation` for the other",
        )
    if phases != ["both"]:
        raise UserMistake(
            f"`{topology.key(f'models[{places[0]}].phases')}` is `{phases[0]}`, and no other entry of"
            f" `models` has the rest of `{name}`",
            "add one of the same name with `phases` set to"
            f" `{'generation' if phases[0] == 'context' else 'context'}`",
        )


#: Keys of `deploy` that are written into a unit or a batch script where nothing can be quoted.
_WORDS = {"user": r"[\w.@-]+\$?", "partition": r"[\w.,@+:-]+", "time_limit": r"[\w:-]+"}


def _check_words(topology: Topology) -> None:
    """Refuses text that would become lines or separate options in what `--render` writes."""
    deploy = topology.deploy
    for key, pattern in _WORDS.items():
        value = getattr(deploy, key)
        if value is not None and not re.fullmatch(pattern, value, re.ASCII):
            raise UserMistake(
                f"`{topology.key(f'deploy.{key}')}` must be one word of letters, digits and `.,@+:_-`, got"
                f" {value!r}",
                f"correct `deploy.{key}`",
            )
    texts = [
        *(
            (f"models[{at}].{key}", getattr(one, key))
            for at, one in enumerate(topology.models)
            for key in ("name", "path", "kv_events_topic")
        ),
        *((f"gateways.{key}", getattr(topology.gateways, key)) for key in ("host", "api_key_file")),
        ("mpi.hostfile", topology.mpi.hostfile),
        *((f"deploy.{one.name}", getattr(deploy, one.name)) for one in fields(deploy)),
    ]
    for path, text in texts:
        if isinstance(text, str) and any(unicodedata.category(one) == "Cc" for one in text):
            raise UserMistake(
                f"`{topology.key(path)}` contains a control character: {text!r}", f"remove it from `{path}`"
            )
    environments = [(f"models[{at}]", one.environment) for at, one in enumerate(topology.models)]
    for where, pairs in (*environments, ("gateways", topology.gateways.environment)):
        for name, _ in pairs:
            if not re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII):
                raise UserMistake(
                    f"{name!r} in `{where}.environment` is not the name of an environment variable",
                    "use letters, digits and underscores",
                )


def _check_model(model: Model, topology: Topology, index: int) -> None:
    def key(name: str) -> str:
        return f"`{topology.key(f'models[{index}].{name}')}`"

    def not_so(mode: str, why: str) -> UserMistake:
        return UserMistake(f"{key('mode')} `{mode}` {why}", "use `leader`")

    if not re.search(r"[^./]", model.served_name):
        raise UserMistake(f"{key('path')} is `{model.path}`, which names no model", f"set {key('name')}")
    if model.executor == "simulated" and model.world_size > 1:
        raise UserMistake(
            f"{key('tp_size')} and {key('pp_size')} have no effect with the executor `simulated`",
            "leave them out",
        )
    if model.world_size % model.nodes:
        raise UserMistake(
            f"{key('nodes')} is `{model.nodes}`, and {key('tp_size')} times {key('pp_size')} is"
            f" `{model.world_size}`",
            "choose a number of machines that divides the ranks evenly",
        )
    if model.mode != "leader" and model.executor != "tensorrt_llm":
        raise not_so(model.mode, f"needs the executor `tensorrt_llm`, not `{model.executor}`")
    if model.mode == "orchestrator" and model.nodes > 1:
        raise not_so(model.mode, f"starts its ranks on one machine, and {key('nodes')} is `{model.nodes}`")
    if model.mode == "pytorch" and model.nodes > 1 and topology.mpi.implementation == "mpich":
        raise UserMistake(
            f"{key('mode')} `pytorch` needs Open MPI across machines", "set `mpi.implementation` to `openmpi`"
        )
    if model.kv_events_port is None:
        for name in ("kv_events_replay_port", "kv_events_topic"):
            if getattr(model, name) is not None:
                raise UserMistake(f"{key(name)} needs {key('kv_events_port')}", "set both")
    groups_of(model, key("gpus"))


def groups_of(model: Model, key: str = "`gpus`") -> Groups:
    """GPUs of every replica; empty without `gpus`. Raises `UserMistake` where their number does not fit."""
    if model.gpus is None:
        return ()
    each = model.world_size // model.nodes
    groups = model.gpus
    if len(groups) == 1 and len(groups[0]) == each * model.replicas:
        groups = tuple(groups[0][start : start + each] for start in range(0, len(groups[0]), each))
    if len(groups) != model.replicas or any(len(group) != each for group in groups):
        shown = ";".join(",".join(group) for group in model.gpus)
        raise UserMistake(
            f"{key} is `{shown}`, and {_count(model.replicas, 'replica')} of {_count(each, 'GPU')} need"
            f" {_count(model.replicas * each, 'GPU')}",
            f"list {_count(each, 'GPU')} for each replica, with `;` between them; repeat a GPU to share it",
        )
    for group in groups:
        shown = ",".join(group)
        if len(set(group)) != len(group):
            raise UserMistake(f"{key} lists a GPU twice in `{shown}`", "give every rank its own GPU")
        if len(group) > 1 and any(gpu.startswith("MIG-") for gpu in group):
            raise UserMistake(
                f"{key} joins MIG slices in `{shown}`, and a process sees only one",
                "use one slice for each replica, or whole GPUs",
            )
    return groups


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
