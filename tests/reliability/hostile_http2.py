"""HTTP/2 floods and broken frames.

Promised: a connection that breaks the protocol is closed, floods do not grow the gateway's memory, and
a client on its own connection notices nothing.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator

from reliability.bystander import PATH, Bystander, body
from reliability.report import Report, Scale
from reliability.site import Site, expect_all_free, memory_mib, site
from support import http2
from support.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Connection,
    block,
    frame,
    get_fields,
    post_fields,
)

GET_BLOCK = block(*get_fields("/v1/models"))
CANCEL = struct.pack(">I", 8)
#: What all floods together may add to the gateway's memory.
GROWTH_MIB = 128.0


def rapid_reset(made: Site, count: int) -> Iterator[bytes]:
    """Streams that are opened and reset."""
    asked = json.dumps({**body(made.model, "Hi", 100), "stream": True}).encode()
    for number in range(count):
        stream = 2 * number + 1
        yield http2.request(stream, post_fields(PATH), asked) + frame(RST_STREAM, 0, stream, CANCEL)


def continuation_flood(made: Site, count: int) -> Iterator[bytes]:
    """A header block without an end."""
    yield frame(HEADERS, END_STREAM, 1, GET_BLOCK)
    piece = frame(CONTINUATION, 0, 1, block(("x-padding", "y" * 1000)))
    for _ in range(count):
        yield piece


def empty_continuations(made: Site, count: int) -> Iterator[bytes]:
    """The same, with nothing in it."""
    yield frame(HEADERS, END_STREAM, 1, GET_BLOCK)
    for _ in range(count):
        yield frame(CONTINUATION, 0, 1)


def ping_flood(made: Site, count: int) -> Iterator[bytes]:
    """PINGs whose answers nobody reads."""
    for number in range(count):
        yield frame(PING, 0, 0, struct.pack(">Q", number))


def settings_flood(made: Site, count: int) -> Iterator[bytes]:
    """SETTINGS whose acknowledgements nobody reads."""
    for number in range(count):
        yield http2.settings(window=number % 65536)


def empty_data(made: Site, count: int) -> Iterator[bytes]:
    """A body of empty frames."""
    yield frame(HEADERS, END_HEADERS, 1, block(*post_fields(PATH)))
    for _ in range(count):
        yield frame(DATA, 0, 1)


def priority_flood(made: Site, count: int) -> Iterator[bytes]:
    """Priorities of streams that do not exist."""
    for number in range(count):
        yield frame(PRIORITY, 0, 2 * number + 1, struct.pack(">IB", 0, 1))


def header_bomb(made: Site, count: int) -> Iterator[bytes]:
    """One entry of HPACK's table, referred to again and again."""
    # 0x40: a literal that goes into the table; 0xBE: the table's newest entry.
    value = b"y" * 4000
    literal = b"\x40\x03x-a" + b"\x7f" + bytes([(4000 - 127) % 128 | 128, (4000 - 127) // 128]) + value
    for number in range(count // 100 + 1):
        bomb = GET_BLOCK + literal + b"\xbe" * 8000
        yield frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, bomb)


def windows_of_zero(made: Site, count: int) -> Iterator[bytes]:
    """Streams whose answers have no window."""
    yield http2.settings(window=0)
    asked = json.dumps({**body(made.model, "Hi", 2), "stream": True}).encode()
    for number in range(min(count, 500)):
        yield http2.request(2 * number + 1, post_fields(PATH), asked)


FLOODS: tuple[Callable[[Site, int], Iterator[bytes]], ...] = (
    rapid_reset,
    continuation_flood,
    empty_continuations,
    ping_flood,
    settings_flood,
    empty_data,
    priority_flood,
    header_bomb,
    windows_of_zero,
)


def field(*pairs: tuple[str, str]) -> bytes:
    """A GET with more fields, whole."""
    return frame(HEADERS, END_HEADERS | END_STREAM, 1, block(*get_fields("/v1/models"), *pairs))


#: Broken frames: the stream is reset or refused, or the connection ends.
BROKEN: dict[str, bytes] = {
    "DATA on stream 0": frame(DATA, 0, 0, b"x"),
    "DATA on an idle stream": frame(DATA, 0, 5, b"x"),
    "HEADERS on stream 0": frame(HEADERS, END_HEADERS, 0, GET_BLOCK),
    "HEADERS on an even stream": frame(HEADERS, END_HEADERS | END_STREAM, 2, GET_BLOCK),
    "HEADERS that are not HPACK": frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff" * 20),
    "an entry that the table lacks": frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xfe"),
    "padding beyond the frame": frame(HEADERS, END_HEADERS | 0x8, 1, b"\xff" + GET_BLOCK),
    "CONTINUATION alone": frame(CONTINUATION, END_HEADERS, 1, GET_BLOCK),
    "a frame inside a header block": frame(HEADERS, 0, 1, GET_BLOCK) + frame(PING, 0, 0, bytes(8)),
    "a frame of 1 MB": frame(DATA, 0, 1, bytes(1_000_000)),
    "SETTINGS of 5 bytes": frame(SETTINGS, 0, 0, bytes(5)),
    "a window of 2^32 - 1": http2.settings(window=2**32 - 1),
    "PING of 7 bytes": frame(PING, 0, 0, bytes(7)),
    "PUSH_PROMISE": frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + GET_BLOCK),
    "WINDOW_UPDATE of 0": frame(WINDOW_UPDATE, 0, 0, bytes(4)),
    "a window that overflows": frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)) * 2,
    "RST_STREAM of an idle stream": frame(RST_STREAM, 0, 9, CANCEL),
    "an unknown frame": frame(0xEE, 0xFF, 1, b"x" * 100) + frame(GOAWAY, 0, 0, bytes(8)),
    "a wrong length": frame(HEADERS, END_HEADERS, 1, block(*post_fields(PATH), ("content-length", "9")))
    + frame(DATA, END_STREAM, 1, b"{}"),
    "a name in capitals": field(("X-A", "b")),
    "a header of connections": field(("connection", "close")),
    "a coding": field(("transfer-encoding", "chunked")),
    "two paths": field((":path", "/other")),
    "no path": frame(HEADERS, END_HEADERS | END_STREAM, 1, block((":method", "GET"), (":scheme", "http"))),
    "a host that is not the authority's": field(("host", "other")),
    "a zero byte in a value": field(("x-a", "\0")),
}


def run(scale: Scale, report: Report) -> None:
    """Floods, broken frames, noise."""
    with site(gateway_options=("--idle-timeout-s=3", "--slow-client-s=5")) as made:
        with Bystander(made.address, made.model, report):
            before = memory_mib(made.gateway.pid)
            for flood in FLOODS:
                pour(report, made, flood, scale.of(2_000, 50_000))
            grown = memory_mib(made.gateway.pid) - before
            report.measure("the gateway's memory after floods", f"+{grown:.0f} MiB")
            report.expect("floods leave no memory", grown < GROWTH_MIB, f"+{grown:.0f} MiB")
            for name, data in BROKEN.items():
                try_broken(report, made, name, data)
            for number in range(scale.of(50, 2000)):
                noise(report, made, random.Random(f"{scale.seed} {number}"))
        expect_all_free(report, made)


def pour(report: Report, made: Site, flood: Callable[[Site, int], Iterator[bytes]], count: int) -> None:
    """Writes a flood until its end or the connection's."""
    name = flood.__name__.replace("_", " ")
    with Connection(made.address) as connection:
        connection.socket.settimeout(2)
        poured = 0
        batch = b""
        for piece in flood(made, count):
            poured += 1
            batch += piece
            if len(batch) > 16_000:
                if not connection.send(batch):
                    break
                batch = b""
        connection.send(batch)
        report.attempt(f"frames of a {name}", poured)
        if connection.is_closed:
            report.lose(f"connections of a {name}")


def try_broken(report: Report, made: Site, name: str, data: bytes) -> None:
    """Sends broken frames; a request on the stream must not be answered with 200 or 5xx."""
    report.attempt("broken frames of HTTP/2")
    with Connection(made.address) as connection:
        connection.send(data)
        for found in connection.frames(0.3):
            if found.kind == HEADERS:
                # `:status` of 200 is entry 8 of HPACK's table, of 500 entry 14.
                first = found.payload[:1]
                report.expect(f"{name}: refused", first not in (b"\x88", b"\x8e"), found)
            if found.kind in (RST_STREAM, GOAWAY):
                return


def noise(report: Report, made: Site, rng: random.Random) -> None:
    """A good request with bytes changed, then frames of bytes alone."""
    sent = bytearray(http2.request(1, get_fields("/v1/models")))
    for _ in range(rng.randint(1, 4)):
        sent[rng.randrange(len(sent))] = rng.randrange(256)
    for _ in range(rng.randint(0, 5)):
        kind, flags, stream = rng.randrange(11), rng.randrange(256), rng.randrange(4)
        sent += frame(kind, flags, stream, rng.randbytes(rng.randrange(40)))
    report.attempt("connections of HTTP/2 with changed bytes")
    with Connection(made.address) as connection:
        connection.send(bytes(sent))
        for found in connection.frames(0.05):
            if found.kind == HEADERS:
                report.expect("noise is never the server's fault", found.payload[:1] != b"\x8e", bytes(sent))
