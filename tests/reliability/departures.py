"""A worker with many long streams is asked to end.

Promised: it has left within two seconds, and its streams continue at the other worker with the bytes that
they would have had. What clients read is hashed as it comes: it would not fit in memory.
"""

from __future__ import annotations

import hashlib
import re
import signal
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from reliability.bystander import PATH
from reliability.report import Report, Scale
from reliability.site import PACE, Site, expect_all_free, starter
from support.metrics import total
from support.processes import wait_until
from support.raw_http import endpoint, post_bytes
from support.servers import MODEL_NAME, start_worker, wait_ready

#: After the signal.
LEFT_S = 2.0
#: A busy machine's time for everything else.
PATIENCE_S = 600.0
#: 10 ms a token: clients in Python keep up with 256 streams.
SLOWER = ("--step-us=10000", *PACE[1:])
#: What every answer has of its own.
OWN = re.compile(rb'"id":"[^"]*"|"created":\d+')


class Stream:
    """A client that reads one streamed answer and keeps its hash."""

    def __init__(self, address: str, max_tokens: int) -> None:
        asked = {
            "model": MODEL_NAME,
            "prompt": "Hi",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._sent = post_bytes(PATH, asked)
        self._endpoint = endpoint(address)
        self.events = 0
        #: Of all events; empty until the answer has ended as it should.
        self.digest = ""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def join(self) -> None:
        """Waits for the end."""
        self._thread.join()

    def _read(self) -> None:
        hashed = hashlib.sha256()
        waiting, last = b"", b""
        with closing(socket.create_connection(self._endpoint, PATIENCE_S)) as connection:
            connection.sendall(self._sent)
            while data := connection.recv(1 << 16):
                *lines, waiting = (waiting + data).split(b"\n")
                # Where chunks begin depends on the moment; events do not.
                events = [line for line in lines if line.startswith(b"data: ")]
                self.events += len(events)
                hashed.update(OWN.sub(b"", b"\n".join([*events, b""])))
                last = events[-1] if events else last
        if last == b"data: [DONE]":
            self.digest = hashed.hexdigest()


def run(scale: Scale, report: Report) -> None:
    """The worker that has all streams leaves, and then the one that has got them."""
    streams, before, tokens = scale.of(16, 256), scale.of(100, 10_000), scale.of(1_000, 16_000)
    pace = PACE if scale.is_short else SLOWER
    # Room for all of them at once, at any size of a block.
    room = (f"--max-batch-size={streams}", f"--num-blocks={streams * tokens}")
    options = (*pace, *room, f"--max-seq-len={2 * tokens}")
    with starter() as start, TemporaryDirectory() as directory:
        workers = [start_worker(start, *options) for _ in range(3)]
        listed = Path(directory) / "workers"
        listed.write_text(workers[0].address("grpc"))
        gateway = start("gateway", "--port=0", f"--worker-file={listed}")
        made = Site(gateway, workers, wait_ready(gateway))
        undisturbed = Stream(made.address, tokens)
        undisturbed.join()
        if not undisturbed.digest:
            raise AssertionError(f"an undisturbed answer ended after {undisturbed.events} events")
        readers = [Stream(made.address, tokens) for _ in range(streams)]
        for place, least in ((0, before), (1, before + before // 4)):
            _wait_for_events(readers, least)
            listed.write_text("\n".join(worker.address("grpc") for worker in workers[place : place + 2]))
            gateway.wait_until("the next worker is up", lambda: made.workers_up() == 2)
            _leave(made, place, report)
        for reader in readers:
            reader.join()
            report.attempt("streams that two workers left")
            report.expect("a stream has its bytes", reader.digest == undisturbed.digest, reader.events)
        moved = total(made.address, "inflight_gateway_resumes_total")
        report.expect("every stream moved twice", moved == 2 * streams, moved)
        made.workers = workers[2:]
        expect_all_free(report, made)


def _wait_for_events(readers: list[Stream], count: int) -> None:
    def have_enough() -> bool:
        return all(reader.events >= count for reader in readers)

    wait_until(f"every stream has {count} events", have_enough, PATIENCE_S)


def _leave(made: Site, place: int, report: Report) -> None:
    """The worker ends, in time."""
    begun = time.monotonic()
    made.workers[place].send(signal.SIGTERM)
    code = made.workers[place].wait()
    took = time.monotonic() - begun
    report.attempt("SIGTERM to a worker")
    report.expect("a worker ends cleanly", code in (0, -signal.SIGTERM, 128 + signal.SIGTERM), code)
    report.measure(f"worker {place} has left after", f"{took:.2f} s")
    report.expect(f"a worker leaves within {LEFT_S:g} s", took <= LEFT_S, f"{took:.2f} s")
    # One that is lost stays configured until the file says otherwise.
    made.gateway.wait_until("it is known to be gone", lambda: made.workers_up() == 1)
