"""HTTP/1 as no library writes it: smuggling shapes, ambiguous hosts, bad chunking, slow heads, noise.

Promised: each is refused with a 4xx or has its connection closed, never answered with a 5xx, and one request
never becomes two; a client that behaves notices nothing.
"""

from __future__ import annotations

import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from reliability.bystander import PATH, Bystander, body
from reliability.report import Report, Scale
from reliability.site import Site, expect_all_free, site
from support.http import Response
from support.raw_http import Incomplete, endpoint, post_bytes, split_responses

#: How long the gateway may keep a connection that it neither answers nor closes: longer than the time
#: for idle ones, and than refused bodies are read.
SILENT_S = 6.0
GET = b"GET /v1/models HTTP/1.1\r\n"
HOST = b"host: localhost\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = f"POST {PATH} HTTP/1.1\r\n".encode() + HOST + b"content-type: application/json\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


@dataclass(frozen=True)
class Case:
    """Bytes, and the statuses that may answer them; a closed connection is always an answer."""

    name: str
    sent: bytes
    allowed: tuple[int, ...] = (400,)
    #: Responses at most; a hidden request that is answered would be one more.
    responses: int = 1


def with_length(value: str, rest: bytes = HIDDEN) -> bytes:
    """A POST with this Content-Length."""
    return POST + f"content-length: {value}\r\n\r\n".encode() + rest


def coded(value: str) -> bytes:
    """A POST whose Transfer-Encoding is this, with a hidden request behind its last chunk."""
    return POST + f"transfer-encoding: {value}\r\n\r\n0\r\n\r\n".encode() + HIDDEN


def chunk(data: bytes) -> bytes:
    """A chunked POST with this body."""
    return POST + CHUNKED + b"\r\n" + data


LENGTHS = ("-1", "+5", "0x5", "5 5", "5, 6", "5;", "1e2", "99999999999999999999999", "", "५")
CODINGS = (
    "gzip, chunked",
    "chunked, identity",
    "xchunked",
    "chunked, chunked",
    "identity",
    "chunked;q=1",
    "\x0bchunked",
)
CHUNKS = {
    "no number": b"x\r\n",
    "a sign": b"-1\r\n",
    "a prefix": b"0x3\r\nabc\r\n0\r\n\r\n",
    "too large": b"f" * 17 + b"\r\n",
    "no end": b"3\r\nabcd\r\n0\r\n\r\n",
    "a bare line feed": b"3\nabc\n0\n\n",
    "a long extension": b"3;" + b"x" * 100_000 + b"\r\nabc\r\n0\r\n\r\n",
    "a huge trailer": b"0\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n",
}
CASES: tuple[Case, ...] = (
    *(Case(f"Content-Length `{value}`", with_length(value)) for value in LENGTHS),
    *(Case(f"Transfer-Encoding `{value!r}`", coded(value)) for value in CODINGS),
    *(Case(f"a chunk with {name}", chunk(data), (400, 413, 431)) for name, data in CHUNKS.items()),
    Case("two lengths", POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\n" + HIDDEN),
    # The length is ignored and the connection closed, so that what follows is nobody's request.
    Case("a length and chunks", POST + CHUNKED + b"content-length: 4\r\n\r\n0\r\n\r\n" + HIDDEN),
    Case("chunks and a length", POST + b"content-length: 4\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + HIDDEN),
    Case("two codings", POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n" + HIDDEN),
    Case("chunks in HTTP/1.0", chunk(b"0\r\n\r\n" + HIDDEN).replace(b"1.1", b"1.0", 1)),
    Case("a space before a colon", GET + HOST + b"x-a : b\r\n\r\n"),
    Case("a folded line", GET + HOST + b"x-a: b\r\n c\r\n\r\n"),
    Case("a zero byte in a header", GET + HOST + b"x-a: \0\r\n\r\n"),
    Case("a bare carriage return", GET + HOST + b"x-a: b\rGET /hidden HTTP/1.1\r\n\r\n"),
    Case("a header without a name", GET + HOST + b": b\r\n\r\n"),
    Case("no host", GET + b"\r\n"),
    Case("two hosts", GET + HOST + b"host: other\r\n\r\n"),
    Case("a host that is not the target's", b"GET http://a/v1/models HTTP/1.1\r\nhost: b\r\n\r\n"),
    Case("a host with a path", GET + b"host: a/b\r\n\r\n", (400, 403)),
    Case("a host of somebody else", GET + b"host: evil.example\r\n\r\n", (403,)),
    Case("no version", b"GET /v1/models\r\n\r\n"),
    Case("a version of the future", b"GET /v1/models HTTP/3.0\r\n" + HOST + b"\r\n", (400, 505)),
    Case(
        "a target of 1 MB", b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", (400, 414, 431)
    ),
    Case("10,000 headers", GET + HOST + b"x: y\r\n" * 10_000 + b"\r\n", (400, 431)),
    Case("a header of 1 MB", GET + HOST + b"x: " + b"y" * 1_000_000 + b"\r\n\r\n", (400, 431)),
    Case("CONNECT", b"CONNECT localhost:22 HTTP/1.1\r\n" + HOST + b"\r\n", (400, 403, 404, 405)),
    Case("an unknown method", b"HACK /v1/models HTTP/1.1\r\n" + HOST + b"\r\n", (405,)),
    Case("an upgrade", GET + HOST + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n", (200, 400)),
    Case("a promise of a huge body", with_length("9999999999", b""), (413,)),
    Case("an expectation", POST + b"expect: 200-maybe\r\ncontent-length: 2\r\n\r\n{}", (400, 417)),
    Case("a body that is not JSON", post_bytes(PATH, b"\xff\xfe\0"), (400,)),
    Case("deep JSON", post_bytes(PATH, b"[" * 1_000_000), (400,)),
    Case("TLS", bytes.fromhex("1603010200010001fc0303") + b"x" * 500, (400,)),
    Case("half a greeting of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM", (400,)),
)


def run(scale: Scale, report: Report) -> None:
    """All cases in one piece and byte by byte, noise, slow heads, pipelines."""
    with site(gateway_options=("--idle-timeout-s=3",)) as made:
        files = made.files()
        with Bystander(made.address, made.model, report), ThreadPoolExecutor(16) as pool:
            tries = [pool.submit(try_case, report, made, case) for case in CASES * scale.of(1, 5)]
            tries += [
                pool.submit(noise, report, made, random.Random(f"{scale.seed} {number}"))
                for number in range(scale.of(60, 3000))
            ]
            tries.append(pool.submit(pipeline, report, made, scale.of(200, 2000)))
            slow(report, made, scale.of(40, 200))
            for one in tries:
                one.result()
        expect_all_free(report, made)
        report.measure("files of the gateway", f"{files} before, {made.files()} after")


def talk(made: Site, sent: bytes, silent_s: float = SILENT_S) -> tuple[bytes, bool]:
    """What came back until the connection closed or was silent, and whether it closed."""
    received = bytearray()
    with socket.create_connection(endpoint(made.address), silent_s) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(sent)
        try:
            while data := connection.recv(65536):
                received += data
        except TimeoutError:
            return bytes(received), False
        except OSError:
            pass
    return bytes(received), True


def answers(received: bytes) -> list[Response]:
    """Responses, of which a reset may have taken the last."""
    try:
        return split_responses(received)
    except Incomplete:
        return []


def try_case(report: Report, made: Site, case: Case) -> None:
    """One case."""
    report.attempt("hostile requests of HTTP/1")
    received, closed = talk(made, case.sent)
    found = answers(received)
    statuses = [response.status for response in found]
    report.expect(f"{case.name}: one of {case.allowed}", set(statuses) <= {*case.allowed, 100}, statuses)
    report.expect(f"{case.name}: at most {case.responses} answered", len(found) <= case.responses, statuses)
    report.expect(f"{case.name}: answered or closed", bool(found) or closed, "silent")


def noise(report: Report, made: Site, rng: random.Random) -> None:
    """A good request with some bytes changed, or bytes alone."""
    sent = bytearray(post_bytes(PATH, body(made.model, "Hi", 2)))
    head = sent.index(b"\r\n\r\n")
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(head if rng.random() < 0.8 else len(sent))
        match rng.randrange(3):
            case 0:
                sent[place] = rng.randrange(256)
            case 1:
                del sent[place : place + rng.randint(1, 20)]
                head = min(head, len(sent))
            case _:
                sent[place:place] = rng.choice(
                    [b"\r\n", b"\n", b"\0", b":", b" ", b"host: x\r\n", b"\xff" * 9]
                )
        head = max(1, min(head, len(sent)))
    report.attempt("requests of HTTP/1 with changed bytes")
    # A request that lacks its end is closed when the connection has been idle; that is not waited for.
    received, _ = talk(made, bytes(sent), 0.5)
    for response in answers(received):
        report.expect("noise is never the server's fault", response.status < 500, (bytes(sent), response))


def pipeline(report: Report, made: Site, count: int) -> None:
    """Many requests in one write: as many answers, in order."""
    requests = (GET + HOST + b"\r\n") * (count - 1) + GET + HOST + b"connection: close\r\n\r\n"
    report.attempt("requests in one pipeline", count)
    received, _ = talk(made, requests, 10)
    statuses = [response.status for response in answers(received)]
    report.expect("a pipeline is answered in full", statuses == [200] * count, len(statuses))


def slow(report: Report, made: Site, count: int) -> None:
    """Heads of which a byte comes now and then: the connection ends with the time for idle ones."""
    with ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(endpoint(made.address), 10)) for _ in range(count)
        ]
        report.attempt("slow heads", count)
        begun = time.monotonic()
        open_ones = set(connections)
        while open_ones and time.monotonic() < begun + 10:
            for connection in list(open_ones):
                try:
                    connection.sendall(b"G" if connection in open_ones else b"")
                except OSError:
                    open_ones.discard(connection)
            time.sleep(0.3)
        report.expect("slow heads are given up", not open_ones, f"{len(open_ones)} open after 10 s")
        report.measure("slow heads given up after", f"{time.monotonic() - begun:.1f} s (limit 3 s)")
