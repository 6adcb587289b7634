"""Workers are killed, stopped and asked to end while two of them serve a load.

Promised: no answer is lost. What has begun continues at the other worker, and has the text that it would have
had.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter, defaultdict

from reliability.bystander import PROMPTS, Lost, body, streamed, whole
from reliability.pauses import pauses, report_pauses
from reliability.report import Report, Scale
from reliability.site import PACE, Site, expect_all_free, site, starter
from support.metrics import total
from support.servers import MODEL_NAME, Start, start_worker

CLIENTS = 8
#: 0.3 s an answer: long enough to be met in the middle.
TOKENS = 60
STOPPED_S = 3.0


class Load:
    """Clients that ask without a pause."""

    def __init__(self, address: str, report: Report) -> None:
        self._address = address
        self._report = report
        self._bodies = [body(MODEL_NAME, prompt, TOKENS) for prompt in PROMPTS]
        self._expected = [whole(address, asked) for asked in self._bodies]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        ask, kind = (streamed, "streams") if number % 2 else (whole, "whole answers")
        turn = number
        while not self._stop.is_set():
            turn += 1
            place = turn % len(self._bodies)
            self._report.attempt(kind)
            try:
                text = ask(self._address, self._bodies[place])
            except Lost as error:
                self._report.breaks(f"{kind}: {error}")
                continue
            self._report.expect("an answer is whole and right", text == self._expected[place], text)


def run(scale: Scale, report: Report) -> None:
    """Rounds of one signal each, to one of the two workers in turn."""
    signals = [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]
    rounds = signals * scale.rounds(1, 8)
    rng = random.Random(scale.seed)
    if not scale.is_short:
        rng.shuffle(rounds)
    paused: defaultdict[str, Counter[float]] = defaultdict(Counter)
    with starter() as start, site(2) as made:
        with Load(made.address, report):
            for number, what in enumerate(rounds):
                time.sleep(rng.uniform(0.1, 0.6))
                report.attempt(f"{what.name} to a worker")
                before = pauses(made.address)
                strike(what, number % 2, made, start, report)
                made.gateway.wait_until("both workers are up", lambda: made.workers_up() == 2)
                paused[what.name] += pauses(made.address) - before
        for name, counted in paused.items():
            report_pauses(report, f"pauses after {name}", counted)
        moved = total(made.address, "inflight_gateway_resumes_total")
        report.measure("answers that continued at the other worker", f"{moved:.0f}")
        expect_all_free(report, made)


def strike(what: signal.Signals, place: int, made: Site, start: Start, report: Report) -> None:
    """Sends the signal and brings a worker back."""
    worker = made.workers[place]
    worker.send(what)
    if what == signal.SIGSTOP:
        time.sleep(STOPPED_S)
        worker.send(signal.SIGCONT)
        return
    code = worker.wait()
    expected = {signal.SIGTERM: (0, -signal.SIGTERM, 128 + signal.SIGTERM), signal.SIGKILL: (-9,)}
    report.expect(f"exit status after {what.name}", code in expected[what], code)
    port = worker.address("grpc").rpartition(":")[2]
    made.workers[place] = start_worker(start, *PACE, f"--grpc-port={port}")
