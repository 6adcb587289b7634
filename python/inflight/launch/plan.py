"""What `inflight serve` starts, as data. Pure: options in, process descriptions out; nothing is run.

Owns the order of start and stop and how an address found at run time reaches the next process's
arguments. Knows no process and no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from inflight.errors import UserMistake

#: The line with which a child says where it listens; it holds the port that a 0 became.
ANNOUNCEMENT = re.compile(r"listening on (?P<scheme>grpc|http)://(?P<address>\S+)")

#: Addresses that mean "every interface" to a server and cannot be connected to.
UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}

#: The time that each drains by its own default (25 s and 10 s), and 5 s to close sockets, join threads
#: and end an interpreter. Who is still there then is killed.
GATEWAY_STOP_S = 30.0
WORKER_STOP_S = 15.0
#: A process that was ready and died is started again after 1 s, 2 s, 4 s, …: long enough for a port and a
#: GPU's memory to be free, short enough for clients that retry.
FIRST_RESTART_WAIT_S = 1.0
#: Restarts until it has been ready for so long again. Five waits are half a minute: what has not passed by
#: then needs a person.
MOST_RESTARTS = 5
FORGIVEN_AFTER_S = 600.0
#: Reading and compiling the largest model that fits one machine, with room to spare.
READY_WITHIN_S = 3600.0


@dataclass(frozen=True)
class ProcessSpec:
    """One child process."""

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
    stop_grace_s: float = WORKER_STOP_S
    #: The option with its port, if it is started again when it dies. Others know where it listened, so
    #: that a port that was free to choose is fixed from then on. ``None``: its end is the end of all.
    restart_port: str | None = None

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
class ServePlan:
    """Processes in the order in which they start; they stop in the reverse order, one by one."""

    processes: tuple[ProcessSpec, ...]
    ready_within_s: float = READY_WITHIN_S


@dataclass(frozen=True)
class ServeOptions:
    """The options of `inflight serve`, resolved."""

    #: ``None``: the embedded model.
    model: str | None
    served_model_name: str
    host: str
    port: int
    grpc_port: int
    metrics_port: int
    executor: str
    device: str
    api_key: str | None = None
    #: NAME=VALUE each, for the worker.
    executor_options: tuple[str, ...] = ()


def plan_serve(options: ServeOptions) -> ServePlan:
    """A worker, and a gateway in front of it once it listens.

    The worker stays on the loopback interface whatever the host: it asks for no key. Raises
    `UserMistake` where two ports are the same.
    """
    _distinct(
        {
            "--port": options.port,
            "--grpc-port": options.grpc_port,
            "--metrics-port": options.metrics_port,
        }
    )
    worker = ProcessSpec(
        name="worker",
        arguments=(
            "worker",
            *([] if options.model is None else [options.model]),
            f"--served-model-name={options.served_model_name}",
            f"--executor={options.executor}",
            *(f"--executor-option={option}" for option in options.executor_options),
            f"--device={options.device}",
            "--host=127.0.0.1",
            f"--grpc-port={options.grpc_port}",
            f"--metrics-port={options.metrics_port}",
        ),
        restart_port="--grpc-port",
    )
    gateway = ProcessSpec(
        name="gateway",
        arguments=(
            "gateway",
            "--worker={worker}",
            f"--host={options.host}",
            f"--port={options.port}",
        ),
        environment={} if options.api_key is None else {"INFLIGHT_API_KEY": options.api_key},
        after=("worker",),
        ready_path="/health/ready",
        stop_grace_s=GATEWAY_STOP_S,
    )
    return ServePlan(processes=(worker, gateway))


def announced_address(line: str) -> str | None:
    """The address to connect to, where `line` announces one; ``host:port``."""
    found = ANNOUNCEMENT.search(line)
    if found is None:
        return None
    host, separator, port = found["address"].rpartition(":")
    if not separator or not port.isdigit():
        return None
    return f"{UNSPECIFIED.get(host, host)}:{port}"


def example(address: str, model: str, *, key: bool) -> str:
    """What people see once everything is ready: the URL and a request to paste."""
    authorization = ' \\\n    -H "authorization: Bearer $INFLIGHT_API_KEY"' if key else ""
    return (
        f"Inflight serves `{model}` at http://{address}/v1\n"
        "\n"
        f"  curl http://{address}/v1/chat/completions \\\n"
        f"    -H 'content-type: application/json'{authorization} \\\n"
        f'    -d \'{{"model":"{model}","messages":[{{"role":"user",'
        '"content":"What is machine learning?"}],"stream":true}\'\n'
        "\n"
        "Press Ctrl-C to stop."
    )


def _fill(argument: str, addresses: Mapping[str, str]) -> str:
    # Not str.format: a path may hold braces.
    for name, address in addresses.items():
        argument = argument.replace("{" + name + "}", address)
    return argument


def _distinct(ports: Mapping[str, int]) -> None:
    owners: dict[int, str] = {}
    for option, port in ports.items():
        if port in owners:
            raise UserMistake(
                f"`{owners[port]}` and `{option}` are both `{port}`", f"choose another port for `{option}`"
            )
        if port:
            owners[port] = option
