"""Batches of an OpenAI-compatible server: a file of requests becomes files of results.

Owns the upload and what a batch looks like; how it is shown is `inflight.cli.batch`'s.
"""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from inflight.client.openai import OpenAIClient
from inflight.errors import InflightError, UserMistake

#: Of a file, or of results, at once.
PIECE = 1 << 20
#: Nothing of a batch changes any more.
FINAL = frozenset({"completed", "failed", "expired", "cancelled"})


@dataclass(frozen=True)
class Batch:
    """A batch as its server describes it."""

    id: str
    status: str
    total: int
    completed: int
    failed: int
    output_file: str | None
    error_file: str | None
    #: What is wrong with the file, a line each.
    errors: tuple[str, ...]

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Batch:
        """Reads what the API answers."""
        counts = answer.get("request_counts") or {}
        errors = (answer.get("errors") or {}).get("data") or ()
        return cls(
            id=str(answer["id"]),
            status=str(answer["status"]),
            total=int(counts.get("total") or 0),
            completed=int(counts.get("completed") or 0),
            failed=int(counts.get("failed") or 0),
            output_file=answer.get("output_file_id"),
            error_file=answer.get("error_file_id"),
            errors=tuple(_error(error) for error in errors),
        )


def _error(error: dict[str, Any]) -> str:
    line = error.get("line")
    where = "" if line is None else f"line {line}: "
    return f"{where}{error.get('message') or error.get('code')}"


class Batches:
    """The batches of one server."""

    def __init__(self, client: OpenAIClient) -> None:
        self._client = client

    def upload(self, path: Path) -> str:
        """Uploads a file of requests and returns its name there."""
        boundary = uuid.uuid4().hex
        head = (
            f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
            f'content-disposition: form-data; name="file"; filename="{_plain(path.name)}"\r\n\r\n'
        ).encode()
        tail = f"\r\n--{boundary}--\r\n".encode()
        headers = {
            "content-type": f"multipart/form-data; boundary={boundary}",
            "content-length": str(len(head) + path.stat().st_size + len(tail)),
        }
        with path.open("rb") as file:
            response = self._client.request("POST", "/v1/files", _form(head, file, tail), headers)
            return str(json.loads(response.read())["id"])

    def create(self, file: str, endpoint: str, window: str) -> Batch:
        """Has the requests of an uploaded file run."""
        asked = {"input_file_id": file, "endpoint": endpoint, "completion_window": window}
        return Batch.of(self._client.json("POST", "/v1/batches", asked))

    def find(self, batch: str) -> Batch:
        """The batch as it is now."""
        return Batch.of(self._client.json("GET", f"/v1/batches/{batch}"))

    def cancel(self, batch: str) -> Batch:
        """Stops a batch."""
        return Batch.of(self._client.json("POST", f"/v1/batches/{batch}/cancel", {}))

    def download(self, file: str, path: Path) -> int:
        """Writes a file's content to `path`, which is replaced when all is there; returns its lines."""
        response = self._client.request("GET", f"/v1/files/{file}/content")
        part = path.with_name(path.name + ".part")
        lines = 0
        try:
            with part.open("wb") as out:
                while piece := response.read(PIECE):
                    lines += piece.count(b"\n")
                    out.write(piece)
            left = response.length
        except (OSError, http.client.HTTPException) as error:
            raise InflightError(f"`{path}` could not be read: {error}", "run the command again") from error
        if left:
            raise InflightError(f"`{path}` ended early: {left} bytes are missing", "run it again")
        part.replace(path)
        return lines


def endpoint_of(path: Path) -> str:
    """The path that the requests of a file are for: that of its first one.

    Raises `UserMistake` where the file does not begin with a request.
    """
    with path.open("rb") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                url = json.loads(line).get("url")
            except (ValueError, AttributeError):
                url = None
            if not isinstance(url, str):
                break
            return url
    raise UserMistake(
        f"`{path}` does not begin with a request",
        'write one a line: {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {…}}',
    )


def _form(head: bytes, file: BinaryIO, tail: bytes) -> Iterator[bytes]:
    yield head
    while piece := file.read(PIECE):
        yield piece
    yield tail


def _plain(name: str) -> str:
    """A name that ends no header early."""
    return "".join(
        character if character.isprintable() and character not in '"\\' else "_" for character in name
    )
