"""systemd units: one for each process, and `inflight.target` over all. For one machine.

Owns the hardening. Workers are asked to end after the gateways, because units stop in the reverse order of
their start.
"""

from __future__ import annotations

from collections.abc import Iterable

from inflight.errors import UserMistake
from inflight.launch.placing import Placed, gateway_ports, place
from inflight.launch.plan import (
    gateway_arguments,
    gateway_grace_s,
    mpirun,
    worker_arguments,
    worker_environment,
    worker_grace_s,
)
from inflight.launch.topology import Topology

HEADER = "# Written by `inflight launch --render systemd`; change the topology and render it again.\n"
TARGET = "inflight.target"

#: What no process of Inflight needs.
HARDENING = """\
NoNewPrivileges=yes
ProtectSystem=strict
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
RemoveIPC=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077
"""
#: Rank 0 drains and then ends the others; mpirun itself would give them a second. The file has no newline,
#: for which `read` fails although it has read.
STOP_RANK_0 = (
    "/bin/sh -c 'read -r first rest < /proc/$MAINPID/task/$MAINPID/children; kill -TERM $$first;"
    " tail --pid=$MAINPID -f /dev/null'"
)


def render(topology: Topology) -> dict[str, str]:
    """A unit for each process. Raises `UserMistake` for a replica on several machines."""
    placed = place(topology)
    for one in placed:
        if one.model.nodes > 1:
            raise UserMistake(
                f"`{one.model.served_name}` spans `{one.model.nodes}` machines, and systemd has one",
                "render it for Slurm, or start `inflight launch` with `mpi.hostfile`",
            )
    names = {one.name: f"inflight-{one.name}.service" for one in placed}
    files = {names[one.name]: _worker(one, topology) for one in placed}
    for number, port in enumerate(gateway_ports(topology.gateways)):
        suffix = "" if topology.gateways.replicas == 1 else f"-{number}"
        workers = [f"127.0.0.1:{one.grpc_port}" for one in placed]
        files[f"inflight-gateway{suffix}.service"] = _gateway(topology, port, workers, names.values())
    units = " ".join(files)
    files[TARGET] = (
        f"{HEADER}[Unit]\nDescription=Inflight: workers and gateways\nWants={units}\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
    return files


def _worker(one: Placed, topology: Topology) -> str:
    environment = worker_environment(one)
    launcher = mpirun(one.model, topology, environment, as_root=False)
    # systemd knows only the system's directories, and MPI is often in /opt: `env` looks in the unit's PATH.
    found = ["/usr/bin/env", *launcher] if launcher else []
    command = [*found, topology.deploy.executable, *worker_arguments(one, topology)]
    lines = [
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in environment.items()),
        "Environment=HOME=%C/inflight",
        "CacheDirectory=inflight",
        f"ExecStart={_command(command)}",
        *([f"ExecStop={STOP_RANK_0}"] if launcher else []),
        f"TimeoutStopSec={worker_grace_s(topology):g}",
        "KillMode=mixed",
        "LimitMEMLOCK=infinity",
        "ProtectHome=read-only",
        # NCCL and MPI list the machine's interfaces.
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        "CapabilityBoundingSet=",
        *([] if one.model.gpus_per_node else ["PrivateDevices=yes"]),
    ]
    return _unit(f"worker {one.name} of the model {one.model.served_name}", [], lines, topology)


def _gateway(topology: Topology, port: int, workers: list[str], units: Iterable[str]) -> str:
    gateways = topology.gateways
    keys = None if gateways.api_key_file is None else "${CREDENTIALS_DIRECTORY}/api-keys"
    if (gateways.api_key_file or "").endswith("\\"):
        raise UserMistake(
            f"`gateways.api_key_file` is `{gateways.api_key_file}`, and systemd joins a line that ends with a"
            " backslash to the next one",
            "rename the file",
        )
    arguments = gateway_arguments(topology, workers, host=gateways.host, port=port, api_key_file=keys)
    command = _command([topology.deploy.executable, *arguments])
    lines = [
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in gateways.environment),
        *(
            []
            if gateways.api_key_file is None
            else [f"LoadCredential=api-keys:{_escaped(gateways.api_key_file)}"]
        ),
        f"ExecStart={command}",
        f"TimeoutStopSec={gateway_grace_s(topology):g}",
        "KillMode=mixed",
        "LimitNOFILE=65536",
        "ProtectHome=yes",
        "PrivateDevices=yes",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
    ]
    low = "CAP_NET_BIND_SERVICE" if port < 1024 else ""
    lines += [f"CapabilityBoundingSet={low}", *([f"AmbientCapabilities={low}"] if low else [])]
    return _unit("gateway", list(units), lines, topology)


def _unit(description: str, needs: list[str], service: list[str], topology: Topology) -> str:
    restart = topology.restart
    after = " ".join(["network-online.target", *needs])
    policy = (
        "Restart=no"
        if restart.most == 0
        else f"Restart=on-failure\nRestartSec={restart.first_wait_s:g}\nRestartPreventExitStatus=2"
    )
    return (
        f"{HEADER}[Unit]\nDescription=Inflight {_shown(description)}\nPartOf={TARGET}\n"
        f"Wants=network-online.target\nAfter={after}\n"
        f"StartLimitIntervalSec={restart.forgiven_after_s:g}\nStartLimitBurst={restart.most + 1}\n\n"
        f"[Service]\nType=exec\nUser={topology.deploy.user}\n"
        + "\n".join(service)
        + f"\n{policy}\n{HARDENING}\n"
        f"[Install]\nWantedBy={TARGET}\n"
    )


def _command(words: list[str]) -> str:
    return " ".join(_quoted(word, is_command=True) for word in words)


def _quoted(word: str, *, is_command: bool = False) -> str:
    """As systemd reads a word; a variable in braces is left to it."""
    word = _escaped(word)
    if is_command and "${CREDENTIALS_DIRECTORY}" not in word:
        word = word.replace("$", "$$")
    if word and not any(character in word for character in " \t\n\"'\\;"):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _shown(text: str) -> str:
    """Text for people, on one line: a backslash at its end would join the next one to it."""
    return " ".join(_escaped(text).replace("\\", "\\\\").split())


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
