"""The commands that talk to a running server, as a person types them."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from support.http import get
from support.processes import INFLIGHT, PATIENCE_S
from support.servers import Server, Start, wait_ready


def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """`inflight ARGUMENTS` to its end."""
    return subprocess.run(
        [str(INFLIGHT), *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_chat_prints_the_answer(server: Server) -> None:
    result = run(
        "chat", f"--url=http://{server.http}", "--message=Hello", "--max-tokens=12", "--temperature=0"
    )
    assert result.returncode == 0, result
    assert result.stdout.strip()
    assert "Traceback" not in result.stderr


def test_chat_remembers_the_conversation(server: Server) -> None:
    """Two turns from standard input are two requests; the second's prompt holds the first's answer."""

    def prompt_tokens() -> float:
        lines = get(server.http, "/metrics").body.decode().splitlines()
        [line] = [line for line in lines if line.startswith("inflight_gateway_prompt_tokens_total")]
        return float(line.rpartition(" ")[2])

    before = prompt_tokens()
    one = run("chat", f"--url=http://{server.http}", "--max-tokens=12", "--temperature=0", given="Hello\n")
    alone = prompt_tokens() - before
    both = run(
        "chat", f"--url=http://{server.http}", "--max-tokens=12", "--temperature=0", given="Hello\nHello\n"
    )
    assert both.returncode == 0, both
    assert both.stdout.startswith(one.stdout)
    # Twice the first prompt and, in the second, an answer.
    assert prompt_tokens() - before - alone > 2 * alone


def test_chat_tells_in_words_that_no_server_is_there() -> None:
    result = run("chat", "--url=http://127.0.0.1:1", "--message=Hello")
    assert result.returncode != 0
    assert "127.0.0.1:1" in result.stderr
    assert "Traceback" not in result.stderr


def test_chat_tells_the_server_s_own_words(server: Server) -> None:
    result = run("chat", f"--url=http://{server.http}", "--model=gpt-9", "--message=Hello")
    assert result.returncode != 0
    assert "gpt-9" in result.stderr
    assert "Traceback" not in result.stderr


def test_top_shows_the_worker_and_what_it_does(server: Server) -> None:
    asked = ("top", f"http://{server.http}", f"--worker-metrics={server.metrics}", "--count=1")
    shown = run(*asked, "--interval-s=0.2")
    assert shown.returncode == 0, shown
    assert server.grpc in shown.stdout
    assert "ready" in shown.stdout
    [*_, last] = run(*asked, "--interval-s=0.1", "--count=3", "--json").stdout.splitlines()
    reading = json.loads(last)
    assert reading["requests_per_s"] == 0  # its own readings are none
    assert [(row["address"], row["is_ready"]) for row in reading["workers"]] == [(server.grpc, True)]
    assert 0 <= reading["kv_cache"][server.metrics] <= 1
    gone = run("top", "http://127.0.0.1:1", "--count=1")
    assert (gone.returncode, "does not answer" in gone.stderr) == (1, True), gone.stderr


def test_top_says_that_a_gateway_shows_workers_to_a_key_only(server: Server, start: Start) -> None:
    gateway = start("gateway", "--port=0", f"--worker={server.grpc}", "--api-key=secret")
    asked = ("top", f"http://{wait_ready(gateway)}", "--count=1", "--interval-s=0.1")
    shown = run(*asked)
    assert (shown.returncode, server.grpc in shown.stdout) == (0, False), shown
    assert "shows its workers to clients with a key only; pass `--api-key`" in shown.stderr
    assert "pass `--api-key`" in " ".join(shown.stdout.split())
    shown = run(*asked, "--api-key=other")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.splitlines()[1] == "hint: pass a valid `--api-key`"
    shown = run(*asked, "--api-key=secret")
    assert server.grpc in shown.stdout
    assert shown.stderr == ""


@pytest.mark.parametrize("wire", ["openai", "kserve", "kserve-step"])
def test_bench_counts_every_token(fast: Server, wire: str) -> None:
    address = fast.http if wire == "openai" else fast.grpc
    options = ("--streams=6", "--tokens=20", "--requests=24", "--json")
    result = run("bench", "load", address, f"--wire={wire}", *options)
    assert result.returncode == 0, result
    report = json.loads(result.stdout)
    assert report["tokens"] == 24 * 20
    assert report["whole"] == 24
    assert report["short"] == report["truncated"] == report["errored"] == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_as_the_readme_has_it(server: Server) -> None:
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": "What is machine learning?"}],
        "stream": True,
        "max_tokens": 8,
    }
    result = subprocess.run(
        [
            "curl",
            "--silent",
            "--show-error",
            "--no-buffer",
            f"http://{server.http}/v1/chat/completions",
            "-H",
            "content-type: application/json",
            "-d",
            json.dumps(body),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    events = result.stdout.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert len(events) > 5
