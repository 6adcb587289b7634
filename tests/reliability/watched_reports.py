"""Events of watched servers that are lost, doubled or false, as ZeroMQ brings them to a gateway: whether it
names each one within 2 s, or knows the truth in spite of it.

With a port for the past (`replay`) most faults are mended; without one, they are named.
"""

from __future__ import annotations

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from reliability.report import Report, Scale
from reliability.reports import Outcomes
from reliability.site import starter
from support.engine_server import EngineServer, Publisher, stored
from support.http import get
from support.processes import PATIENCE_S, InflightProcess, wait_until

SOON_S = 2.0
#: Blocks of a batch.
SOME = 2


@dataclass
class Watching:
    """A gateway that watches one server, and what this has published."""

    server: EngineServer
    publisher: Publisher
    gateway: InflightProcess
    address: str
    #: The number of the next block, and those that are held by now.
    next: int = 1
    held: int = 0

    def batch(self) -> dict[str, object]:
        """New blocks of a new prompt."""
        event = stored(self.next, SOME)
        # No two batches have a prompt in common.
        event["token_ids"] = [self.next, *event["token_ids"][1:]]
        self.next += SOME
        self.held += SOME
        return event

    def reason(self) -> str:
        (worker,) = get(self.address, "/health/ready").json()["workers"]
        return str(worker.get("cache", "")) if worker.get("ready") else "not ready"

    def named(self) -> int | None:
        """Blocks that the gateway knows, as it logged last."""
        found = re.findall(r"cache events taken.* named=(\d+)", self.gateway.log)
        return int(found[-1]) if found else None

    def settle(self) -> None:
        """Publishes that everything is gone, and waits until that is known and believed."""

        def is_settled() -> bool:
            if self.reason():
                return False
            self.held = 0
            self.publisher.publish({"type": "AllBlocksCleared"})
            self.publisher.publish(self.batch())
            time.sleep(0.05)
            # What a fault has left behind may show only now.
            return self.named() == SOME and not self.reason()

        wait_until("it is believed", is_settled, PATIENCE_S)


def dropped(one: Watching) -> None:
    """A batch does not arrive."""
    one.publisher.publish(one.batch(), is_lost=True)
    one.publisher.publish(one.batch())


def reordered(one: Watching) -> None:
    """A batch arrives after its successor."""
    number = one.publisher.number
    one.publisher.publish(one.batch(), is_lost=True)
    one.publisher.publish(one.batch())
    one.publisher.send(number)


def doubled(one: Watching) -> None:
    """A batch arrives twice."""
    number = one.publisher.number
    one.publisher.publish(one.batch())
    one.publisher.send(number)


def garbled(one: Watching) -> None:
    """A batch is not MessagePack."""
    one.publisher.publish(payload=b"\xc1\x00")


def misnumbered(one: Watching) -> None:
    """A batch has a number of three bytes."""
    one.publisher.send_frames(b"abc", b"\x90")


def impossible(one: Watching) -> None:
    """An event whose blocks and tokens do not fit."""
    event = one.batch()
    one.held -= SOME
    event["token_ids"] = [1, 2, 3]
    one.publisher.publish(event)


def ended(one: Watching) -> None:
    """The connection ends, and what is published meanwhile is lost."""
    one.publisher.close()


KINDS = {f.__name__: f for f in (dropped, reordered, doubled, garbled, misnumbered, impossible, ended)}


def run(scale: Scale, report: Report) -> None:
    """Every kind, again and again, at a server with a port for the past and at one without."""
    outcomes = Outcomes(report)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(_harm, has_past, scale, outcomes) for has_past in (False, True)]:
            done.result()
    outcomes.measure()


def _harm(has_past: bool, scale: Scale, outcomes: Outcomes) -> None:
    server, publisher = EngineServer(), Publisher()
    with starter() as start, ExitStack() as stack:
        stack.callback(server.close)
        stack.callback(publisher.end)
        gateway = start(
            "gateway",
            "--port=0",
            f"--endpoint={server.address}",
            f"--kv-events-port={publisher.port}",
            *([f"--kv-events-replay-port={publisher.replay_port}"] if has_past else []),
            "--log=info,inflight_upstream::watched=debug",
        )
        address = gateway.address("http")
        one = Watching(server, publisher, gateway, address)
        wait_until("it is watched", lambda: bool(get(address, "/health/ready").json().get("workers")))
        publisher.wait_for_subscriber()
        plan = list(KINDS) * scale.rounds(1, 10)
        random.Random(scale.seed).shuffle(plan)
        for kind in plan:
            one.settle()
            at = time.monotonic()
            KINDS[kind](one)
            outcome = _outcome(one, at)
            label = f"events {'with' if has_past else 'without'} a past: {kind}"
            if isinstance(outcome, float):
                outcomes.named(label, outcome)
            else:
                outcomes.other(label, "it is named, or the truth is known", outcome, (one.named(), one.held))
            if publisher.is_closed:
                publisher.open()
                publisher.wait_for_subscriber()


def _outcome(one: Watching, at: float) -> float | bool:
    """After how many seconds it was named; otherwise, whether the truth is known in the end."""
    while time.monotonic() < at + SOON_S:
        if one.reason():
            return time.monotonic() - at
        time.sleep(0.02)
    return one.named() == one.held
