"""Clients leave in many ways.

Promised: afterwards every place, slot and block is free, and no file is left open.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from reliability.bystander import PATH, Bystander, body, whole
from reliability.report import Report, Scale
from reliability.site import Site, expect_all_free, site
from support import http2
from support.processes import WaitedTooLong, wait_until
from support.raw_http import endpoint, post_bytes

#: All of the gateway's places.
PLACES = 64
#: Far more than anyone stays for.
LONG = 1500
THREADS = 16


def asked(made: Site, streams: bool) -> bytes:
    """A long request."""
    return post_bytes(PATH, {**body(made.model, "Once", LONG), "stream": streams})


def connect(made: Site) -> socket.socket:
    return socket.create_connection(endpoint(made.address), 10)


def reset(connection: socket.socket) -> None:
    """Closes with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def before_a_byte(made: Site) -> None:
    connect(made).close()


def in_the_head(made: Site) -> None:
    with connect(made) as connection:
        connection.sendall(asked(made, True)[:40])


def in_the_body(made: Site) -> None:
    with connect(made) as connection:
        connection.sendall(asked(made, True)[:-10])


def at_once(made: Site) -> None:
    with connect(made) as connection:
        connection.sendall(asked(made, False))


def with_a_reset(made: Site) -> None:
    connection = connect(made)
    connection.sendall(asked(made, True))
    reset(connection)


def after_a_byte(made: Site) -> None:
    with connect(made) as connection:
        connection.sendall(asked(made, True))
        connection.recv(1)


def in_the_middle(made: Site) -> None:
    with connect(made) as connection:
        connection.sendall(asked(made, True))
        for _ in range(10):
            connection.recv(4096)


def in_the_middle_with_a_reset(made: Site) -> None:
    connection = connect(made)
    connection.sendall(asked(made, True))
    for _ in range(10):
        connection.recv(4096)
    reset(connection)


def while_a_whole_answer_is_made(made: Site) -> None:
    with connect(made) as connection:
        connection.sendall(asked(made, False))
        time.sleep(0.1)


def after_its_own_half(made: Site) -> None:
    with connect(made) as connection:
        connection.sendall(asked(made, True))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


def with_several_requests(made: Site) -> None:
    with connect(made) as connection:
        kept = asked(made, False).replace(b"connection: close\r\n", b"")
        connection.sendall(kept * 3)
        time.sleep(0.05)


def http2_request(made: Site) -> bytes:
    content = json.dumps({**body(made.model, "Once", LONG), "stream": True}).encode()
    return http2.request(1, http2.post_fields(PATH), content)


def one_http2_stream(made: Site) -> None:
    with http2.Connection(made.address) as connection:
        connection.send(http2_request(made))
        connection.until(http2.DATA, 1)
        connection.send(http2.frame(http2.RST_STREAM, 0, 1, struct.pack(">I", 8)))
        # The connection stays for a while.
        time.sleep(0.05)


def an_http2_connection(made: Site) -> None:
    with http2.Connection(made.address) as connection:
        connection.send(http2_request(made))
        connection.until(http2.HEADERS, 1)


def an_http2_connection_with_a_goaway(made: Site) -> None:
    with http2.Connection(made.address) as connection:
        connection.send(http2_request(made))
        connection.until(http2.DATA, 1)
        connection.send(http2.frame(http2.GOAWAY, 0, 0, bytes(8)))


WAYS: tuple[Callable[[Site], None], ...] = (
    before_a_byte,
    in_the_head,
    in_the_body,
    at_once,
    with_a_reset,
    after_a_byte,
    in_the_middle,
    in_the_middle_with_a_reset,
    while_a_whole_answer_is_made,
    after_its_own_half,
    with_several_requests,
    one_http2_stream,
    an_http2_connection,
    an_http2_connection_with_a_goaway,
)


def run(scale: Scale, report: Report) -> None:
    """Every way, many times, from several threads; then asks for all places at once."""
    with site(gateway_options=(f"--max-concurrent-requests={PLACES}",)) as made:
        whole(made.address, body(made.model, "Hi"))
        files = made.files()
        with Bystander(made.address, made.model, report), ThreadPoolExecutor(THREADS) as pool:

            def leave(way: Callable[[Site], None]) -> None:
                # Whoever leaves does not mind if the gateway was first.
                with suppress(OSError):
                    way(made)
                report.attempt(f"clients leaving {way.__name__.replace('_', ' ')}")

            for done in [pool.submit(leave, way) for way in WAYS * scale.of(4, 150)]:
                done.result()
        expect_all_free(report, made)
        try:
            # Connections that are kept alive are the gateway's to keep, and none is from here.
            wait_until("files are closed", lambda: made.files() <= files + 2)
        except WaitedTooLong:
            report.breaks(f"{made.files()} files are open, {files} before")
        expect_every_place(report, made)


def expect_every_place(report: Report, made: Site) -> None:
    """As many requests at once as there are places are all answered."""
    with ThreadPoolExecutor(PLACES) as pool:
        answers = [pool.submit(whole, made.address, body(made.model, "Hi", 200)) for _ in range(PLACES)]
        for answer in answers:
            error = answer.exception()
            report.expect("every place is free again", error is None, error)
            report.attempt("requests for every place")
