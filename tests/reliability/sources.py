"""What says where workers are is gone, silent, flapping or wrong while two workers serve a load.

Promised: no answer is lost, and both workers stay. DNS and etcd are left out where they cannot run.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from reliability.kills import Load
from reliability.report import Report, Scale
from reliability.site import PACE, Site, expect_all_free, starter
from support import dns
from support.etcd import PROGRAM, Etcd
from support.kubernetes import ApiServer, serving
from support.processes import InflightProcess
from support.servers import Start, start_worker, wait_ready

#: Nobody listens there.
DEAD = "127.0.0.9:9"
#: Between two changes of a source that flaps.
FLAP_S = 0.15

Harm = Callable[[float], None]


class Source(ABC):
    """A source of the addresses of two workers, and the harms that can be done to it for so many seconds."""

    def __init__(self, workers: list[str], stack: ExitStack) -> None:
        self.workers = workers
        self.stack = stack

    #: Of the gateway.
    arguments: tuple[str, ...]
    #: What starts the gateway.
    launcher: tuple[str, ...] = ()
    #: Seconds that a harm lasts at least, so that the gateway asks meanwhile.
    least_s = 0.0
    #: Harms of the short form; `None`: all.
    short: tuple[str, ...] | None = None

    @abstractmethod
    def list(self, *workers: str) -> None:
        """From now on it lists these."""

    @abstractmethod
    def harms(self) -> dict[str, Harm]:
        """By name."""

    def flap(self, seconds: float) -> None:
        """It lists one of them, the other, none and both in turn."""
        one, other = self.workers
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for listed in [(one,), (other,), (), (one, other)]:
                self.list(*listed)
                time.sleep(FLAP_S)

    def lie(self, seconds: float) -> None:
        """It lists nothing but what is dead."""
        self.list(DEAD)
        time.sleep(seconds)
        self.list(*self.workers)


def _answering(server: ApiServer | dns.NameServer, fault: int | str) -> Harm:
    """All that it answers is this fault."""

    def harm(seconds: float) -> None:
        server.fault = fault
        time.sleep(seconds)
        server.fault = None

    return harm


class FileSource(Source):
    """A file that its writer does not replace but overwrites."""

    def __init__(self, workers: list[str], stack: ExitStack) -> None:
        super().__init__(workers, stack)
        self._path = Path(stack.enter_context(TemporaryDirectory())) / "workers"
        self.list(*workers)
        self.arguments = (f"--worker-file={self._path}",)

    def list(self, *workers: str) -> None:
        self._path.write_text("".join(f"{one}\n" for one in workers))

    def harms(self) -> dict[str, Harm]:
        # What a file lists in whole is somebody's word: it neither lies nor forgets.
        return {"gone": self._gone, "flapping": self._rewritten, "wrong": self._garbage, "empty": self._void}

    def _gone(self, seconds: float) -> None:
        self._path.unlink()
        time.sleep(seconds)
        self.list(*self.workers)

    def _rewritten(self, seconds: float) -> None:
        """Written byte by byte, again and again: a half of it is never taken."""
        text = "".join(f"{one}\n" for one in self.workers).encode()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with self._path.open("wb", buffering=0) as file:
                for byte in text:
                    file.write(bytes([byte]))
                    time.sleep(0.005)
            time.sleep(FLAP_S)

    def _garbage(self, seconds: float) -> None:
        self._path.write_bytes(b"\xff\x00 not an address\n")
        time.sleep(seconds)
        self.list(*self.workers)

    def _void(self, seconds: float) -> None:
        self._path.write_bytes(b"")
        time.sleep(seconds)
        self.list(*self.workers)


class ServiceSource(Source):
    """A Kubernetes Service, by a double of the API server."""

    def __init__(self, workers: list[str], stack: ExitStack) -> None:
        super().__init__(workers, stack)
        self._api = ApiServer()
        self.list(*workers)
        self._server = ExitStack()
        stack.callback(self._server.close)
        url = self._server.enter_context(serving(self._api))
        self._port = int(url.rpartition(":")[2])
        self.arguments = ("--worker-service=ml/llama", f"--kubernetes-api={url}")

    def list(self, *workers: str) -> None:
        self._api.delete()
        self._api.put(*workers)

    def harms(self) -> dict[str, Harm]:
        answers: dict[str, int | str] = {"silent": "silent", "500": 500, "401": 401}
        faults = {name: _answering(self._api, answer) for name, answer in answers.items()}
        return {"gone": self._gone, **faults, "flapping": self.flap, "wrong": self.lie}

    def _gone(self, seconds: float) -> None:
        self._server.close()
        time.sleep(seconds)
        self._server.enter_context(serving(self._api, self._port))


class EtcdSource(Source):
    """A real etcd."""

    _PREFIX = "inflight/workers/"

    def __init__(self, workers: list[str], stack: ExitStack) -> None:
        super().__init__(workers, stack)
        self._etcd = Etcd()
        stack.callback(self._etcd.close)
        self.list(*workers)
        self.arguments = (f"--worker-etcd=http://127.0.0.1:{self._etcd.port}/{self._PREFIX}",)

    def list(self, *workers: str) -> None:
        self._etcd.delete(self._PREFIX)
        for worker in workers:
            self._etcd.put(self._PREFIX + worker, worker)

    def harms(self) -> dict[str, Harm]:
        faults: dict[str, Harm] = {"gone": self._gone, "stopped": self._stopped}
        return {**faults, "flapping": self.flap, "wrong": self.lie, "garbage": self._garbage}

    def _gone(self, seconds: float) -> None:
        self._etcd.kill()
        time.sleep(seconds)
        self._etcd.start()

    def _stopped(self, seconds: float) -> None:
        self._etcd.stop()
        time.sleep(seconds)
        self._etcd.resume()

    def _garbage(self, seconds: float) -> None:
        self._etcd.delete(self._PREFIX)
        self._etcd.put(self._PREFIX + "a", "\x00 not an address")
        time.sleep(seconds)
        self.list(*self.workers)


class DnsSource(Source):
    """A name of a name server, which the gateway asks in place of the system's."""

    # It looks a name up each 5 s, and a test has two minutes.
    least_s = 6.0
    short = ("silent", "no such name", "wrong")

    def __init__(self, workers: list[str], stack: ExitStack) -> None:
        super().__init__(workers, stack)
        self._names = dns.NameServer()
        self.list(*workers)
        self._server = ExitStack()
        stack.callback(self._server.close)
        self._server.enter_context(dns.serving(self._names))
        self.launcher = tuple(dns.launcher(Path(stack.enter_context(TemporaryDirectory()))))
        port = workers[0].rpartition(":")[2]
        self.arguments = (f"--worker-dns={dns.NAME}:{port}",)

    def list(self, *workers: str) -> None:
        self._names.addresses = tuple(worker.rpartition(":")[0] for worker in workers)

    def harms(self) -> dict[str, Harm]:
        answers: dict[str, int | str] = {
            "silent": "silent",
            "garbage": "garbage",
            "no such name": dns.NAME_ERROR,
            "its own failure": dns.SERVER_FAILURE,
        }
        faults = {name: _answering(self._names, answer) for name, answer in answers.items()}
        others: dict[str, Harm] = {"empty": self._empty, "slow": self._slow}
        return {"gone": self._gone, **faults, **others, "flapping": self.flap, "wrong": self.lie}

    def _gone(self, seconds: float) -> None:
        self._server.close()
        time.sleep(seconds)
        self._server.enter_context(dns.serving(self._names))

    def _empty(self, seconds: float) -> None:
        self.list()
        time.sleep(seconds)
        self.list(*self.workers)

    def _slow(self, seconds: float) -> None:
        self._names.delay_s = 0.9
        time.sleep(seconds)
        self._names.delay_s = 0.0


def run(scale: Scale, report: Report) -> None:
    """Every harm to every source, each with a gateway of its own in front of the same workers."""
    kinds: list[type[Source]] = [FileSource, ServiceSource]
    kinds += [EtcdSource] if PROGRAM else []
    kinds += [DnsSource] if dns.MISSING is None else []
    seconds = scale.of(1, 10 * scale.times)
    with starter() as start, ExitStack() as stack:
        # At one port, because a name has none.
        workers = [start_worker(start, *PACE)]
        port = workers[0].address("grpc").rpartition(":")[2]
        workers.append(start_worker(start, *PACE, "--host=127.0.0.2", f"--grpc-port={port}"))
        addresses = [worker.address("grpc") for worker in workers]
        for kind in kinds:
            source = kind(addresses, stack)
            made = following(start, source, workers)
            with Load(made.address, report):
                harms = source.harms()
                for name in (scale.is_short and source.short) or harms:
                    harm = harms[name]
                    _harm(source, name, harm, max(seconds, source.least_s), made, report)
            expect_all_free(report, made)
            made.gateway.stop()


def following(start: Start, source: Source, workers: list[InflightProcess]) -> Site:
    """A gateway that follows the source, with both workers."""
    gateway = start("gateway", "--port=0", *source.arguments, launcher=source.launcher)
    made = Site(gateway, workers, wait_ready(gateway))
    gateway.wait_until("both workers are up", lambda: made.workers_up() == 2)
    return made


def _harm(source: Source, name: str, harm: Harm, seconds: float, made: Site, report: Report) -> None:
    what = f"{type(source).__name__.removesuffix('Source').lower()}: {name}"
    report.attempt(f"{what} ({seconds} s)")
    before = sum(report.tried[kind] for kind in ("streams", "whole answers"))
    harm(seconds)
    answers = sum(report.tried[kind] for kind in ("streams", "whole answers")) - before
    report.expect(f"{what}: both workers are up", made.workers_up() == 2, made.workers_up())
    report.measure(f"answers begun during {what}", f"{answers}")
