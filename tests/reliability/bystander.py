"""A client that behaves, while others do not: it asks again and again and must lose nothing.

Half of its requests are streamed. Each answer is compared with the one that the same prompt had before the
trouble began: the simulated executor's tokens depend on the prompt alone.
"""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Any

from reliability.report import Report
from support.raw_http import Incomplete, exchange, post_bytes, split_response

PATH = "/v1/completions"
PROMPTS = ("Hi", "Once upon a time", "The quick brown fox", "1 2 3")
MAX_TOKENS = 12
#: Longer than any wait that the promises allow, with room for a busy machine.
SLOW_S = 15.0


def body(model: str, prompt: str, max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
    """A request whose answer is known in advance, on a simulated worker."""
    return {"model": model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "seed": 7}


class Lost(Exception):
    """An answer that did not come; `how` says what the client got in its place."""

    def __init__(self, how: str, detail: object, size: int = 0) -> None:
        super().__init__(f"{how}: {detail}"[:400])
        self.how = how
        #: Bytes of what came in the answer's place.
        self.bytes = size


REFUSED = "refused"
ERROR_EVENT = "an error event"
CUT = "a cut that the client could tell"
#: Never allowed: it looks like an answer.
UNCLEAN = "an answer that is not well-formed"


def whole(address: str, asked: dict[str, Any]) -> str:
    """The text of an answer in one piece; raises `Lost`."""
    received = _answer(address, asked)
    try:
        choice = json.loads(received)["choices"][0]
        assert choice["finish_reason"] == "length", choice
    except (AssertionError, ValueError, LookupError) as error:
        raise Lost(UNCLEAN, received[:200]) from error
    return str(choice["text"])


def streamed(address: str, asked: dict[str, Any]) -> str:
    """The text of a streamed answer with a clean end; raises `Lost`."""
    received = _answer(address, {**asked, "stream": True})
    try:
        return _text(received.decode())
    except (AssertionError, ValueError, LookupError) as error:
        raise Lost(UNCLEAN, error) from error


def _answer(address: str, asked: dict[str, Any]) -> bytes:
    """The body of an answer with status 200."""
    try:
        response, rest = split_response(exchange(address, post_bytes(PATH, asked)))
    except (OSError, Incomplete) as error:
        raise Lost(CUT, error) from error
    if response.status != 200:
        raise Lost(REFUSED, (response.status, response.body[:200]), len(response.body))
    if rest:
        raise Lost(UNCLEAN, rest[:200])
    return response.body


def _text(received: str) -> str:
    *events, done, rest = received.split("\n\n")
    assert (done, rest) == ("data: [DONE]", ""), received[-200:]
    text, reason = "", None
    for event in events:
        chunk = json.loads(event.removeprefix("data: "))
        if "error" in chunk:
            raise Lost(ERROR_EVENT, chunk["error"], len(event))
        for choice in chunk["choices"]:
            text += choice["text"]
            reason = choice["finish_reason"] or reason
    assert reason == "length", reason
    return text


class Bystander:
    """Asks in threads of its own for as long as it is entered; reports what it lost when it is left."""

    def __init__(self, address: str, model: str, report: Report, threads: int = 2) -> None:
        self._address = address
        self._report = report
        self._bodies = [body(model, prompt) for prompt in PROMPTS]
        self._expected: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]
        self._times: list[float] = []

    def __enter__(self) -> Bystander:
        self._expected = [whole(self._address, asked) for asked in self._bodies]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        slowest = max(self._times, default=SLOW_S)
        self._report.note_bystander(slowest)
        self._report.expect("a bystander is answered in time", slowest < SLOW_S, f"{slowest:.1f} s")

    def _run(self, number: int) -> None:
        turn = number
        while not self._stop.is_set():
            turn += 1
            place = turn % len(self._bodies)
            ask = streamed if turn % 2 else whole
            begun = time.monotonic()
            try:
                text = ask(self._address, self._bodies[place])
            except Lost as error:
                self._report.breaks(f"a bystander's request was lost: {error}")
                self._stop.wait(0.2)
                continue
            self._report.expect("a bystander's answer is right", text == self._expected[place], text)
            self._report.attempt("requests of a bystander")
            self._times.append(time.monotonic() - begun)
