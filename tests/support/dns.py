"""A name server with one name, whose answers change and fail, and the way to a process that asks it.

It listens at port 53, which needs rights, and whoever is to ask it has another `/etc/resolv.conf`, which
needs a mount namespace. `MISSING` says what this machine does not let one do.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "workers.inflight.test"
#: Of the server: nobody else listens there, nor does another process of the tests.
ADDRESS = f"127.83.{os.getpid() // 256 % 256}.{os.getpid() % 256}"
#: Codes of answers (RFC 1035, 4.1.1).
SERVER_FAILURE, NAME_ERROR = 2, 3
_TYPE_A, _CLASS_IN = 1, 1
#: Seconds that an answer may be kept: none.
_KEPT_S = 0
#: How a lookup waits for an answer.
_RESOLVER = f"nameserver {ADDRESS}\noptions timeout:1 attempts:1\n"
_IN_ANOTHER_PLACE = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'


def launcher(directory: Path) -> list[str]:
    """The command that starts a process which asks this server."""
    path = directory / "resolv.conf"
    path.write_text(_RESOLVER)
    return ["unshare", "--mount", "--propagation", "private", "bash", "-c", _IN_ANOTHER_PLACE, str(path)]


def _missing() -> str | None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((ADDRESS, 53))
    except OSError as error:
        return f"nothing can listen at {ADDRESS}:53: {error}"
    command = ["unshare", "--mount", "--propagation", "private", "mount", "--bind", "/etc/hosts"]
    try:
        done = subprocess.run([*command, "/etc/resolv.conf"], capture_output=True, text=True)
    except OSError as error:
        return f"`unshare` cannot be run: {error}"
    return f"a mount namespace cannot be made: {done.stderr.strip()}" if done.returncode else None


#: Why a name server cannot run here; `None`: it can.
MISSING = _missing()


class NameServer:
    """What the server answers, and how it fails."""

    def __init__(self, *addresses: str) -> None:
        #: Those of the name.
        self.addresses = addresses
        #: The code of every answer in place of addresses, or `silent`, or `garbage`.
        self.fault: int | str | None = None
        #: Seconds before each answer.
        self.delay_s = 0.0

    def answer(self, asked: bytes) -> bytes | None:
        """The message that answers one; `None`: the server stays silent."""
        if self.fault == "silent":
            return None
        if self.fault == "garbage":
            return asked[:2] + b"\xff" * 40
        end = asked.index(b"\x00", 12) + 5
        wanted = int.from_bytes(asked[end - 4 : end - 2], "big")
        code = self.fault if isinstance(self.fault, int) else 0
        addresses = self.addresses if wanted == _TYPE_A and code == 0 else ()
        # An answer, with recursion; one question; so many addresses, each of the name at byte 12.
        head = asked[:2] + (0x8180 | code).to_bytes(2, "big") + b"\x00\x01"
        head += len(addresses).to_bytes(2, "big") + bytes(4)
        record = b"\xc0\x0c" + _TYPE_A.to_bytes(2, "big") + _CLASS_IN.to_bytes(2, "big")
        record += _KEPT_S.to_bytes(4, "big") + b"\x00\x04"
        return head + asked[12:end] + b"".join(record + socket.inet_aton(one) for one in addresses)


@contextmanager
def serving(names: NameServer) -> Iterator[None]:
    """The server runs."""
    ended = threading.Event()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind((ADDRESS, 53))
        listener.settimeout(0.1)

        def serve() -> None:
            while not ended.is_set():
                try:
                    asked, client = listener.recvfrom(512)
                except TimeoutError:
                    continue
                if ended.wait(names.delay_s):
                    return
                answer = names.answer(asked)
                if answer is not None:
                    listener.sendto(answer, client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
