"""Talks to an OpenAI-compatible server: the models it has, and streamed chat completions.

Owns HTTP and server-sent events for commands in a terminal; people's programs use the `openai` package.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from inflight.errors import InflightError, UserMistake

#: Seconds without a byte before the server counts as gone; covers a long prefill.
TIMEOUT_S = 300.0
#: A longer event is not a token.
LONGEST_EVENT = 16 * 1024 * 1024


class OpenAIClient:
    """A client of the server at `url`, with or without its `/v1`."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise UserMistake(f"`{url}` is not a URL of a server", "write it like `http://127.0.0.1:8000`")
        self._url = url
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, port, timeout=TIMEOUT_S)

    def models(self) -> list[str]:
        """The ids of `GET /v1/models`."""
        answer = self.json("GET", "/v1/models")
        return [str(model["id"]) for model in answer["data"]]

    def chat(self, model: str, messages: Sequence[Mapping[str, str]], **fields: Any) -> Iterator[str]:
        """Streams the text of one answer, piece by piece.

        Closing the iterator early closes the connection, which cancels the request on the server.
        Raises `InflightError` for an error answer, an error in the stream, or a stream that is cut.
        """
        body = {"model": model, "messages": list(messages), "stream": True, **fields}
        response = self.request("POST", "/v1/chat/completions", json.dumps(body).encode())
        done = False
        try:
            for data in events(lines_of(response, LONGEST_EVENT)):
                if data == "[DONE]":
                    done = True
                    break
                chunk = json.loads(data)
                if "error" in chunk:
                    raise InflightError(f"the server ended the stream with an error: {_message(chunk)}")
                for choice in chunk.get("choices", ()):
                    text = choice.get("delta", {}).get("content")
                    if text:
                        yield text
            if not done:
                raise InflightError("the connection was lost in mid-answer", "is the server still running?")
            # Read to its end, so that the connection serves the next turn.
            response.read()
        except (OSError, http.client.HTTPException) as error:
            raise InflightError(
                f"the connection was lost in mid-answer: {error}", "is the server still running?"
            ) from error
        finally:
            if not done:
                self._connection.close()

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """What is answered, where that is JSON."""
        payload = None if body is None else json.dumps(body).encode()
        return json.loads(self.request(method, path, payload).read())

    def request(
        self,
        method: str,
        path: str,
        payload: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        """The answer, whose body is to be read to its end before the next request.

        Raises `NoServer` where nobody answers, and `Refused` for an error.
        """
        try:
            self._connection.request(method, self._base + path, payload, {**self._headers, **(headers or {})})
            response = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise NoServer(
                f"no server answers at `{self._url}`: {error}",
                "start one with `inflight serve`, or name another with `--url`",
            ) from error
        if response.status != http.client.OK:
            text = response.read()
            message = f"the server answered {response.status}: {_message(_json(text))}"
            raise Refused(message, response.status)
        return response


class NoServer(InflightError):
    """Nobody answers."""


class Refused(InflightError):
    """The server answered with an error."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__(what)
        self.status = status


def events(lines: Iterable[str]) -> Iterator[str]:
    """The data of each server-sent event. Comments and other fields are skipped; an event that is cut
    off by the end of the stream is not given, as the standard says.
    """
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield "\n".join(data)
            data.clear()
        elif line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))


def lines_of(response: http.client.HTTPResponse, longest: int) -> Iterator[str]:
    """The lines of a response, of at most that many bytes each."""
    while raw := response.readline(longest):
        yield raw.decode("utf-8", "replace").rstrip("\r\n")


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode("utf-8", "replace").strip()


def _message(answer: Any) -> str:
    """The message of an OpenAI error envelope, or what there is instead."""
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        return str(error.get("message", error) if isinstance(error, dict) else error)
    return str(answer) or "no reason given"
