"""A real S3 server of one test, which checks signatures: made, started, crashed and stopped.

SeaweedFS is one program, which a package of PyPI has. It is asked by its own ports what it keeps, so that
tests need no other client of S3. It keeps its ports over restarts, and reports nothing to anybody.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes import wait_until

PROGRAM = Path(sys.executable).parent / "weed"
KEY = "AKIDOFTESTS"
SECRET = "a+secret/of=the-object-store"
BUCKET = "inflight-test"
#: Each has a port for HTTP and one for gRPC.
SERVICES = ("master", "volume", "filer", "s3")
START_S = 60.0
#: It makes no bucket by itself, and elects itself at once after a crash.
OPTIONS = (
    "-filer",
    "-s3",
    "-s3.config=keys.json",
    "-s3.autoCreateBucket=false",
    "-s3.iam=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-master.telemetry=false",
    "-master.electionTimeout=1s",
    "-master.volumeSizeLimitMB=64",
    "-volume.max=20",
    "-volume.preStopSeconds=0",
    "-dir=data",
)


class ObjectStore:
    """A server on ports that it keeps, with an empty bucket."""

    def __init__(self, directory: Path, certificate: tuple[Path, Path] | None = None) -> None:
        self._directory = directory
        self._options: list[str] = []
        self._server: subprocess.Popen[bytes] | None = None
        with contextlib.ExitStack() as sockets:
            free = [sockets.enter_context(socket.socket()) for _ in range(2 * len(SERVICES) + 1)]
            for one in free:
                one.bind(("127.0.0.1", 0))
            ports = [int(one.getsockname()[1]) for one in free]
        self._http = dict(zip(SERVICES, ports, strict=False))
        self._grpc = dict(zip(SERVICES, ports[len(SERVICES) :], strict=False))
        self.tls_port = ports[-1]
        if certificate is not None:
            files = zip(("cert", "key"), certificate, strict=True)
            self._options = [f"-s3.{kind}.file={path}" for kind, path in files]
            self._options.append(f"-s3.port.https={self.tls_port}")
        credentials = [{"accessKey": KEY, "secretKey": SECRET}]
        identity = {"name": "gateways", "credentials": credentials, "actions": ["Read", "Write", "List"]}
        (directory / "keys.json").write_text(json.dumps({"identities": [identity]}))
        (directory / "data").mkdir()

    @property
    def port(self) -> int:
        return self._http["s3"]

    def environment(self, **changes: str) -> dict[str, str]:
        """What a gateway needs to know of it besides the bucket."""
        return {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.port}",
            "AWS_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_SESSION_TOKEN": "",
            **changes,
        }

    def start(self) -> None:
        """Starts it, and waits until it answers and has the bucket."""
        ports = [f"-{name}.port={port}" for name, port in self._http.items()]
        ports += [f"-{name}.port.grpc={port}" for name, port in self._grpc.items()]
        with (self._directory / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [
                    *(str(PROGRAM), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *ports),
                    *OPTIONS,
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                start_new_session=True,
            )
        wait_until("the object store has its bucket", self._has_bucket, START_S)
        wait_until("the object store answers", self._answers, START_S)

    def crash(self) -> None:
        """Ends it as a crash would: connections break."""
        if self._server is not None:
            self._server.send_signal(signal.SIGKILL)
            self._server.wait(30)
            self._server = None

    def objects(self) -> dict[str, int]:
        """The names of all objects, with their bytes."""
        return dict(self._files(f"/buckets/{BUCKET}/"))

    def _files(self, path: str) -> Iterator[tuple[str, int]]:
        try:
            entries = json.loads(self._read("filer", f"{path}?limit=10000"))["Entries"] or []
        except urllib.error.HTTPError as error:
            with error:
                # A directory goes with its last object.
                if error.code == 404:
                    return
            raise
        for entry in entries:
            # Directories have these modes of Go's.
            if entry["Mode"] & (1 << 31):
                yield from self._files(entry["FullPath"] + "/")
            else:
                yield entry["FullPath"].removeprefix(f"/buckets/{BUCKET}/"), int(entry["FileSize"])

    def _has_bucket(self) -> bool:
        self._alive()
        master = f"127.0.0.1:{self._http['master']}.{self._grpc['master']}"
        command = [str(PROGRAM), "shell", f"-master={master}"]
        for line in (f"s3.bucket.create -name {BUCKET}", "s3.bucket.list"):
            try:
                shell = subprocess.run(
                    command, input=line.encode(), capture_output=True, timeout=5, check=False
                )
            except subprocess.TimeoutExpired:
                return False
        return BUCKET.encode() in shell.stdout

    def _answers(self) -> bool:
        self._alive()
        try:
            self._read("s3", "/")
        except urllib.error.HTTPError as error:
            with error:
                return error.code == 403
        except OSError:
            return False
        return False

    def _alive(self) -> None:
        assert self._server is not None
        log = self._directory / "log"
        assert self._server.poll() is None, log.read_text(errors="replace")[-4000:]

    def _read(self, service: str, path: str) -> bytes:
        asked = urllib.request.Request(f"http://127.0.0.1:{self._http[service]}{path}")
        asked.add_header("accept", "application/json")
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return bytes(answer.read())


@contextmanager
def object_store(certificate: tuple[Path, Path] | None = None) -> Iterator[ObjectStore]:
    """A server that runs; with a certificate and its key, over TLS as well."""
    with tempfile.TemporaryDirectory() as directory:
        server = ObjectStore(Path(directory), certificate)
        try:
            server.start()
            yield server
        finally:
            server.crash()
