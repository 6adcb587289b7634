"""`inflight conformance`: our server keeps every check, the page says so, and a wrong server keeps none."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from inflight.cli.app import inflight
from inflight.conformance import page
from inflight.conformance.check import checks, run
from inflight.conformance.node import run_node
from inflight.conformance.target import Target
from inflight.errors import UserMistake
from support.servers import MODEL, Server

PAGE = Path(__file__).parents[2] / "docs" / "CONFORMANCE.md"
HEAD = """\
# Conformance

What `inflight serve` with the embedded model answers to the SDKs of OpenAI and Anthropic for Python.
`inflight conformance URL --markdown` prints these tables for any server; a test keeps the page equal to them.

"yes": the SDK reads what the API promises. "absent, and said so": an error or header that names what is not
there, never a wrong answer. "**no**": a defect.

"""


@pytest.mark.skipif(MODEL is not None, reason="the page is of the embedded model")
@pytest.mark.timeout(300)
def test_our_server_keeps_every_check_and_the_page_says_so(server: Server) -> None:
    target = Target(f"http://{server.http}", server.model, None)
    try:
        results = list(run(target, checks()))
    finally:
        target.close()
    assert [(one.name, one.reason) for one in results if one.state == "failed"] == []
    text = HEAD + page.markdown(results)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text


class Empty(BaseHTTPRequestHandler):
    """Answers everything with 200 and an empty object: an API in name only."""

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        self.rfile.read(length)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def empty() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def node_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js is not installed")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(Path(__file__).parent / "node" / name, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=100)
    return folder


def test_our_server_keeps_the_checks_for_node(server: Server, node_packages: Path) -> None:
    results = list(run_node(Target(f"http://{server.http}", server.model, None), node_packages))
    assert [(one.name, one.reason) for one in results if one.state == "failed"] == []
    assert sum(one.state == "passed" for one in results) >= 5


def test_packages_for_node_that_are_missing_are_named(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    with pytest.raises(UserMistake, match="has no package openai @anthropic-ai/sdk"):
        list(run_node(Target("http://127.0.0.1:1", "a", None), tmp_path))


#: An empty object is all that they ask for, or is no contradiction to it.
KEPT_BY_AN_EMPTY_OBJECT = {"Fields", "Other than generation"}


def test_every_check_fails_where_the_server_answers_nothing(empty: str) -> None:
    target = Target(empty, "a", None)
    try:
        results = list(run(target, checks()))
    finally:
        target.close()
    passed = {result.topic for result in results if result.state != "failed"}
    assert passed <= KEPT_BY_AN_EMPTY_OBJECT
    assert len([result for result in results if result.state == "failed"]) > 70


def test_the_command_counts_and_exits_with_1(empty: str) -> None:
    asked = ["conformance", empty, "--model=a", "--only=whole answer"]
    outcome = CliRunner().invoke(inflight, asked)
    assert outcome.exit_code == 1
    assert "0 passed, 0 absent, 2 failed" in outcome.output
    outcome = CliRunner().invoke(inflight, [*asked, "--json"])
    assert '"state": "failed"' in outcome.stdout


def test_a_search_without_a_check_is_a_mistake() -> None:
    outcome = CliRunner().invoke(inflight, ["conformance", "--only=no such check"])
    assert outcome.exit_code == 2
    assert "no check's name contains `no such check`" in outcome.output


@pytest.mark.parametrize("package", ["openai", "anthropic"])
def test_a_package_that_is_missing_is_one_error(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = CliRunner().invoke(inflight, ["conformance"])
    assert result.exit_code == 2
    assert result.output.splitlines() == [
        f"error: the package `{package}` is not installed",
        "hint: install it: `pip install 'inflight-llm[conformance]'`",
    ]


def test_a_server_that_does_not_answer_is_one_error() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        # Bound and not listening: nobody else gets the port, and connections are refused.
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        result = CliRunner().invoke(inflight, ["conformance", url, "--json"])
    assert result.exit_code == 2
    error, hint = result.output.splitlines()
    assert error.startswith(f"error: `{url}` does not answer: ")
    assert hint == "hint: start a server there, or pass the URL of one"
