"""The server that is asked: its SDK clients, and HTTP without an SDK where bytes and headers matter."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from inflight.errors import UserMistake

if TYPE_CHECKING:
    import anthropic
    import openai

#: Enough for a whole answer of a large model; a server that hangs fails its check and not the run.
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Answer:
    """Status, headers (names in lower case) and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body; fails the check if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise AssertionError(f"the body of a {self.status} is not JSON: {self.body[:80]!r}") from None


class Target:
    """The server at `url`, with or without its `/v1`, and the model that is asked."""

    def __init__(self, url: str, model: str | None, api_key: str | None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserMistake(f"`{url}` is not a URL of a server", "write it like `http://127.0.0.1:8000`")
        self._parts = parts
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self.root = f"{parts.scheme}://{parts.netloc}{self._path}"
        self.api_key = api_key
        self._model = model

    def require(self) -> None:
        """Raises `UserMistake` where every check would fail alike: without an SDK, or without a server."""
        for name in ("openai", "anthropic"):
            _sdk(name)
        try:
            self.request("GET", "/v1/models")
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise UserMistake(
                f"`{self.root}` does not answer: {reason}", "start a server there, or pass the URL of one"
            ) from error

    @cached_property
    def model(self) -> str:
        """The model that was named, or the server's first."""
        if self._model is not None:
            return self._model
        models = self.openai.models.list().data
        if not models:
            raise UserMistake(f"`{self.root}` lists no model", "name one with `--model`")
        return models[0].id

    @cached_property
    def openai(self) -> openai.OpenAI:
        """openai-python, which tries once: a retry would hide what a check looks for."""
        sdk = _sdk("openai")
        client: openai.OpenAI = sdk.OpenAI(
            base_url=f"{self.root}/v1", api_key=self.api_key or "none", max_retries=0, timeout=TIMEOUT_S
        )
        return client

    @cached_property
    def anthropic(self) -> anthropic.Anthropic:
        """Anthropic's SDK, which tries once."""
        sdk = _sdk("anthropic")
        client: anthropic.Anthropic = sdk.Anthropic(
            base_url=self.root, api_key=self.api_key or "none", max_retries=0, timeout=TIMEOUT_S
        )
        return client

    def refusal(self, error: Exception) -> str | None:
        """What a server said that has not what was asked for: a 4xx or 501 with a message."""
        status = getattr(error, "status_code", None)
        if status not in (400, 404, 405, 422, 501):
            return None
        body = getattr(error, "body", None)
        if isinstance(body, dict):
            inner = body.get("error", body)
            message = inner.get("message") if isinstance(inner, dict) else None
            if isinstance(message, str):
                return f"{status}: {message}"
        return f"{status}" if status == 404 else None

    def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One request on its own connection; `body` is bytes or what JSON is made of."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {} if data is None else {"content-type": "application/json"}
        if self.api_key:
            sent["authorization"] = f"Bearer {self.api_key}"
        is_tls = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, self._path + path, body=data, headers={**sent, **(headers or {})})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    def close(self) -> None:
        """Closes the clients that were used."""
        for name in ("openai", "anthropic"):
            if name in self.__dict__:
                self.__dict__[name].close()


def _sdk(name: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise UserMistake(
            f"the package `{name}` is not installed", "install it: `pip install 'inflight-llm[conformance]'`"
        ) from None
