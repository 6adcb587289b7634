"""A real etcd of one member, where there is one: `INFLIGHT_TEST_ETCD` names the program, or it is on PATH."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack, closing
from typing import Any

from support.processes import wait_until

PROGRAM = os.environ.get("INFLIGHT_TEST_ETCD") or shutil.which("etcd")


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Etcd:
    """A server that can be killed and started again with its data, at the same port."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="etcd-"))
        self.port = _free_port()
        self.start()

    def start(self) -> None:
        """Starts it and waits until it answers."""
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{_free_port()}"
        self._process = subprocess.Popen(
            [
                str(PROGRAM),
                f"--data-dir={self._directory}/data",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until("etcd answers", self._answers)

    def kill(self) -> None:
        """Ends it as a machine does that is gone."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """It has no CPU time from now on."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It has again."""
        self._process.send_signal(signal.SIGCONT)

    def put(self, key: str, value: str) -> None:
        """Sets a key."""
        self._call("put", {"key": _encoded(key), "value": _encoded(value)})

    def delete(self, prefix: str) -> None:
        """Deletes all keys that begin like this."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        self._call("deleterange", {"key": _encoded(prefix), "range_end": _encoded(end)})

    def close(self) -> None:
        """Ends it and removes its data."""
        self.kill()
        self._stack.close()

    def _answers(self) -> bool:
        try:
            self._call("range", {"key": _encoded("none")})
        except OSError:
            return False
        return True

    def _call(self, name: str, body: dict[str, Any]) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request("POST", f"/v3/kv/{name}", json.dumps(body))
            response = connection.getresponse()
            answer = response.read()
            if response.status != http.client.OK:
                raise OSError(f"etcd answered {response.status}: {answer!r}")


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
