"""Connections are cut at random bytes: those of clients, then the one between the gateway and a worker.

Promised: whoever is cut can tell; what has a clean end is whole and right. With a second worker, no answer is
lost with a worker's connection.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from reliability.bystander import CUT, PROMPTS, Bystander, Lost, body, streamed, whole
from reliability.report import Report, Scale
from reliability.site import PACE, Site, expect_all_free, site, starter
from support.cutting import CuttingProxy
from support.servers import start_gateway, start_worker, wait_ready

CLIENTS = 8
TOKENS = 20
#: What such a request and its streamed answer take, roughly.
REQUEST_BYTES = 400
ANSWER_BYTES = 6000
#: gRPC's greeting, the model's files on the first connection, and some answers.
WORKER_SENT_BYTES = 8_000
WORKER_RECEIVED_BYTES = 60_000


def run(scale: Scale, report: Report) -> None:
    """Both kinds of connections, one after the other."""
    cut_clients(scale, report)
    cut_workers(scale, report)


def each(count: int, one: Callable[[int], None]) -> None:
    """Calls `one` with each number up to `count`, from several threads."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(one, number) for number in range(count)]:
            done.result()


def cut_clients(scale: Scale, report: Report) -> None:
    """A proxy in front of the gateway."""
    with site() as made:
        bodies = [body(made.model, prompt, TOKENS) for prompt in PROMPTS]
        expected = [whole(made.address, asked) for asked in bodies]

        with (
            Bystander(made.address, made.model, report),
            CuttingProxy(made.address, scale.seed, REQUEST_BYTES, ANSWER_BYTES) as proxy,
        ):

            def one(number: int) -> None:
                ask = streamed if number % 2 else whole
                place = number % len(bodies)
                report.attempt("answers over a client's connection that may be cut")
                try:
                    text = ask(proxy.address, bodies[place])
                except Lost as error:
                    report.expect("a cut client can tell", error.how == CUT, error)
                    report.lose("answers whose connection was cut; the client could tell")
                    return
                report.expect("a clean end is a whole answer", text == expected[place], text)

            each(scale.of(60, 3000), one)
            report.attempt("cuts of clients' connections", proxy.done)
            report.expect("connections were cut", proxy.done > 0)
        expect_all_free(report, made)


def cut_workers(scale: Scale, report: Report) -> None:
    """A proxy in front of one of two workers."""
    with starter() as start:
        workers = [start_worker(start, *PACE) for _ in range(2)]
        address = workers[0].address("grpc")
        with CuttingProxy(address, scale.seed, WORKER_SENT_BYTES, WORKER_RECEIVED_BYTES) as proxy:
            proxy.is_cutting = False
            gateway = start_gateway(start, workers[1:], f"--worker={proxy.address}")
            made = Site(gateway, workers, wait_ready(gateway))
            gateway.wait_until("both workers are up", lambda: made.workers_up() == 2)
            bodies = [body(made.model, prompt, TOKENS) for prompt in PROMPTS]
            expected = [whole(made.address, asked) for asked in bodies]
            proxy.is_cutting = True

            def one(number: int) -> None:
                ask, kind = (streamed, "streams") if number % 2 else (whole, "whole answers")
                place = number % len(bodies)
                report.attempt(f"{kind} while a worker's connection is cut")
                try:
                    text = ask(made.address, bodies[place])
                except Lost as error:
                    report.breaks(f"{kind}: {error}")
                    return
                report.expect("a clean end is a whole answer", text == expected[place], text)

            each(scale.of(160, 8000), one)
            report.attempt("cuts of the connection to a worker", proxy.done)
            report.expect("connections to the worker were cut", proxy.done > 0)
            proxy.is_cutting = False
            gateway.wait_until("both workers are up again", lambda: made.workers_up() == 2)
            expect_all_free(report, made)
