"""The scripts of `examples/`, and the commands in README.md, run as a user would run them.

They name the default ports. The tests run copies with the ports of the servers under test, and change
nothing else.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.http import get, post
from support.metrics import total
from support.processes import INFLIGHT, wait_until
from support.servers import MODEL_NAME, Server

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: A page includes a script by naming it above the code.
INCLUDED = re.compile(r"<!-- (examples/\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CURLS = [code for code in SHELL.findall(README) if code.startswith("curl ")]
ENVIRONMENT = {**os.environ, "PATH": f"{INFLIGHT.parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}


def at(server: Server, script: str) -> str:
    """`script` with the addresses of `server` in place of the default ones."""
    return script.replace("localhost:8000", server.http).replace("localhost:8001", server.grpc)


def output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name", ["chat.py", "chat_stream.py", "completions.py", "tools.py", "kserve_stream.py", "chat.sh"]
)
def test_a_script_answers(server: Server, tmp_path: Path, name: str) -> None:
    script = tmp_path / name
    script.write_text(at(server, (EXAMPLES / name).read_text(encoding="utf-8")), encoding="utf-8")
    output = output_of(sys.executable if name.endswith(".py") else "bash", str(script))
    shown = {
        "chat.py": r"\w+ \w+",
        "chat_stream.py": r"\w+ \w+",
        "completions.py": r"(?s)^0: .+\n1: .+ \((stop|length)\)\n\d+ prompt tokens, \d+ generated$",
        "tools.py": r"^get_weather {'city': 'Paris'}\n.*sunny",
        "kserve_stream.py": r"^(\[[\d ]+\]\n?)+$",
        "chat.sh": r"(?s)^data: \{.*\n\ndata: \[DONE\]$",
    }[name]
    assert re.search(shown, output.strip()), output


def test_the_curl_commands_of_the_readme_answer(server: Server) -> None:
    assert CURLS
    for command in CURLS:
        assert output_of("bash", "-c", at(server, command)).rstrip().endswith("data: [DONE]")


def test_every_page_shows_the_scripts_as_they_are() -> None:
    included = dict(INCLUDED.findall(README))
    assert included
    for path, code in included.items():
        assert code == (ROOT / path).read_text(encoding="utf-8"), f"copy `{path}` into README.md"


def test_every_script_is_listed_and_run() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    tests = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.iterdir():
        if path.suffix in (".py", ".sh"):
            assert f"]({path.name})" in page
            assert f'"{path.name}"' in tests


@pytest.fixture
def two_workers(tmp_path: Path) -> Iterator[str]:
    """`two_workers.sh` on free ports: the gateway's address."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
    free = [str(listener.getsockname()[1]) for listener in sockets]
    for listener in sockets:
        listener.close()
    script = (EXAMPLES / "two_workers.sh").read_text(encoding="utf-8")
    for usual, port in zip(("8000", "8101", "8102", "8201", "8202"), free, strict=True):
        script = script.replace(usual, port)
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-c", script], stdout=file, stderr=file, env=ENVIRONMENT, start_new_session=True
        )
    try:
        yield f"127.0.0.1:{free[0]}"
        # Ctrl-C reaches the whole group.
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)
    finally:
        print(log.read_text(errors="replace"))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_two_workers_serve_behind_one_gateway(two_workers: str) -> None:
    def both_are_up() -> bool:
        try:
            return total(two_workers, "inflight_gateway_worker_up") == 2
        except OSError:
            return False

    wait_until("both workers are up", both_are_up, 60)
    body = {"model": MODEL_NAME, "prompt": "Once upon a time", "max_tokens": 4}
    assert post(two_workers, "/v1/completions", body).status == 200
    assert get(two_workers, "/health/ready").status == 200
