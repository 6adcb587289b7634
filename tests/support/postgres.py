"""A real PostgreSQL of one test: made, started, crashed and stopped. Owns nothing of its tables.

Debian's package `postgresql` is used: `tools/install-system-packages database` installs it. The server does
not run as root: there it has Debian's user.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes import wait_until

PROGRAMS = ("initdb", "postgres", "pg_isready")
#: Of the user `inflight`.
PASSWORD = "a-secret-of-the-database"


def binaries() -> Path | None:
    """Where the server's programs are: Debian does not have them in the path."""
    found = shutil.which("initdb")
    places = [*Path("/usr/lib/postgresql").glob("*/bin"), *([Path(found).parent] if found else [])]
    return next((place for place in places if all((place / name).exists() for name in PROGRAMS)), None)


class Postgres:
    """A server on a port that it keeps, with an empty database."""

    def __init__(self, directory: Path) -> None:
        programs = binaries()
        assert programs is not None
        self._programs = programs
        self._directory = directory
        self._data = directory / "data"
        self._user = "postgres" if os.geteuid() == 0 else None
        self._server: subprocess.Popen[bytes] | None = None
        if self._user:
            shutil.chown(directory, self._user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        secret = directory / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run("initdb", "-D", self._data, "-U", "inflight", "-A", "scram-sha-256", f"--pwfile={secret}")

    def encrypt(self, certificate: Path, key: Path) -> None:
        """From the next start on it takes connections over TLS alone."""
        for source, name in ((certificate, "server.crt"), (key, "server.key")):
            target = self._data / name
            shutil.copy(source, target)
            target.chmod(0o600)
            if self._user:
                shutil.chown(target, self._user, self._user)
        rules = self._data / "pg_hba.conf"
        rules.write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
        with (self._data / "postgresql.conf").open("a") as settings:
            settings.write("ssl = on\n")

    @property
    def url(self) -> str:
        """Without the password."""
        return f"postgresql://inflight@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        address = ("-h", "127.0.0.1", "-p", str(self.port), "-k", str(self._directory))
        self._server = subprocess.Popen(
            [str(self._programs / "postgres"), "-D", str(self._data), *address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._directory,
            user=self._user,
            start_new_session=True,
        )
        wait_until("the database answers", self._is_ready)

    def crash(self) -> None:
        """Ends it as a crash would: connections break, and the next start recovers."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """Ends it, whoever is connected."""
        self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> None:
        if self._server is not None:
            self._server.send_signal(number)
            self._server.wait(30)
            self._server = None

    def _is_ready(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, "the database ended"
        command = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._programs / program), *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True, cwd=self._directory, user=self._user)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server that runs."""
    with tempfile.TemporaryDirectory() as directory:
        server = Postgres(Path(directory))
        try:
            server.start()
            yield server
        finally:
            server.stop()
