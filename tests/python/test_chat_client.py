"""The terminal chat's client: events, conversations, and what a server may answer instead."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner

from inflight.cli.app import inflight
from inflight.cli.chat import Conversation
from inflight.cli.wrap import WordWrap
from inflight.client.openai import OpenAIClient, events
from inflight.errors import InflightError
from support.processes import INFLIGHT, PATIENCE_S, wait_until


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


@pytest.mark.parametrize(
    ("is_terminal", "shown"), [(True, "a\tb\n\\x1b[2J\\u202ec\n"), (False, "a\tb\n\u202ec\n")]
)
def test_a_terminal_gets_no_control_characters_of_a_model(
    is_terminal: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file gets all but the colors that click takes out."""
    monkeypatch.setattr("inflight.cli.chat.sys", Output(is_terminal))
    with serving(chunk("a\tb\n\x1b[2J") + chunk("\u202ec") + "data: [DONE]\n\n") as server:
        assert run(server, "-m", "hi") == (0, shown)


class Output:
    """`sys` of the command, whose standard output is a terminal or not."""

    def __init__(self, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self.stdout = self

    def isatty(self) -> bool:
        return self._is_terminal


def test_lines_of_a_pipe_are_the_turns_of_one_conversation() -> None:
    with serving(GOOD) as server:
        assert run(server, "--system", "be brief", stdin="one\n\ntwo\n") == (0, "Hello\nHello\n")
    assert [m["content"] for m in server.asked[1]["messages"]] == ["be brief", "one", "Hello", "two"]


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (404, '{"error":{"message":"no such model"}}', "the server answered 404: no such model"),
        (502, "<html>", "the server answered 502: <html>"),
        (200, chunk("a") + 'data: {"error":{"message":"worker lost"}}\n\n', "with an error: worker lost"),
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


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three fours", ["one two", "three", "fours"]),
        ("a\n\n  b  c\n", ["a", "", "  b  c", ""]),
        ("abcdefghijklmnopqrs tu", ["abcdefghij", "klmnopqrs", "tu"]),
        ("ab cdefghij", ["ab", "cdefghij"]),
        ("东西东西东 西", ["东西东西东", "西"]),
        ("x东西东西东西", ["x东西东西", "东西"]),
        ("\ta \x1b[31m", ["    a", "\\x1b[31m"]),
        ("", [""]),
    ],
)
def test_lines_break_between_words_however_the_text_arrives(text: str, lines: list[str], size: int) -> None:
    wrap = WordWrap(lambda: 10)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert "".join(map(wrap.feed, pieces)) + wrap.finish() == "\n".join(lines)


def test_the_first_line_of_an_answer_is_shorter_and_a_window_may_change() -> None:
    width = [10]
    wrap = WordWrap(lambda: width[0], column=6)
    assert wrap.feed("abc def ") == "abc\ndef"
    width[0] = 5
    assert wrap.feed("gh ") == "\ngh"


class Terminal:
    """`inflight chat` in a terminal of 40 columns."""

    def __init__(self, server: Server) -> None:
        self._own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        url = f"http://127.0.0.1:{server.server_port}"
        self.process = subprocess.Popen(
            [str(INFLIGHT), "chat", "--url", url],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
        )
        os.close(theirs)
        self._shown = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        # A terminal whose last user has gone is an error.
        try:
            while data := os.read(self._own, 4096):
                self._shown += data
        except OSError:
            return

    @property
    def shown(self) -> str:
        """What was printed, without colors and movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._shown.decode("utf-8", "replace"))

    def wait_for(self, text: str, times: int = 1) -> None:
        wait_until(f"the terminal shows `{text}`", lambda: self.shown.count(text) >= times)

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def end(self) -> int:
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            os.close(self._own)


PASTED = "\x1b[200~one\ntwo\nthree\x1b[201~"


def test_pasted_lines_are_one_turn_and_answers_break_between_words() -> None:
    answer = " ".join(["lorem ipsum"] * 8)
    with serving(chunk(answer) + "data: [DONE]\n\n") as server:
        terminal = Terminal(server)
        terminal.wait_for("you")
        terminal.type(PASTED)
        terminal.wait_for("three")
        terminal.type("\r")
        terminal.wait_for("lorem ipsum lorem ipsum lorem ipsum\r\n")
        terminal.wait_for("you", times=2)
        terminal.type("/quit\r")
        assert terminal.end() == 0
    assert [turn["messages"][-1]["content"] for turn in server.asked] == ["one\ntwo\nthree"]


def test_ctrl_c_keeps_what_was_typed_and_ends_the_chat_when_pressed_again() -> None:
    with serving(GOOD) as server:
        terminal = Terminal(server)
        terminal.wait_for("you")
        terminal.type("half a")
        terminal.wait_for("half a")
        terminal.type("\x03")
        terminal.wait_for("again ends the chat")
        terminal.type(" turn\r")
        terminal.wait_for("Hello")
        terminal.wait_for("you", times=2)
        terminal.type("\x03")
        assert terminal.end() == 0
    assert [turn["messages"][-1]["content"] for turn in server.asked] == ["half a turn"]


def test_a_turn_without_an_answer_is_there_to_be_sent_again() -> None:
    with serving('{"error":{"message":"busy"}}', 429) as server:
        terminal = Terminal(server)
        terminal.wait_for("you")
        terminal.type("try this\r")
        terminal.wait_for("busy")
        terminal.wait_for("try this", times=2)
        terminal.type(" again\r")
        wait_until("it is sent again", lambda: len(server.asked) == 2)
        terminal.wait_for("busy", times=2)
        terminal.type("\x03\x03")
        assert terminal.end() == 0
    assert server.asked[1]["messages"] == [{"role": "user", "content": "try this again"}]
