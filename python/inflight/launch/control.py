"""How `inflight launch TOPOLOGY --reload` reaches the `inflight launch TOPOLOGY` that runs: a socket of this
user, named after the file.

Owns the socket and the few lines on it; what a reload does is the supervisor's. A request is one word; each
answer is a line of JSON with `text`, and in the last one `is_done` and whether it `failed`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from inflight.errors import UserMistake

#: Nobody sends more than a word.
LONGEST_REQUEST = 64
#: A client that connects and says nothing must not keep others waiting.
REQUEST_TIMEOUT_S = 5.0
RELOAD = b"reload"

#: Takes where progress goes, and where the end goes (an empty text for success). Returns at once.
Reload = Callable[[Callable[[str], None], Callable[[str], None]], None]


def runtime_directory() -> Path:
    """A directory of this user alone, made if it is missing. Raises `UserMistake` where others own it."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(given) / "inflight" if given else Path(f"/tmp/inflight-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UserMistake(
            f"`{path}` must be a directory that only you can use",
            "remove it, or set XDG_RUNTIME_DIR to a directory of yours",
        )
    return path


def path_of(topology: Path, kind: str) -> Path:
    """Where the `inflight launch` of this file has its socket (`sock`) or list of workers (`workers`)."""
    name = hashlib.sha256(os.fsencode(topology.resolve())).hexdigest()[:16]
    return runtime_directory() / f"launch-{name}.{kind}"


class ControlSocket:
    """Listens for as long as the context lasts."""

    def __init__(self, path: Path, reload: Reload) -> None:
        self._path = path
        self._reload = reload
        self._socket = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> ControlSocket:
        """Raises `UserMistake` where another one listens."""
        if _connect(self._path) is not None:
            self._socket.close()
            raise UserMistake(
                "this topology is running already",
                "stop it first, or replace its processes with `inflight launch TOPOLOGY --reload`",
            )
        self._path.unlink(missing_ok=True)
        self._socket.bind(str(self._path))
        self._socket.listen(8)
        threading.Thread(target=self._accept, name="control", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        ended = threading.Event()

        def say(text: str, **more: bool) -> None:
            # The client may have left; the reload continues.
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"text": text, **more}).encode() + b"\n")

        def done(problem: str) -> None:
            say(problem or "all were replaced", is_done=True, failed=bool(problem))
            ended.set()

        with connection:
            connection.settimeout(REQUEST_TIMEOUT_S)
            try:
                asked = connection.recv(LONGEST_REQUEST).strip()
            except OSError:
                return
            if asked != RELOAD:
                done("unknown request")
                return
            self._reload(say, done)
            ended.wait()


def ask_reload(path: Path, tell: Callable[[str], None]) -> str:
    """Asks the one that listens at `path`; `tell` receives progress. Returns an empty text or what failed.

    Raises `UserMistake` where none listens.
    """
    connection = _connect(path)
    if connection is None:
        raise UserMistake(
            "no `inflight launch` of this topology is running here",
            "start it with `inflight launch TOPOLOGY`; the same user must ask",
        )
    with connection, connection.makefile("rwb") as lines:
        lines.write(RELOAD + b"\n")
        lines.flush()
        for line in lines:
            answer = json.loads(line)
            if answer.get("is_done"):
                if not answer["failed"]:
                    tell(answer["text"])
                return str(answer["text"]) if answer["failed"] else ""
            tell(answer["text"])
    return "the supervisor ended"


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection
