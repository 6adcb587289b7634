"""Clients that hold what others need, without leaving: memory, places, connections.

Promised: a client of its own connection is served meanwhile, with prompts of 200 kB too; health answers; the
gateway's memory stays bounded.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack

from reliability.bystander import PATH, Bystander, Lost, body, whole
from reliability.report import Report, Scale
from reliability.site import PACE, Site, expect_all_free, memory_mib, site
from support import http2
from support.http import get
from support.raw_http import endpoint

SLOW_BODIES = 17
SLOW_BODY_BYTES = 32 << 20
UNREAD_CONNECTIONS = 5
UNREAD_STREAMS = 1024
#: What the gateway takes at once.
CONNECTIONS = 64
#: Long prompts of the bystander's kind; the model has to take them.
PROMPT_BYTES = 200_000
WORKER = (*PACE, "--max-seq-len=400000", "--max-num-tokens=400000", "--num-blocks=65536")


def run(scale: Scale, report: Report) -> None:
    """Slow bodies, then unread streams, then connections that do nothing."""
    with site(worker_options=WORKER) as made:
        slow_bodies(scale, report, made)
        unread_streams(scale, report, made)
    with site(gateway_options=(f"--max-connections={CONNECTIONS}",)) as made:
        idle_connections(report, made)


def ask_long(report: Report, made: Site) -> None:
    """A prompt of 200 kB."""
    prompt = "ab " * (PROMPT_BYTES // 3)
    report.attempt("prompts of 200 kB meanwhile")
    try:
        whole(made.address, body(made.model, prompt, 2))
    except Lost as error:
        report.breaks(f"a prompt of 200 kB was not answered: {error}")


def slow_bodies(scale: Scale, report: Report, made: Site) -> None:
    """17 bodies of 32 MiB, of which a little comes now and then."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {SLOW_BODY_BYTES}\r\n\r\n"
    )
    with ExitStack() as stack, Bystander(made.address, made.model, report):
        slow = []
        for _ in range(SLOW_BODIES):
            connection = stack.enter_context(socket.create_connection(endpoint(made.address), 10))
            connection.sendall(head.encode())
            report.attempt("slow bodies of 32 MiB")
            slow.append(connection)
        ended = set()
        deadline = time.monotonic() + scale.of(2, 40)
        while time.monotonic() < deadline:
            for connection in slow:
                try:
                    connection.sendall(b" " * 65536)
                except OSError:
                    ended.add(connection)
            ask_long(report, made)
            time.sleep(0.2)
        for _ in ended:
            report.lose("slow bodies that the gateway gave up")
    expect_all_free(report, made)


def unread_streams(scale: Scale, report: Report, made: Site) -> None:
    """5 connections with as many streams as the gateway allows, none of which has a window."""
    content = json.dumps({**body(made.model, "Hi", 1), "stream": True}).encode()
    fields = http2.post_fields(PATH)
    before = memory_mib(made.gateway.pid)
    with ExitStack() as stack, Bystander(made.address, made.model, report):
        for _ in range(UNREAD_CONNECTIONS):
            connection = stack.enter_context(http2.Connection(made.address, window=0))
            # A connection's window of the server's size: some bodies of 80 bytes.
            for number in range(scale.of(UNREAD_STREAMS // 4, UNREAD_STREAMS)):
                if not connection.send(http2.request(2 * number + 1, fields, content)):
                    break
                report.attempt("streams without a window")
            threading.Thread(target=lambda one=connection: list(one.frames(5)), daemon=True).start()
        for _ in range(scale.of(1, 20)):
            ask_long(report, made)
            time.sleep(0.2)
        grown = memory_mib(made.gateway.pid) - before
        report.measure("the gateway's memory with unread streams", f"+{grown:.0f} MiB")
        report.expect("memory stays bounded", grown < 256, f"+{grown:.0f} MiB")
    expect_all_free(report, made)


def idle_connections(report: Report, made: Site) -> None:
    """As many connections as the gateway takes, then more: those that are idle for longest make room."""
    with ExitStack() as stack:

        def connect(number: int) -> None:
            connection = stack.enter_context(socket.create_connection(endpoint(made.address), 10))
            if number % 2:
                connection.sendall(http2.PREFACE + http2.settings())
            report.attempt("connections that do nothing")

        for number in range(CONNECTIONS):
            connect(number)
        # A connection is closed for another one only after a second: its request may be on the way.
        time.sleep(1.5)
        with Bystander(made.address, made.model, report):
            for number in range(2 * CONNECTIONS):
                connect(number)
                time.sleep(2 / CONNECTIONS)
                if number % 10 == 0:
                    live = get(made.address, "/health/live").status
                    report.expect("health answers meanwhile", live == 200, live)
    expect_all_free(report, made)
