"""`inflight repository serve`: which tritonservers it starts, and what becomes of real ones."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import real_triton
from support.command import run
from support.processes import InflightProcess, exists, wait_until
from support.servers import MODEL_ARGUMENTS, Start
from support.triton import TritonStream, inputs, tokens

PROMPT = [40, 41, 42]


@pytest.fixture
def repository(tmp_path: Path, model_directory: Path) -> Path:
    output = tmp_path / "repository"
    run("repository", "create", str(model_directory), "--output", str(output))
    return output


def command(*arguments: str) -> str:
    """What `--dry-run` prints."""
    return run("repository", "serve", "--tritonserver", "triton", "--dry-run", *arguments).out.strip()


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 scripts/launch_triton_server.py --world_size=1 --model_repo=DIR --log --log_file=FILE",
    "inflight repository serve --world_size=1 --model_repo=DIR --log --log_file=FILE",
)
def test_one_rank_is_one_server(repository: Path) -> None:
    made = command(
        "--world_size=1", f"--model_repo={repository}", "--log", "--log_file=x.txt", "--", "--id=a"
    )
    assert made == (
        f"triton --model-repository={repository} --log-verbose=3 --log-file=x.txt --http-port=8000"
        " --grpc-port=8001 --metrics-port=8002 --disable-auto-complete-config"
        " --backend-config=python,shm-region-prefix-name=prefix0_ --id=a"
    )


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 scripts/launch_triton_server.py --world_size=2 --model_repo=DIR --oversubscribe"
    " --tensorrt_llm_model_name=llama_tensorrt_llm,tensorrt_llm",
    "inflight repository serve DIR --world_size=2 --oversubscribe"
    " --tensorrt_llm_model_name=llama_tensorrt_llm,tensorrt_llm",
)
def test_ranks_above_0_load_the_core_models_alone(repository: Path, model_directory: Path) -> None:
    run(
        "repository", "create", str(model_directory), "--output", str(repository), "--prefix", "llama"
    )  # fmt: skip
    made = command(
        str(repository), "--world_size=2", "--oversubscribe",
        "--tensorrt_llm_model_name=llama_tensorrt_llm,tensorrt_llm",
    )  # fmt: skip
    before, first, second = made.replace(" : ", " -n 1 ").split(" -n 1 ")
    assert before.split()[-2:] == ["mpirun", "--oversubscribe"]
    assert "INFLIGHT_TRITON_SUPERVISED=1" in before
    assert "--http-port=8000" in first
    assert "--load-model" not in first
    assert "--model-control-mode=explicit --load-model=llama_tensorrt_llm --load-model=tensorrt_llm" in second
    assert "--allow-http=false --allow-grpc=false --allow-metrics=false" in second
    assert "shm-region-prefix-name=prefix1_" in second


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 scripts/launch_triton_server.py --world_size=2 --model_repo=DIR --trtllm_llmapi_launch"
    " --exit_timeout=9",
    "inflight repository serve DIR --world_size=2 --trtllm_llmapi_launch --exit_timeout=9",
)
def test_tensorrt_llms_launcher_is_in_front_of_every_rank(repository: Path) -> None:
    made = command(str(repository), "--world_size=2", "--trtllm_llmapi_launch", "--exit_timeout=9")
    assert made.count(f"-n 1 trtllm-llmapi-launch triton --model-repository={repository}") == 2
    assert made.count("--exit-timeout-secs=9") == 2
    assert command(str(repository), "--no-mpi").startswith("triton ")
    refused = run("repository", "serve", str(repository), "--dry-run", "--no-mpi", "--world-size=2", code=2)
    assert "`--no-mpi` with `--world-size 2`" in refused.err


def test_the_server_below_tensorrt_llms_launcher_is_stopped(
    start: Start, repository: Path, tmp_path: Path
) -> None:
    """As the launcher does: the server in the background, and an end once it has ended."""
    programs = tmp_path / "programs"
    programs.mkdir()
    ended, began = tmp_path / "ended", tmp_path / "began"
    for name, text in {
        "trtllm-llmapi-launch": f'("$@"; touch {ended}) &\nwhile [ ! -e {ended} ]; do sleep 0.1; done',
        "tritonserver": f"trap 'echo drained; exit 0' TERM\ntouch {began}\nwhile :; do sleep 0.1; done",
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    process = start(
        "repository", "serve", str(repository), "--trtllm-llmapi-launch", "--force",
        environment={"PATH": f"{programs}:{os.environ['PATH']}"},
    )  # fmt: skip
    process.wait_until("the server runs", began.exists)
    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.log
    assert "drained" in process.log


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 scripts/launch_triton_server.py --model_repo=DIR --multi-model",
    "inflight repository serve --model_repo=DIR --multi-model",
)
def test_an_orchestrator_is_one_server(repository: Path) -> None:
    made = command(str(repository), "--multi-model")
    assert made.startswith("TRTLLM_ORCHESTRATOR=1 TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1 triton ")
    assert "--pinned-memory-pool-byte-size=0 --enable-peer-access=false" in made
    spread = command(str(repository), "--multi-model", "--disable-spawn-processes", "--world-size", "2")
    assert spread.startswith("TRTLLM_ORCHESTRATOR=1 TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=0 ")
    assert "--pinned-memory-pool-byte-size" not in spread


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "there is no repository"),
        (["{empty}"], "has no `MODEL/config.pbtxt`"),
        (["{repository}", "{repository}"], "is not an option of tritonserver"),
        (["{repository}", "--world-size", "2", "--multi-model"], "starts the ranks of its engines itself"),
        (["{repository}", "--world-size", "2", "--tensorrt-llm-model-name", "gpt"], "has no model `gpt`"),
        (["{repository}", "--http-port", "8001"], "must differ"),
        (["{repository}", "--tritonserver", "/nowhere/tritonserver"], "is not a program on this machine"),
    ],
)
def test_what_cannot_start_is_named(
    repository: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    filled = [one.format(repository=repository, empty=empty) for one in arguments]
    assert said in run("repository", "serve", *filled, code=2).err


@dataclass
class Served:
    """A repository that is being served."""

    process: InflightProcess
    grpc: str
    arguments: list[str]

    def tokens(self) -> list[int]:
        stream = TritonStream(self.grpc)
        try:
            stream.send("a", inputs(PROMPT, 8, streaming=True, exclude_input_in_output=True))
            return [id for result in stream.until_final() for id in tokens(result)]
        finally:
            stream.close()

    def servers(self) -> list[int]:
        """The tritonservers below it, and the processes of their models."""
        return self.process.descendants()


Serve = Callable[..., Served]


@pytest.fixture
def serve(repository: Path, tmp_path: Path, start: Start) -> Iterator[Serve]:
    why_not = real_triton.why_not()
    if why_not is not None:
        pytest.skip(why_not)
    backends, environment = real_triton.prepare(tmp_path)
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    started: list[int] = []

    def one(*arguments: str) -> Served:
        http, grpc, metrics = real_triton.free_ports(3)
        given = [
            str(repository), "--tritonserver", str(real_triton.SERVER / "bin" / "tritonserver"),
            f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}", *arguments,
            "--", f"--backend-directory={backends}", "--allow-gpu-metrics=false",
        ]  # fmt: skip
        process = start("repository", "serve", *given, environment=environment)
        process.wait_until("it is ready", lambda: f"ready: http://127.0.0.1:{http}" in process.log, 90)
        served = Served(process, f"127.0.0.1:{grpc}", given)
        started.extend(served.servers())
        return served

    yield one
    for pid in started:
        assert not exists(pid), f"{pid} is left"


def test_a_server_is_stopped_cleanly(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "triton.txt"
    served = serve("--force", "--log", "--log-file", str(log))
    assert len(served.tokens()) == 8
    assert "successfully loaded 'ensemble'" in log.read_text()
    again = ["repository", "serve", *[one for one in served.arguments if one != "--force"]]
    assert "tritonserver is already running" in run(*again, code=2).err
    assert served.process.stop() == 0
    assert "stopped" in served.process.log


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
@pytest.mark.skipif(bool(MODEL_ARGUMENTS), reason="the embedded model splits over two ranks")
def test_ranks_serve_together_and_end_together(serve: Serve, repository: Path, model_directory: Path) -> None:
    alone = serve("--force")
    expected = alone.tokens()
    assert len(expected) == 8
    assert alone.process.stop() == 0
    served = serve("--force", "--world-size=2", "--oversubscribe")
    assert served.tokens() == expected
    pids = served.servers()
    assert sum(_name(pid) == "tritonserver" for pid in pids) == 2
    # A rank that is lost ends the others, and with a status that says so.
    rank_1 = next(pid for pid in pids if _name(pid) == "tritonserver" and _rank(pid) == "1")
    os.kill(rank_1, signal.SIGKILL)
    assert served.process.wait(60) != 0
    wait_until("all are gone", lambda: not any(map(exists, pids)))
    served = serve("--force", "--world-size=2", "--oversubscribe")
    assert served.process.stop() == 0


#: A tritonserver that is ready, and ends as its `--id` says.
DOUBLE = """#!{python}
import http.server, signal, sys, threading
given = dict(one.lstrip("-").partition("=")[::2] for one in sys.argv[1:])
if given["id"] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if given["id"] == "failing":
            threading.Thread(target=server.shutdown).start()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(given["http-port"])), Handler)
server.serve_forever()
sys.exit(7)
"""


@pytest.fixture
def double(repository: Path, tmp_path: Path, start: Start) -> Callable[..., InflightProcess]:
    program = tmp_path / "tritonserver"
    program.write_text(DOUBLE.format(python=sys.executable))
    program.chmod(0o755)

    def serve(kind: str, *arguments: str) -> InflightProcess:
        ports = real_triton.free_ports(3)
        given = [
            f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)
        ]
        process = start(
            "repository", "serve", str(repository), "--force", f"--tritonserver={program}",
            *given, *arguments, "--", f"--id={kind}",
        )  # fmt: skip
        process.wait_until("it is ready", lambda: "ready: http://" in process.log)
        return process

    return serve


def test_a_server_that_ends_by_itself_ends_serve_with_its_status(
    double: Callable[..., InflightProcess],
) -> None:
    process = double("failing")
    assert process.wait() == 7
    assert "tritonserver ended with the status 7" in process.log


@pytest.mark.parametrize("how", ["limit", "second signal"])
def test_a_server_that_does_not_end_is_killed(double: Callable[..., InflightProcess], how: str) -> None:
    process = double("stubborn", "--drain-timeout-s", "0.5" if how == "limit" else "600")
    pids = process.descendants()
    assert pids
    process.send(signal.SIGTERM)
    if how != "limit":
        process.wait_until("it is stopping", lambda: "stopping; a second signal" in process.log)
        process.send(signal.SIGINT)
    assert process.wait() == 1
    assert not any(map(exists, pids))


def test_nothing_is_left_when_serve_is_killed(double: Callable[..., InflightProcess]) -> None:
    process = double("usual")
    pids = process.descendants()
    assert pids
    process.kill()
    wait_until("all are gone", lambda: not any(map(exists, pids)))


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _rank(pid: int) -> str:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    [rank] = [one for one in variables if one.startswith(b"OMPI_COMM_WORLD_RANK=")]
    return rank.partition(b"=")[2].decode()
