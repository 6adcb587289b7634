"""A small Hugging Face Hub: an HTTP server with the calls that `huggingface_hub` makes for a download.

Owns the paths and headers of its API, as far as a public repository without large-file storage needs them.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Its address, what it has and what it was asked."""

    url: str
    #: ORG/NAME -> name of a file -> its content.
    repositories: dict[str, dict[str, bytes]]
    asked: list[str] = field(default_factory=list)


def files_of(directory: Path) -> dict[str, bytes]:
    """The files of a checkpoint, by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def fill_cache(home: Path, repository: str, files: dict[str, bytes]) -> Path:
    """Puts a repository into the cache below `HF_HOME`, in the Hub's own layout; returns the snapshot."""
    root = home / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    for directory in (snapshot, root / "blobs", root / "refs"):
        directory.mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    for name, content in files.items():
        blob = root / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / name).symlink_to(Path("..") / ".." / "blobs" / blob.name)
    return snapshot


@contextmanager
def serving_hub(repositories: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    """A Hub on a free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_port}", repositories)
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing; tests look at what was asked."""

    def _answer(self, *, with_body: bool) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        hub.asked.append(f"{self.command} {path}")
        status, headers, body = _find(hub, path)
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _find(hub: Hub, path: str) -> tuple[int, dict[str, str], bytes]:
    api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
    resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
    found = api or resolve
    files = hub.repositories.get(found[1]) if found else None
    if found is None or files is None:
        return 404, {"x-error-code": "RepoNotFound"}, b"{}"
    if api:
        if api[3] not in (None, "main", COMMIT):
            return 404, {"x-error-code": "RevisionNotFound"}, b"{}"
        listing = [
            {"type": "file", "path": name, "size": len(content), "oid": _etag(content)}
            for name, content in files.items()
        ]
        information = {"id": api[1], "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
        made: object = listing if api[2] == "tree" else information
        return 200, {"content-type": "application/json"}, json.dumps(made).encode()
    content = files.get(found[3])
    if content is None:
        return 404, {"x-error-code": "EntryNotFound"}, b""
    return 200, {"etag": f'"{_etag(content)}"', "x-repo-commit": COMMIT}, content


def _etag(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
