"""A worker that misbehaves, next to an honest one with another model, behind one gateway.

Promised: each of its requests ends, in time, with an answer of at most `max_tokens` or with an error; its
texts are bounded; the gateway lives, does not grow, and the honest worker's clients notice nothing. When it
behaves again it is used again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from reliability.bystander import CUT, UNCLEAN, Bystander, Lost, body, streamed, whole
from reliability.report import Report, Scale
from reliability.site import PACE, Site, expect_all_free, memory_mib, starter
from support.servers import start_gateway, start_worker, wait_ready
from support.spoiling_worker import DESCRIBE, FETCH, STREAM, Abort, Spoil, SpoilingWorker, honest

HOSTILE = "hostile"
TOKENS = 12
#: The gateway's options below, two of its calls that the double leaves unanswered for 10 s, a busy machine.
PATIENCE_S = 30.0
GATEWAY = ("--first-token-timeout-s=2", "--request-timeout-s=4")
GROWTH_MIB = 300.0
#: An error's body, headers apart.
ERROR_BYTES = 8_000


class Step:
    """A step message as a dictionary of columns."""

    def __init__(self, message: bytes) -> None:
        self.sent = service_pb2.ModelStreamInferResponse.FromString(message)

    @property
    def names(self) -> list[str]:
        return [output.name for output in self.sent.infer_response.outputs]

    def raw(self, name: str) -> bytes:
        """A column's bytes."""
        return bytes(self.sent.infer_response.raw_output_contents[self.names.index(name)])

    def put(self, name: str, data: bytes, length: int | None = None) -> None:
        """Replaces a column; without `length` its shape stays as it was."""
        place = self.names.index(name)
        self.sent.infer_response.raw_output_contents[place] = data
        if length is not None:
            self.sent.infer_response.outputs[place].shape[:] = [length]

    def add(self, name: str, datatype: str, length: int, data: bytes) -> None:
        """Adds a column."""
        self.sent.infer_response.outputs.add(name=name, datatype=datatype, shape=[length])
        self.sent.infer_response.raw_output_contents.append(data)

    @property
    def rows(self) -> int:
        return len(self.raw("inflight_final"))

    def bytes(self) -> bytes:
        return bytes(self.sent.SerializeToString())


def step(change: Callable[[Step], None]) -> Spoil:
    """Changes the step messages that have rows."""

    def spoil(method: str, response: bytes) -> list[bytes]:
        if method != STREAM:
            return [response]
        made = Step(response)
        if "inflight_final" not in made.names or not made.rows:
            return [response]
        change(made)
        return [made.bytes()]

    return spoil


def of(method: str, change: Callable[[bytes], list[bytes]]) -> Spoil:
    """Changes the responses of one method."""
    return lambda called, response: change(response) if called == method else [response]


def too_many_tokens(made: Step) -> None:
    """10,000 tokens in the first row."""
    offsets = np.frombuffer(made.raw("inflight_token_offsets"), np.uint32).copy()
    offsets[1:] += 10_000
    made.put("inflight_token_offsets", offsets.tobytes())
    ids = np.concatenate([np.full(10_000, 65, np.int32), np.frombuffer(made.raw("output_ids"), np.int32)])
    made.put("output_ids", ids.tobytes(), len(ids))


def error_text(made: Step) -> None:
    """An error of 30 MB in the first row, which is final."""
    text = b"x" * 30_000_000
    made.add("inflight_error_rows", "UINT32", 1, bytes(4))
    made.add("inflight_error_codes", "INT32", 1, np.array([13], np.int32).tobytes())
    made.add("inflight_error_texts", "BYTES", 1, len(text).to_bytes(4, "little") + text)
    made.put("inflight_final", b"\1" * made.rows)


def unknown_handles(made: Step) -> None:
    """Rows of requests that nobody made."""
    made.put("inflight_handle", (np.uint64(2**63) + np.arange(made.rows, dtype=np.uint64)).tobytes())


def tokens_of_no_vocabulary(made: Step) -> None:
    """Ids that no tokenizer has."""
    ids = np.frombuffer(made.raw("output_ids"), np.int32)
    made.put("output_ids", np.full_like(ids, 2**31 - 1).tobytes())


def negative_tokens(made: Step) -> None:
    """Ids below zero."""
    ids = np.frombuffer(made.raw("output_ids"), np.int32)
    made.put("output_ids", np.full_like(ids, -7).tobytes())


def end_early(_: bytes) -> list[bytes]:
    """The stream ends with the first answer."""
    raise Abort("enough")


def broken_stream(_: bytes) -> list[bytes]:
    """The whole stream is declared broken."""
    return [bytes(service_pb2.ModelStreamInferResponse(error_message="no " * 1_000_000).SerializeToString())]


#: On the stream of requests.
ON_THE_STREAM: dict[str, Spoil] = {
    "each message twice": of(STREAM, lambda response: [response, response]),
    "too many tokens": step(too_many_tokens),
    "tokens that the vocabulary lacks": step(tokens_of_no_vocabulary),
    "negative tokens": step(negative_tokens),
    "rows of unknown requests": step(unknown_handles),
    "no row is final": step(lambda made: made.put("inflight_final", bytes(made.rows))),
    "all rows are final": step(lambda made: made.put("inflight_final", b"\1" * made.rows)),
    "an unknown finish reason": step(lambda made: made.put("inflight_finish_reason", b"\x4d" * made.rows)),
    "offsets that go backwards": step(
        lambda made: made.put("inflight_token_offsets", made.raw("inflight_token_offsets")[::-1])
    ),
    "a sequence that does not exist": step(
        lambda made: made.put("inflight_sequence_index", b"\x09\0\0\0" * made.rows)
    ),
    "a column that is too short": step(lambda made: made.put("inflight_handle", b"\0" * 7)),
    "an error of 30 MB": step(error_text),
    "nothing, for ever": of(STREAM, lambda _: []),
    "the end of the stream": of(STREAM, end_early),
    "a broken stream": of(STREAM, broken_stream),
    "a message of 70 MB": of(STREAM, lambda response: [response + b"\x7a" + bytes(70_000_000)]),
    "no protobuf": of(STREAM, lambda _: [b"\xff" * 100]),
    "an empty message": of(STREAM, lambda _: [b""]),
}
#: When a gateway connects.
AT_THE_START: dict[str, Spoil] = {
    "a description that is no protobuf": of(DESCRIBE, lambda _: [b"\xff" * 50]),
    "an empty description": of(DESCRIBE, lambda _: [b""]),
    "a name of 3 MB": of(DESCRIBE, lambda response: [response + b"\x0a\x80\x8d\xb7\x01" + b"x" * 3_000_000]),
    "another model's hash": of(DESCRIBE, lambda response: [response + b"\x1a\x40" + b"0" * 64]),
    "a context of no tokens": of(DESCRIBE, lambda response: [response + b"\x30\0"]),
    "no files": of(FETCH, lambda _: []),
    "files of zero bytes": of(FETCH, lambda response: [response[:20]]),
    "files without an end": of(FETCH, lambda response: [response] * 2000),
    "files by paths": of(FETCH, lambda _: [b"\x0a\x0b../../evil\x41\x12\x01x"]),
}


def run(scale: Scale, report: Report) -> None:
    """Each misbehavior in turn, then messages with bytes changed at random."""
    with starter() as start:
        kept = start_worker(start, *PACE)
        behind = start_worker(start, *PACE, f"--served-model-name={HOSTILE}")
        with SpoilingWorker(behind.address("grpc")) as hostile:
            gateway = start_gateway(start, [kept], f"--worker={hostile.address}", *GATEWAY)
            made = Site(gateway, [kept], wait_ready(gateway))
            gateway.wait_until("both workers are up", lambda: made.workers_up() == 2)
            before = memory_mib(gateway.pid)
            with Bystander(made.address, made.model, report):
                for name, spoil in ON_THE_STREAM.items():
                    hostile.spoil = spoil
                    ask(report, made, name)
                    recover(report, made, hostile, name)
                for number in range(scale.of(5, 400)):
                    hostile.spoil = noisy(random.Random(f"{scale.seed} {number}"))
                    ask(report, made, "bytes changed at random")
                    recover(report, made, hostile, "bytes changed at random")
                starts = random.Random(scale.seed).sample(list(AT_THE_START.items()), len(AT_THE_START))
                for name, spoil in starts[: scale.of(3, len(starts))]:
                    hostile.spoil = spoil
                    hostile.restart()
                    report.attempt("misbehaviors at a connection's start")
                    ask(report, made, name, 1)
                    time.sleep(scale.of(1, 5) * 0.3)
                    hostile.restart()
                    recover(report, made, hostile, name)
            grown = memory_mib(gateway.pid) - before
            report.measure("the gateway's memory", f"+{grown:.0f} MiB")
            report.expect("memory stays bounded", grown < GROWTH_MIB, f"+{grown:.0f} MiB")
            expect_all_free(report, made)


def noisy(rng: random.Random) -> Spoil:
    """Changes some bytes of the stream's messages."""

    def change(response: bytes) -> list[bytes]:
        if rng.random() < 0.5:
            return [response]
        sent = bytearray(response)
        for _ in range(rng.randint(1, 4)):
            sent[rng.randrange(len(sent))] = rng.randrange(256)
        return [bytes(sent)]

    return of(STREAM, change)


def ask(report: Report, made: Site, name: str, times: int = 2) -> None:
    """Whole and streamed requests for the hostile model, at once."""
    report.attempt("misbehaviors of a worker")
    with ThreadPoolExecutor(2 * times) as pool:
        for done in [pool.submit(one, report, made, name, ask) for ask in (whole, streamed) * times]:
            done.result()


def one(report: Report, made: Site, name: str, ask: Callable[[str, Any], str]) -> None:
    """One request, which must end in time."""
    report.attempt("requests for a worker that misbehaves")
    begun = time.monotonic()
    try:
        text = ask(made.address, body(HOSTILE, "Hi", TOKENS))
        # A token of the demo model is some characters at most.
        report.expect(f"{name}: at most max_tokens", len(text) <= 16 * TOKENS, len(text))
    except Lost as error:
        report.lose(f"requests for a worker that misbehaves: {error.how}")
        report.expect(f"{name}: errors are short", error.bytes < ERROR_BYTES, error.bytes)
        report.expect(f"{name}: ends as an answer or an error", error.how not in (CUT, UNCLEAN), error)
    took = time.monotonic() - begun
    report.expect(f"{name}: ends in time", took < PATIENCE_S, f"{took:.1f} s")


def recover(report: Report, made: Site, hostile: SpoilingWorker, name: str) -> None:
    """It behaves again, and is used again."""
    hostile.spoil = honest
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            whole(made.address, body(HOSTILE, "Hi", TOKENS))
            return
        except Lost as lost:
            if time.monotonic() > deadline:
                report.breaks(f"{name}: not used again after {PATIENCE_S:g} s: {lost}")
                hostile.restart()
                return
        time.sleep(0.1)
