"""`inflight batch`, and batches next to clients: files become results, and runs are found again."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from support.batches import CHAT, requests, results, running
from support.http import get, post, stream
from support.servers import MODEL_NAME, Server, Start, start_gateway, start_worker, wait_ready


def test_a_file_is_run_and_its_results_are_written(start: Start, server: Server, tmp_path: Path) -> None:
    file = requests(tmp_path / "in.jsonl", 12)
    command = ("batch", "run", str(file), f"--url=http://{server.http}")
    process = start(*command)
    assert process.wait() == 0, process.log
    assert results(tmp_path / "in.results.jsonl") == {f"r{n}": 200 for n in range(12)}
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "in.results.jsonl"}
    assert "12 of 12" in process.log
    # What failed is apart, and the exit status says so.
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], lines[1].replace('"max_tokens": 4', '"max_tokens": -4')]))
    output = tmp_path / "out.jsonl"
    process = start(*command, f"--output={output}")
    assert process.wait() == 3, process.log
    assert results(output) == {"r0": 200}
    assert results(tmp_path / "out.errors.jsonl") == {"r1": 400}


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        ("", 2, "does not begin with a request"),
        ("[]", 2, "does not begin with a request"),
        (json.dumps({"url": CHAT}), 2, "line 1: The line has no `custom_id`"),
        (json.dumps({"url": "/v1/images"}), 1, "Invalid value for `endpoint`"),
    ],
)
def test_a_file_that_cannot_run_says_why(
    start: Start, server: Server, tmp_path: Path, content: str, status: int, words: str
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(content)
    process = start("batch", "run", str(file), f"--url=http://{server.http}")
    assert process.wait() == status, process.log
    assert words in process.log
    assert "Traceback" not in process.log
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"], "nothing is left behind"


def test_a_run_that_was_interrupted_is_found_again(start: Start, tmp_path: Path) -> None:
    worker = start_worker(start, "--step-us=20000")
    gateway = start_gateway(start, [worker], f"--data-dir={tmp_path / 'data'}", "--batch-lines=2")
    address = wait_ready(gateway)
    file = requests(tmp_path / "in.jsonl", 30, max_tokens=10, ignore_eos=True)
    command = ("batch", "run", str(file), f"--url=http://{address}")
    first = start(*command)
    first.wait_until("some lines are done", lambda: bool(batch(address)["request_counts"]["completed"]))
    first.send(signal.SIGINT)
    assert first.wait() == 130, first.log
    assert "Run the command again" in first.log
    second = start(*command)
    assert second.wait() == 0, second.log
    assert "of an earlier run" in second.log
    assert results(tmp_path / "in.results.jsonl") == {f"r{n}": 200 for n in range(30)}
    assert len(get(address, "/v1/batches").json()["data"]) == 1
    # Now there is nothing left to find.
    third = start(*command, "--new")
    assert third.wait() == 0, third.log
    assert len(get(address, "/v1/batches").json()["data"]) == 2


def batch(address: str) -> dict[str, dict[str, int]]:
    """The latest batch."""
    found = get(address, "/v1/batches").json()["data"]
    return dict(found[0]) if found else {"request_counts": {"completed": 0}}


def test_a_batch_can_be_stopped_by_name(start: Start, tmp_path: Path) -> None:
    worker = start_worker(start, "--step-us=20000")
    gateway = start_gateway(start, [worker], f"--data-dir={tmp_path / 'data'}")
    address = wait_ready(gateway)
    file = requests(tmp_path / "in.jsonl", 200, max_tokens=30, ignore_eos=True)
    process = start("batch", "run", str(file), f"--url=http://{address}")
    process.wait_until("it is there", lambda: "id" in batch(address))
    name = str(batch(address)["id"])
    cancel = start("batch", "cancel", name, f"--url=http://{address}")
    assert cancel.wait() == 0, cancel.log
    assert process.wait() == 1, process.log
    assert "the batch is cancelled" in process.log
    again = start("batch", "cancel", name, f"--url=http://{address}")
    assert again.wait() == 1, again.log
    assert "`cancelled`" in again.log


def test_lines_have_what_clients_leave(start: Start, tmp_path: Path) -> None:
    """While a client waits, an eighth of the lines begin; a client never waits for the others' end."""
    worker = start_worker(start, "--step-us=20000")
    gateway = start_gateway(start, [worker], f"--data-dir={tmp_path / 'data'}", "--batch-lines=16")
    address = wait_ready(gateway)
    file = requests(tmp_path / "in.jsonl", 1000, max_tokens=5, ignore_eos=True)
    process = start("batch", "run", str(file), f"--url=http://{address}")
    process.wait_until("sixteen lines run", lambda: running(address) == 16)
    body = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 200, "ignore_eos": True, "stream": True}
    client = stream(address, "/v1/completions", body)
    chunks = client.chunks()
    next(chunks)
    gateway.wait_until("few lines run", lambda: running(address) <= 2)
    client.close()
    gateway.wait_until("more lines run again", lambda: running(address) > 2)
    assert process.wait() == 0, process.log
    assert post(address, "/v1/completions", {**body, "stream": False, "max_tokens": 1}).status == 200
