"""Answers of six kinds are disturbed on every surface while they are generated: the connection to their
worker is cut at random bytes, the worker is killed, or it is stopped.

With workers that do all, and with prompts and what follows them apart.

Promised, while one worker lives: the client reads the bytes and the usage of an undisturbed answer.
"""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from contextlib import ExitStack, suppress

from reliability.pauses import pauses, report_pauses
from reliability.questions import Addresses, asks
from reliability.report import Report, Scale
from reliability.site import Site, expect_all_free, starter
from support.cutting import CuttingProxy
from support.metrics import total
from support.processes import InflightProcess, WaitedTooLong, wait_until
from support.servers import MODEL_NAME, Start, wait_ready

#: A connection to a worker is cut after up to so many bytes to it or from it.
MOST_SENT, MOST_RECEIVED = 10_000, 60_000
#: Between two disturbances, so that three in a row seldom meet one request before its first token.
BETWEEN_S = (0.6, 1.4)
STOPPED_S = 3.0
#: A connection is cut when something comes through it.
CUT_S = 2.0
#: Of so many disturbances one is a kill and one a stop; a worker takes seconds to come back.
KILLED, STOPPED, OF = 7, 15, 16
#: A gateway's.
PORTS = ("--port=0", "--grpc-port=0")


class Load:
    """Clients that ask one question after another and compare the answers with the undisturbed ones."""

    def __init__(
        self,
        gateway: Addresses,
        expected: dict[str, bytes],
        report: Report,
        clients: int,
        *,
        has_caches: bool = False,
    ) -> None:
        self._gateway = gateway
        self._has_caches = has_caches
        self._expected = expected
        self._report = report
        self._stop = threading.Event()
        every = len(expected)
        turns = range(0, every * clients, every)
        self._threads = [threading.Thread(target=self._run, args=(turn // clients,)) for turn in turns]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, turn: int) -> None:
        every = asks()
        while not self._stop.is_set():
            turn += 1
            asked = every[turn % len(every)]
            found = asked.ask(self._gateway)
            self._report.attempt("answers")
            expected = self._expected[asked.name]
            if self._has_caches:
                expected, found = map(without_cached_tokens, (expected, found))
            if found != expected:
                self._report.breaks(f"{asked.name}: {difference(expected, found)}")


def without_cached_tokens(answer: bytes) -> bytes:
    """An answer without what a cache happened to have."""
    answer = re.sub(rb'"(cached_tokens|cache_read_input_tokens)":\d+', rb'"\1":0', answer)
    # Anthropic's count is of the others.
    return re.sub(rb'"input_tokens":\d+,"cache_creation', b'"input_tokens":0,"cache_creation', answer)


def difference(expected: bytes, found: bytes) -> str:
    """Where two answers part."""
    pairs = enumerate(zip(expected, found, strict=False))
    place = next((at for at, pair in pairs if len(set(pair)) > 1), -1)
    part = slice(max(place - 60, 0), place + 80)
    return f"at byte {place} of {len(expected)}: {expected[part]!r} became {found[part]!r}"


def worker(start: Start, phases: str = "both", port: str = "0") -> InflightProcess:
    """A worker of the embedded model, which computes."""
    apart = (
        # Otherwise usage says what the cache happened to have.
        ("--executor-option=enable_kv_cache_reuse=false",)
        if phases == "both"
        else ("--executor-option=cache_transceiver_backend=default",)
    )
    return start(
        "worker",
        f"--served-model-name={MODEL_NAME}",
        "--executor=reference",
        f"--grpc-port={port}",
        "--metrics-port=0",
        "--http-port=0",
        # Two workers' load at one of them is slow, and no reason to refuse anybody.
        "--max-queue-wait-s=60",
        "--executor-option=max_queue_size=1024",
        "--executor-option=batch_invariant=true",
        "--executor-option=backend=numpy",
        f"--phases={phases}",
        *apart,
    )


def resumes(address: str) -> int:
    """How often an answer continued elsewhere."""
    return int(total(address, "inflight_gateway_resumes_total"))


def hand_overs(address: str) -> int:
    """How often a worker continued after the context of another."""
    return int(total(address, "inflight_gateway_hand_over_seconds_count"))


def run(scale: Scale, report: Report) -> None:
    """Cuts, kills and stops in turn, until enough answers were disturbed."""
    disturb_all(("both", "both"), scale.rounds(60, 10_000), scale, report)


def run_apart(scale: Scale, report: Report) -> None:
    """The same where prompts and what follows them are computed by different workers."""
    disturb_all(("context", "generation") * 2, scale.rounds(15, 10_000), scale, report)


def disturb_all(phases: tuple[str, ...], wanted: int, scale: Scale, report: Report) -> None:
    """Disturbs workers of these phases, until so many answers were."""
    rng = random.Random(scale.seed)
    is_apart = "context" in phases
    split = ("--disaggregate=always",) if is_apart else ()
    with starter() as start:
        # One that does all says what the others should.
        whole = worker(start)
        gateway = start("gateway", *PORTS, f"--worker={whole.address('grpc')}")
        undisturbed = Addresses(wait_ready(gateway), gateway.address("grpc"))
        expected = {asked.name: asked.ask(undisturbed) for asked in asks()}
        for name, found in expected.items():
            report.expect("an undisturbed answer", not found.startswith(b"("), (name, found[:300]))
        gateway.stop()
        whole.stop()
        workers = [worker(start, one) for one in phases]
        proxies = [
            CuttingProxy(one.address("grpc"), rng.randrange(1 << 30), MOST_SENT, MOST_RECEIVED)
            for one in workers
        ]
        with ExitStack() as stack:
            for proxy in proxies:
                stack.enter_context(proxy).is_cutting = False
            options = [f"--worker={proxy.address}" for proxy in proxies]
            gateway = start("gateway", *PORTS, "--worker-silence-s=1", *split, *options)
            made = Site(gateway, workers, wait_ready(gateway))
            begun = time.monotonic()
            addresses = Addresses(made.address, gateway.address("grpc"))
            with Load(addresses, expected, report, scale.of(8, 32), has_caches=is_apart):
                turn = 0
                while resumes(made.address) < wanted and not report.broken:
                    gateway.wait_until("all workers are up", lambda: made.workers_up() == len(phases))
                    time.sleep(rng.uniform(*BETWEEN_S))
                    disturb(turn, phases, made, proxies, start, report)
                    turn += 1
            if is_apart:
                report.attempt("hand-overs", hand_overs(made.address))
            measure(made, report, time.monotonic() - begun)
            expect_all_free(report, made)


def disturb(
    turn: int,
    phases: tuple[str, ...],
    made: Site,
    proxies: list[CuttingProxy],
    start: Start,
    report: Report,
) -> None:
    """Kills or stops one worker, or cuts its connection; the others live."""
    place, kind = turn % len(phases), turn // 2 % OF
    one = made.workers[place]
    if kind == KILLED:
        report.attempt("SIGKILL to a worker")
        one.send(signal.SIGKILL)
        one.wait()
        port = one.address("grpc").rpartition(":")[2]
        made.workers[place] = worker(start, phases[place], port)
    elif kind == STOPPED:
        report.attempt("SIGSTOP to a worker")
        one.send(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        one.send(signal.SIGCONT)
    else:
        report.attempt("cut connections")
        proxy = proxies[place]
        before, proxy.is_cutting = proxy.done, True
        with suppress(WaitedTooLong):
            wait_until("a connection is cut", lambda: proxy.done > before, CUT_S)
        proxy.is_cutting = False


def measure(made: Site, report: Report, seconds: float) -> None:
    """What it took."""
    report.attempt("disturbances of an answer", resumes(made.address))
    failed = total(made.address, "inflight_gateway_resumes_failed_total")
    report.expect("no answer ends with its worker", failed == 0, failed)
    report_pauses(report, "pauses", pauses(made.address))
    report.measure("seconds", f"{seconds:.0f}")
