"""One worker over two ranks that a real `mpirun` starts: the same tokens, and one end for all of them."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inflight.executors.reference.model.config import load_config
from support.processes import InflightProcess, exists, wait_until
from support.servers import MODEL_ARGUMENTS, MODEL_NAME, Server, Start, start_gateway, wait_ready
from support.triton import TritonStream, inputs, tensor, tokens

pytestmark = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="mpirun is not installed: tools/install-system-packages mpi"
)

#: As a user writes it, and what a test machine needs: more ranks than idle cores.
MPIRUN = ("mpirun", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")
PROMPT = [40, 41, 42, 43]
#: What is promised for the end of all ranks once one is gone.
END_S = 5.0


def start_ranks(start: Start, *arguments: str, ranks: int = 2, **environment: str) -> InflightProcess:
    """`mpirun -n RANKS inflight worker` with the reference executor."""
    settings = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **environment,
    }
    return start(
        "worker",
        *MODEL_ARGUMENTS,
        f"--served-model-name={MODEL_NAME}",
        "--grpc-port=0",
        "--metrics-port=0",
        *arguments,
        launcher=(*MPIRUN, "-n", str(ranks)),
        environment=settings,
    )


def wait_serving(process: InflightProcess) -> None:
    """Until a token went through all ranks."""
    process.address("grpc")
    process.wait_until("it is ready", lambda: "worker ready" in process.log)


def rank_pids(process: InflightProcess) -> list[int]:
    """The processes of the ranks, in order."""
    found = {}
    for pid in process.descendants():
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for variable in variables:
            name, _, value = variable.partition(b"=")
            if name == b"OMPI_COMM_WORLD_RANK":
                found[int(value)] = pid
    return [found[rank] for rank in sorted(found)]


def listening(pid: int) -> set[str]:
    """The inodes of a process's sockets that accept connections."""
    held = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(link)
        if target.startswith("socket:["):
            held.add(target[8:-1])
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                inodes.add(fields[9])
    return held & inodes


def ask(address: str, model: Path) -> dict[str, list[int]]:
    """The tokens of requests that run beside each other: greedy, sampled, with beams, of a long prompt, and
    of one whose last tokens have embeddings of their own."""
    config = load_config(model)
    vocab_size = config.vocab_size
    table = np.random.default_rng(1).normal(0, 0.05, (1, 2, config.hidden_size))
    tables = [
        tensor("prompt_embedding_table", table, "FP16"),
        tensor("prompt_table_extra_ids", [[0] * len(PROMPT) + [1, 1]], "UINT64"),
    ]
    stream = TritonStream(address)
    asked = {
        "greedy": inputs(PROMPT, 24, streaming=True),
        "long": inputs([3 + place % 60 for place in range(300)], 8, streaming=True),
        "sampled": inputs(PROMPT, 24, streaming=True, runtime_top_p=0.9, temperature=1.5, seed=7),
        "beams": inputs(PROMPT, 12, beam_width=3),
        "logits": inputs(PROMPT, 6, return_generation_logits=True, return_context_logits=True),
        "repeated": inputs(PROMPT * 20, 8, streaming=True),
        "virtual": [*inputs([*PROMPT, vocab_size, vocab_size + 1], 8), *tables],
    }
    found: dict[str, list[int]] = {name: [] for name in asked}
    for name, made in asked.items():
        stream.send(name, made)
    left = len(asked)
    while left:
        result, error = stream.next()
        assert error is None, error
        found[result.get_response().id] += tokens(result)
        left -= result.get_response().parameters["triton_final_response"].bool_param
    stream.close()
    return found


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "mpirun -n 1 tritonserver … : -n 1 tritonserver …",
    "mpirun -n 2 inflight worker MODEL",
)
def test_two_ranks_serve_the_tokens_of_one(start: Start, server: Server, model_directory: Path) -> None:
    process = start_ranks(start)
    wait_serving(process)
    told = ask(process.address("grpc"), model_directory)
    assert all(told.values())
    assert told == ask(server.grpc, model_directory)

    leader, follower = rank_pids(process)
    # MPI's own sockets are each rank's; ports that accept are the leader's alone.
    assert len(listening(leader) - listening(follower)) >= 2
    assert process.log.count("listening on grpc://") == 1

    gateway = start_gateway(start, [process])
    http = wait_ready(gateway)
    with (
        Server(http, "", "", MODEL_NAME).client() as ours,
        Server(server.http, "", "", MODEL_NAME).client() as theirs,
    ):
        answers = [
            one.completions.create(model=MODEL_NAME, prompt="Once upon", max_tokens=20, temperature=0)
            for one in (ours, theirs)
        ]
    assert answers[0].choices[0].text == answers[1].choices[0].text
    assert answers[0].choices[0].text


def test_a_signal_to_all_ranks_lets_running_requests_finish(start: Start) -> None:
    """As Slurm does it. `mpirun` would kill them a second later."""
    process = start_ranks(start, "--drain-timeout-s=60")
    wait_serving(process)
    stream = TritonStream(process.address("grpc"))
    stream.send("long", inputs(PROMPT, 100, streaming=True, end_id=-1))
    result, error = stream.next()
    assert error is None
    for rank in rank_pids(process):
        os.kill(rank, signal.SIGTERM)
    told = tokens(result) + [token for one in stream.until_final() for token in tokens(one)]
    stream.close()
    assert len(told) == 100
    assert process.wait() == 0, process.log
    assert "is gone" not in process.log


def test_mpirun_that_is_told_to_end_ends_all_in_good_order(start: Start) -> None:
    process = start_ranks(start)
    wait_serving(process)
    ranks = rank_pids(process)
    process.send(signal.SIGTERM)
    process.wait()
    wait_until("all ranks have ended", lambda: not any(exists(rank) for rank in ranks), END_S)
    assert "is gone" not in process.log


def kill(rank: int) -> Callable[[InflightProcess], None]:
    return lambda process: os.kill(rank_pids(process)[rank], signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "last_line"),
    [
        (kill(0), "inflight worker: rank 0 is gone; rank 1 of 2 ends too"),
        (
            kill(1),
            "inflight worker: rank 1 of 2 is gone: it was killed or it crashed; all 2 ranks end",
        ),
    ],
    ids=["rank 0 is killed", "rank 1 is killed"],
)
@pytest.mark.parametrize("busy", [False, True])
def test_a_rank_that_is_killed_ends_all(
    start: Start, end: Callable[[InflightProcess], None], last_line: str, busy: bool
) -> None:
    process = start_ranks(start)
    wait_serving(process)
    ranks = rank_pids(process)
    stream = TritonStream(process.address("grpc"))
    if busy:
        stream.send("long", inputs(PROMPT, 800, streaming=True, end_id=-1))
        stream.next()
    ended_at = time.monotonic()
    end(process)
    wait_until("all ranks have ended", lambda: not any(exists(rank) for rank in ranks))
    assert process.wait() != 0
    assert time.monotonic() - ended_at < END_S, process.log
    assert last_line in process.log
    stream.close(cancel=True)


def test_mpirun_that_is_killed_leaves_no_rank_behind(start: Start) -> None:
    process = start_ranks(start)
    wait_serving(process)
    ranks = rank_pids(process)
    ended_at = time.monotonic()
    process.kill()
    wait_until("all ranks have ended", lambda: not any(exists(rank) for rank in ranks))
    assert time.monotonic() - ended_at < END_S


def test_an_exception_on_a_rank_ends_all_and_is_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        """
import os
if os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
    from inflight.executors.reference.numpy.steps import NumpySteps
    forward = NumpySteps.forward
    def failing(self, batch, rows):
        if len(batch.token_ids) > 64:
            raise ArithmeticError("a bit has flipped")
        return forward(self, batch, rows)
    NumpySteps.forward = failing
"""
    )
    process = start_ranks(start, PYTHONPATH=str(tmp_path))
    wait_serving(process)
    stream = TritonStream(process.address("grpc"))
    ended_at = time.monotonic()
    stream.send("long", inputs([40] * 100, 8, streaming=True))
    assert process.wait() != 0
    assert time.monotonic() - ended_at < END_S
    assert "inflight worker: rank 1 of 2 failed: ArithmeticError: a bit has flipped" in process.log
    stream.close(cancel=True)


def test_a_rank_that_hangs_is_found_by_the_progress_watchdog(start: Start) -> None:
    process = start_ranks(start, "--progress-timeout-s=2")
    wait_serving(process)
    ranks = rank_pids(process)
    os.kill(ranks[1], signal.SIGSTOP)
    stream = TritonStream(process.address("grpc"))
    stream.send("long", inputs(PROMPT, 50, streaming=True))
    assert process.wait() != 0
    assert "made no progress for `2` s" in process.log
    wait_until("all ranks have ended", lambda: not any(exists(rank) for rank in ranks))
    stream.close(cancel=True)


def test_ranks_that_do_not_divide_the_model_are_refused_in_a_sentence(start: Start) -> None:
    process = start_ranks(start, ranks=3)
    assert process.wait() != 0
    assert "attention heads cannot be split over `3` ranks" in process.log
    assert "start 1, 2, 4 or 8 ranks" in process.log
    assert "Traceback" not in process.log


def test_another_size_than_the_jobs_is_refused_in_a_sentence(start: Start) -> None:
    process = start_ranks(start, "--executor-option=tensor_parallel_size=4")
    assert process.wait() != 0
    assert "must be split over `4` ranks, and this job has `2`" in process.log
    assert "mpirun -n 4 inflight worker" in process.log
