"""A worker whose reports of its cache arrive as a test wants them: late, twice, in another order, changed, or
not at all. What is asked of it passes unchanged.

Owns each kind of fault of that stream; whether anyone notices is the test's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from support.cache_messages import cache_messages
from support.spoiling_worker import SpoilingWorker

#: Longer than a gateway waits for a message, and shorter than it waits for two.
SILENCE_S, HESITATION_S = 2.5, 0.3
#: More than a worker of these tests holds.
MANY = 5000


class Cut(Exception):
    """Ends the stream; with a status if it `fails`."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.fails = fails


@dataclass
class Harm:
    """One fault, of which the stream's next message is the victim."""

    kind: str
    #: Keys and their predecessors, for those that say something of blocks.
    keys: list[int] = field(default_factory=list)
    #: Set, with the time, once it is done.
    done: threading.Event = field(default_factory=threading.Event)
    at: float = 0.0


#: A message, and the ones behind it: what is sent in their place.
Change = Callable[[Any, Iterator[Any], Harm], Iterator[Any]]


def _dropped(_update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    return iter(())


def _doubled(update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    yield update
    yield update


def _reordered(update: Any, rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    yield next(rest)
    yield update


def _silent(update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    time.sleep(SILENCE_S)
    yield update


def _hesitating(update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    time.sleep(HESITATION_S)
    yield update


def _ended(_update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    raise Cut(fails=False)


def _failed(_update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    raise Cut(fails=True)


def _garbled(_update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    yield b"\x0b\xff\xff"


def _misnumbered(update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    update.sequence += 7
    yield update


def _too_many_removed(update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    update.device.removed.extend(range(1, MANY))
    yield update


def _unpaired(update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    update.device.stored.append(77)
    yield update


def _no_number(update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    update.load.prefill_seconds_total = float("nan")
    yield update


def _backwards(update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    update.load.prefill_seconds_total = -1e9
    yield update


def _promised(update: Any, _rest: Iterator[Any], harm: Harm) -> Iterator[Any]:
    """Blocks that the worker does not hold."""
    update.device.stored.extend(harm.keys)
    update.device.after.extend([0, *harm.keys[:-1]])
    yield update


def _forgotten(update: Any, _rest: Iterator[Any], _harm: Harm) -> Iterator[Any]:
    """The worker holds nothing, it says."""
    update.cleared = True
    yield update


#: Nothing but the fault itself shows these, and a gateway must name each.
NAMED: dict[str, Change] = {
    "dropped": _dropped,
    "doubled": _doubled,
    "reordered": _reordered,
    "delayed by 2.5 s": _silent,
    "stream ended": _ended,
    "stream failed": _failed,
    "garbled bytes": _garbled,
    "falsified number": _misnumbered,
    "falsified: more removed than held": _too_many_removed,
    "falsified: block without predecessor": _unpaired,
    "falsified: no number": _no_number,
    "falsified: total goes backwards": _backwards,
}
#: What is said of each: reports are late, impossible, have gaps or have ended.
SAID = dict.fromkeys(NAMED, "impossible") | {
    **dict.fromkeys(("dropped", "doubled", "reordered", "falsified number"), "gaps"),
    **dict.fromkeys(("stream ended", "stream failed", "garbled bytes"), "ended"),
    "delayed by 2.5 s": "late",
}
#: Wrong, and possible: no message shows it.
CONSISTENT: dict[str, Change] = {
    "falsified, consistent: blocks promised": _promised,
    "falsified, consistent: blocks hidden": _forgotten,
    "delayed by 0.3 s": _hesitating,
}
CHANGES = {**NAMED, **CONSISTENT}


class FaultyReports(SpoilingWorker):
    """In front of `worker`; `harm` is done to the next message of its stream that is not the first."""

    def __init__(self, worker: str) -> None:
        super().__init__(worker)
        self.harm: Harm | None = None

    def watch(self, method: str, request: bytes, context: Any) -> Iterator[bytes]:
        """Hands on the stream, with the faults that are asked for."""
        messages = cache_messages()
        responses = self.channel.unary_stream(method)(request)
        context.add_callback(responses.cancel)
        context.send_initial_metadata(())
        updates = (messages.CacheUpdate.FromString(response) for response in responses)
        try:
            yield next(updates).SerializeToString()
            for update in updates:
                harm, self.harm = self.harm, None
                if harm is None:
                    yield update.SerializeToString()
                    continue
                harm.at = time.monotonic()
                harm.done.set()
                for changed in CHANGES[harm.kind](update, updates, harm):
                    yield changed if isinstance(changed, bytes) else changed.SerializeToString()
        except Cut as cut:
            responses.cancel()
            if cut.fails:
                context.abort(grpc.StatusCode.INTERNAL, "as the test wants it")
        except (StopIteration, grpc.RpcError):
            return
