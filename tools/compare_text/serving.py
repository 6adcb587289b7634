"""Workers whose models write what they are told, a gateway in front of them, and conversations with it.

Owns the processes and the form of a request; what is said is its callers'.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

#: What one worker serves at most.
MODELS_PER_WORKER = 64
START_S, ANSWER_S = 20.0, 30.0
_LISTENS = re.compile(r"listening on (?:grpc|http)://(\S+)")


@dataclass
class Answer:
    """What came of one request: an error, or a message."""

    error: str = ""
    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def named_calls(self) -> list[tuple[str, Any]]:
        """Name and arguments of each call; arguments that are not JSON as they are."""
        return [(call["function"]["name"], _parsed(call["function"]["arguments"])) for call in self.calls]

    def message(self) -> dict[str, Any]:
        """As the client sends it back."""
        return {"role": "assistant", "content": self.content or None, "tool_calls": self.calls}


class Gateway:
    """An address that answers chats."""

    def __init__(self, address: str) -> None:
        self._address = address

    def chat(self, body: Mapping[str, Any]) -> Answer:
        """The answer to one request, streamed where the body says so."""
        connection = http.client.HTTPConnection(self._address, timeout=ANSWER_S)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status != 200:
            return Answer(error=f"{response.status} {json.loads(text)['error']['message']}")
        return _streamed(text) if body.get("stream") else _whole(json.loads(text))

    def models(self) -> int:
        """How many it serves now."""
        connection = http.client.HTTPConnection(self._address, timeout=ANSWER_S)
        try:
            connection.request("GET", "/v1/models")
            return len(json.loads(connection.getresponse().read())["data"])
        except OSError:
            return 0
        finally:
            connection.close()


@contextmanager
def serving(templates: Mapping[str, str], *gateway_options: str) -> Iterator[Gateway]:
    """A gateway in front of one model for each template, by the template's name."""
    names = list(templates)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        workers = []
        for begin in range(0, len(names), MODELS_PER_WORKER):
            file = Path(folder, f"models-{begin}.json")
            file.write_text(json.dumps({name: templates[name] for name in names[begin:][:MODELS_PER_WORKER]}))
            command = ["-m", "compare_text.dictated", str(file)]
            workers.append(stack.enter_context(_process(command, Path(folder, f"worker-{begin}.log"))))
        command = [
            "-m",
            "inflight",
            "gateway",
            "--port=0",
            "--log=inflight_gateway::cli=info,warn",
            *gateway_options,
        ]
        command += [f"--worker={worker}" for worker in workers]
        gateway = Gateway(stack.enter_context(_process(command, Path(folder, "gateway.log"))))
        deadline = time.monotonic() + START_S
        while gateway.models() < len(names):
            if time.monotonic() > deadline:
                raise SystemExit(
                    "the gateway does not serve all models\n" + _last(Path(folder, "gateway.log"))
                )
            time.sleep(0.05)
        yield gateway


@contextmanager
def _process(arguments: Sequence[str], log: Path) -> Iterator[str]:
    """A process for as long as the context lasts; the address that it announces."""
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_S
        while (found := _LISTENS.search(log.read_text(encoding="utf-8", errors="replace"))) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"`{' '.join(arguments)}` did not start\n{_last(log)}")
            time.sleep(0.05)
        yield found[1]
    finally:
        process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _last(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _whole(body: Any) -> Answer:
    [choice] = body["choices"]
    message = choice["message"]
    return Answer(
        content=message.get("content") or "",
        reasoning=message.get("reasoning_content") or "",
        calls=message.get("tool_calls") or [],
        finish_reason=choice["finish_reason"],
    )


def _streamed(text: str) -> Answer:
    """The deltas of a stream, added up as a client does."""
    answer = Answer()
    for line in text.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            answer.error = event["error"]["message"]
            continue
        for choice in event["choices"]:
            delta = choice["delta"]
            answer.content += delta.get("content") or ""
            answer.reasoning += delta.get("reasoning_content") or ""
            answer.finish_reason = choice["finish_reason"] or answer.finish_reason
            for part in delta.get("tool_calls") or []:
                if part["index"] == len(answer.calls):
                    answer.calls.append(
                        {"id": part["id"], "type": "function", "function": {"name": "", "arguments": ""}}
                    )
                function = answer.calls[part["index"]]["function"]
                function["name"] += part["function"].get("name") or ""
                function["arguments"] += part["function"].get("arguments") or ""
    return answer
