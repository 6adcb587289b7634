"""A batch script for Slurm: every worker is a step of one job, on one or several machines.

Owns the placement on machines, which counts machines from 0 in the order of the job's list, and the shell
that starts, restarts and stops steps.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from inflight.errors import UserMistake
from inflight.launch.placing import Placed, gateway_ports, place
from inflight.launch.plan import (
    Reach,
    gateway_arguments,
    gateway_grace_s,
    hands_over,
    worker_arguments,
    worker_grace_s,
)
from inflight.launch.topology import Topology

#: What is left, after the drains, to end steps and write logs.
MARGIN_S = 15


@dataclass(frozen=True)
class Seat:
    """Where a worker runs: machines from `node` on, and GPUs of each by their numbers in the job."""

    worker: Placed
    node: int
    gpus: tuple[int, ...]


def render(topology: Topology) -> dict[str, str]:
    """`inflight.sbatch`."""
    seats = seat(topology)
    nodes = max(one.node + one.worker.model.nodes for one in seats)
    gpus = max((max(one.gpus) + 1 for one in seats if one.gpus), default=0)
    head = _directives(topology, nodes, gpus, seats)
    steps = "\n".join(_worker(one, topology, nodes) for one in seats)
    return {"inflight.sbatch": f"{head}\n{_SHELL}\n{steps}\n{_gateways(topology, seats, nodes)}\n{_WAIT}"}


def seat(topology: Topology) -> tuple[Seat, ...]:
    """Fills one machine after another; a replica over several gets its own machines.

    Raises `UserMistake` for a replica that needs more GPUs than a machine has.
    """
    each = topology.deploy.gpus_per_node
    seats = []
    node = used = 0
    for worker in place(topology):
        model = worker.model
        wants = model.gpus_per_node
        if wants > each:
            raise UserMistake(
                f"`{model.served_name}` needs `{wants}` GPUs on a machine, and `deploy.gpus_per_node` is"
                f" `{each}`",
                "spread it with `nodes`, or correct `deploy.gpus_per_node`",
            )
        if used + wants > each or (model.nodes > 1 and used):
            node, used = node + 1, 0
        seats.append(Seat(worker, node, tuple(range(used, used + wants))))
        if model.nodes > 1:
            node, used = node + model.nodes, 0
        else:
            used += wants
    return tuple(seats)


def _is_local(topology: Topology, nodes: int) -> bool:
    return nodes == 1 and topology.deploy.gateway_inside


def _directives(topology: Topology, nodes: int, gpus: int, seats: tuple[Seat, ...]) -> str:
    deploy = topology.deploy
    ranks = [0] * nodes
    for one in seats:
        for offset in range(one.worker.model.nodes):
            ranks[one.node + offset] += one.worker.model.world_size // one.worker.model.nodes
    if deploy.gateway_inside:
        ranks[0] += topology.gateways.replicas
    grace = round(gateway_grace_s(topology) + worker_grace_s(topology)) + MARGIN_S
    options = [
        "--job-name=inflight",
        f"--nodes={nodes}",
        f"--ntasks-per-node={max(ranks)}",
        *([f"--gpus-per-node={gpus}"] if gpus else []),
        *([f"--partition={deploy.partition}"] if deploy.partition else []),
        *([f"--time={deploy.time_limit}"] if deploy.time_limit else []),
        f"--signal=B:TERM@{grace}",
        "--requeue",
        "--open-mode=append",
        "--output=inflight-%j.log",
    ]
    lines = "\n".join(f"#SBATCH {option}" for option in options)
    return (
        "#!/bin/bash\n"
        "# Written by `inflight launch --render slurm`; change the topology and render it again.\n"
        f"{lines}\n\n"
        f"most_restarts={topology.restart.most}\n"
        f"first_wait_s={topology.restart.first_wait_s:g}\n"
    )


#: A step that fails is started again unless the job is ending. It is asked to end through Slurm, because
#: `srun` kills its tasks when it gets a TERM.
_SHELL = """\
set -u
# What this shell was started with would make a step's processes believe that they are this job's only rank.
unset SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
workers=() gateways=()

end() { # NAME
    squeue --noheader --steps --job="$SLURM_JOB_ID" --format='%i %j' |
        awk -v name="$1" '$2 == name { print $1 }' | xargs --no-run-if-empty scancel --signal=TERM
}

# Always in the background, so that what it sets is its own. Not a subshell in parentheses: that would be a
# second process, and the signal would end the first.
keep() { # NAME SRUN-ARGUMENTS...
    local name=$1 stopping='' code=0 restarts step wait_s
    shift
    trap 'stopping=1; end "$name"' TERM
    for ((restarts = 0; ; restarts++)); do
        srun --job-name="$name" --overlap --label --kill-on-bad-exit=1 "$@" &
        step=$!
        wait "$step"
        code=$?
        # A wait that a signal has ended.
        while kill -0 "$step" 2>/dev/null; do
            wait "$step"
            code=$?
        done
        [[ $stopping ]] && exit 0
        # 2 is a mistake of the user, which would happen again.
        if ((code == 2 || restarts >= most_restarts)); then
            echo "inflight: $name ended with code $code after $restarts restarts" >&2
            exit "$code"
        fi
        wait_s=$(awk -v s="$first_wait_s" -v n="$restarts" 'BEGIN { print s * 2 ^ n }')
        echo "inflight: $name ended with code $code; restarting it in $wait_s s" >&2
        sleep "$wait_s" &
        wait $!
        [[ $stopping ]] && exit 0
    done
}

stop() { # gateways drain before the workers
    trap '' TERM
    if ((${#gateways[@]})); then
        kill -TERM "${gateways[@]}" 2>/dev/null
        wait "${gateways[@]}"
        echo "inflight: the gateways are gone" >&2
    fi
    kill -TERM "${workers[@]}" 2>/dev/null
    wait "${workers[@]}"
}
trap 'echo "inflight: stopping" >&2; stop; exit 0' TERM INT
"""

_WAIT = """\
# One that has ended for good ends the job.
wait -n "${workers[@]}" ${gateways[@]+"${gateways[@]}"}
code=$?
stop
exit "$code"
"""


def _reach(one: Seat, topology: Topology, nodes: int) -> Reach | None:
    """How workers of the job's other machines fetch a worker's KV cache blocks."""
    if nodes == 1 or not hands_over(one.worker.model):
        return None
    key = topology.deploy.cache_key_file
    if key is None:
        raise UserMistake(
            f"workers of `{one.worker.model.served_name}` fetch KV cache blocks from `{nodes}` machines, and "
            "`deploy.cache_key_file` is not set",
            "write a random text into a file on all of them, such as that of `openssl rand -hex 32`, and name"
            " it there",
        )
    return Reach(f"${{nodes[{one.node}]}}:0", key, backend="default")


def _worker(one: Seat, topology: Topology, nodes: int) -> str:
    worker, model = one.worker, one.worker.model
    last = one.node + model.nodes - 1
    where = [f"${{nodes[{index}]}}" for index in range(one.node, last + 1)]
    host = "127.0.0.1" if _is_local(topology, nodes) else "0.0.0.0"
    is_mpi = model.world_size > 1 and (
        model.mode == "leader" or (model.mode == "pytorch" and model.nodes > 1)
    )
    tasks = model.world_size if is_mpi else 1
    reach = _reach(one, topology, nodes)
    # Only the job knows the machine, so this one is for the shell.
    address = None if reach is None else f"--executor-option=cache_transceiver_address={reach.address}"
    arguments = worker_arguments(worker, topology, host=host, reach=reach)
    command = [topology.deploy.executable, *(word for word in arguments if word != address)]
    if model.mode == "pytorch" and model.nodes > 1:
        command = ["trtllm-llmapi-launch", *command]
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, one.gpus))} if one.gpus else {}
    return _step(
        "workers",
        worker.name,
        f'--nodes={model.nodes} --ntasks={tasks} --nodelist="{",".join(where)}"'
        + (" --mpi=pmix" if is_mpi else ""),
        visible | dict(model.environment),
        command,
        more="" if address is None else f'"{address}"',
    )


def _gateways(topology: Topology, seats: tuple[Seat, ...], nodes: int) -> str:
    gateways = topology.gateways
    local = _is_local(topology, nodes)
    addresses = [
        f"{'127.0.0.1' if local else f'${{nodes[{one.node}]}}'}:{one.worker.grpc_port}" for one in seats
    ]
    if not topology.deploy.gateway_inside:
        listed = "\n".join(f'echo "{address}"' for address in addresses)
        return (
            "# For gateways outside the job: an address on each line.\n"
            f'{{\n{listed}\n}} > "inflight-$SLURM_JOB_ID.workers"'
        )
    steps = []
    for number, port in enumerate(gateway_ports(gateways)):
        arguments = gateway_arguments(
            topology, (), host=gateways.host, port=port, api_key_file=gateways.api_key_file
        )
        steps.append(
            _step(
                "gateways",
                "gateway" if gateways.replicas == 1 else f"gateway-{number}",
                '--nodes=1 --ntasks=1 --nodelist="${nodes[0]}"',
                dict(gateways.environment),
                [topology.deploy.executable, *arguments],
                more=" ".join(f'"--worker={address}"' for address in addresses),
            )
        )
    return "\n".join(steps)


def _step(
    group: str, name: str, where: str, environment: Mapping[str, str], command: list[str], more: str = ""
) -> str:
    variables = "".join(f" {shlex.quote(f'{key}={value}')}" for key, value in environment.items())
    exported = f" env{variables}" if variables else ""
    tail = f" {more}" if more else ""
    return f"keep {name} {where} \\\n   {exported} {shlex.join(command)}{tail} &\n{group}+=($!)"
