"""The terminal chat's client: events, conversations, and what a server may answer instead."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner

from inflight.cli.app import inflight
from inflight.cli.chat import Conversation
from inflight.client.openai import OpenAIClient, events
from inflight.errors import InflightError


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["data: a", "", "data:b", ""], ["a", "b"]),
        (["data: one", "data: two", ""], ["one\ntwo"]),
        ([": comment", "event: x", "", "data: a", ""], ["a"]),
        (["data: cut off"], []),
        ([], []),
    ],
)
def test_events_are_split_as_the_standard_says(lines: list[str], expected: list[str]) -> None:
    assert list(events(lines)) == expected


def chunk(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"delta": {"content": text}}]}) + "\n\n"


class Server(ThreadingHTTPServer):
    """Answers chats with a prepared body and remembers what it was asked."""

    daemon_threads = True

    def __init__(self, status: int, body: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = status
        self.body = body.encode()
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(200, b'{"data":[{"id":"tiny"}]}')

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.server.asked.append(json.loads(self.rfile.read(length)))
        self.server.keys.append(self.headers["authorization"])
        self._answer(self.server.status, self.server.body)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(body: str, status: int = 200) -> Iterator[Server]:
    with Server(status, body) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def run(server: Server, *arguments: str, stdin: str | None = None) -> tuple[int, str]:
    url = f"http://127.0.0.1:{server.server_port}"
    result = CliRunner(catch_exceptions=False).invoke(
        inflight, ["chat", "--url", url, *arguments], input=stdin
    )
    return result.exit_code, result.output


GOOD = chunk("Hel") + chunk("lo") + "data: [DONE]\n\n"


def test_one_message_prints_the_answer_and_ends() -> None:
    with serving(GOOD) as server:
        assert run(server, "-m", "hi", "--api-key", "k", "--temperature", "0") == (0, "Hello\n")
    assert server.asked == [
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "temperature": 0.0,
        }
    ]
    assert server.keys == ["Bearer k"]


def test_lines_of_a_pipe_are_the_turns_of_one_conversation() -> None:
    with serving(GOOD) as server:
        assert run(server, "--system", "be brief", stdin="one\n\ntwo\n") == (0, "Hello\nHello\n")
    assert [m["content"] for m in server.asked[1]["messages"]] == ["be brief", "one", "Hello", "two"]


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (404, '{"error":{"message":"no such model"}}', "the server answered 404: no such model"),
        (502, "<html>", "the server answered 502: <html>"),
        (200, chunk("a") + 'data: {"error":{"message":"worker lost"}}\n\n', "broke off: worker lost"),
        (200, chunk("a"), "the connection was lost in mid-answer"),
    ],
)
def test_what_went_wrong_is_told(status: int, body: str, text: str) -> None:
    with serving(body, status) as server:
        code, output = run(server, "-m", "hi")
    assert code == 1
    assert text in output


def test_a_failed_turn_is_forgotten_and_a_cut_one_is_kept() -> None:
    with serving('{"error":{"message":"busy"}}', 429) as server:
        client = OpenAIClient(f"127.0.0.1:{server.server_port}/v1")
        conversation = Conversation(client, "tiny", None, {})
        with pytest.raises(InflightError, match="busy"):
            list(conversation.ask("hi"))
        assert conversation.messages == []
        server.status, server.body = 200, GOOD.encode()
        pieces = conversation.ask("again")
        assert next(pieces) == "Hel"
        pieces.close()  # type: ignore[attr-defined]
        client.close()
    assert [m["content"] for m in conversation.messages] == ["again", "Hel"]
