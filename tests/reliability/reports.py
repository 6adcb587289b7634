"""Reports of caches that are lost, late, doubled or false: whether gateways notice each, and lose nothing.

Every fault has an outcome. *Named*: `/health` says what is wrong with this worker, within 2 s. *Compared*:
the first answer that it misled is counted, by the tokens that were expected and found. *Harmless*: nothing is
expected of a worker that it does not hold. Anything else is a fault that nobody noticed.

A gateway that is killed harms no report: the one in its place must soon find what the old one found.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from reliability.bystander import Bystander
from reliability.oracle import Oracle
from reliability.report import Report, Scale
from reliability.site import starter
from support.faulty_reports import CONSISTENT, NAMED, SAID, FaultyReports, Harm
from support.http import get, post
from support.metrics import total
from support.processes import PATIENCE_S, START_S, InflightProcess, wait_until
from support.servers import MODEL_NAME, Start, start_worker, wait_ready

NAMED_WITHIN_S = 2.0
#: What a machine that does other work adds to that; the report has the true figures.
SLACK_S = 1.0
#: After it answers for the first time, a new gateway knows as much as the one that was killed.
KNOWS_WITHIN_S = 2.0
LOOK_EVERY_S = 0.03
BLOCK, BLOCKS = 16, 8
#: Prompts cost enough that one which is cached is worth a busier worker.
OPTIONS = (
    *("--enable-kv-cache-reuse", f"--tokens-per-block={BLOCK}", "--num-blocks=4096"),
    *("--step-us=2000", "--step-us-per-sequence=0", "--prefill-us-per-token=100"),
)
PROMISED, HIDDEN, HESITATING = CONSISTENT
#: Wrong answers in a row after which a worker is not believed.
TOO_MANY = 16


@dataclass
class Gateway:
    """A gateway, its way to each worker, and what its `/health` says of the workers' reports."""

    process: InflightProcess
    address: str
    ways: list[FaultyReports]
    reasons: dict[str, str] = field(default_factory=dict)
    #: Times of looking, by which a thread knows that what it reads is new.
    looked: float = 0.0

    def look(self, stop: threading.Event) -> None:
        """Keeps `reasons`."""
        while not stop.wait(LOOK_EVERY_S):
            at = time.monotonic()
            try:
                found = get(self.address, "/health/ready").json().get("workers", [])
            except OSError:
                continue
            self.reasons = {one["address"]: _reason(one) for one in found}
            self.looked = at

    def is_trusted(self, way: FaultyReports) -> bool:
        """Whether the worker's reports are believed."""
        return self.reasons.get(way.address, "unknown") == ""

    def hears_all(self, since: float) -> bool:
        """Whether all workers' reports are believed, by what was read after this time."""
        return self.looked > since and all(self.is_trusted(way) for way in self.ways)

    def compared(self) -> tuple[float, float]:
        """Tokens that were expected to be cached, and those that were."""
        metric = "inflight_gateway_{}_cached_tokens_total"
        return total(self.address, metric.format("expected")), total(self.address, metric.format("found"))

    def ask(self, prompt: list[int]) -> None:
        """One request, which must be answered."""
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 1, "ignore_eos": True}
        answer = post(self.address, "/v1/completions", body)
        assert answer.status == 200, answer.body


class Outcomes:
    """What became of each fault, by kind; any thread may add to it."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._times: defaultdict[str, list[float]] = defaultdict(list)

    def named(self, kind: str, after_s: float | None) -> None:
        """It was named after so many seconds; `None`: it was not."""
        self._report.attempt(kind)
        bound = NAMED_WITHIN_S + SLACK_S
        self._report.expect(f"`{kind}` is named within {bound:g} s", after_s is not None)
        if after_s is not None:
            self._report.expect(f"`{kind}` is named within {bound:g} s", after_s < bound, f"{after_s:.2f} s")
            with self._lock:
                self._times[kind].append(after_s)

    def took(self, what: str, since: float) -> None:
        """Something is done that began at this time."""
        with self._lock:
            self._times[what].append(time.monotonic() - since)

    def other(self, kind: str, promise: str, held: bool, found: object = "") -> None:
        """It was not to be named, and this was to hold in its place."""
        self._report.attempt(kind)
        self._report.expect(f"`{kind}`: {promise}", held, found)

    def expect(self, promise: str, held: bool, found: object = "") -> None:
        """Something else that was to hold."""
        self._report.expect(promise, held, found)

    def measure(self) -> None:
        """Writes how long it took."""
        for kind, times in self._times.items():
            late = sum(one > NAMED_WITHIN_S for one in times)
            shown = f"median {sorted(times)[len(times) // 2]:.2f} s, slowest {max(times):.2f} s"
            name = kind if kind.startswith("gateway") else f"{kind}, named after"
            self._report.measure(name, shown + (f", {late} after 2 s" if late else ""))


def run(scale: Scale, report: Report) -> None:
    """Harms each way from a worker to a gateway, all at once; then what needs silence around it."""
    workers, gateways = scale.of(2, 8), scale.of(1, 2)
    rounds = scale.rounds(1, 5)
    outcomes = Outcomes(report)
    with fleet(workers, gateways) as (start, started, made):
        with Bystander(made[0].address, MODEL_NAME, report), ThreadPoolExecutor(workers * gateways) as pool:
            ways = [(one, way) for one in made for way in one.ways]
            plans = [list(NAMED) * rounds for _ in ways]
            for number, plan in enumerate(plans):
                random.Random(scale.seed * 1000 + number).shuffle(plan)
            for done in [
                pool.submit(_harm, one, way, plan, outcomes)
                for (one, way), plan in zip(ways, plans, strict=True)
            ]:
                done.result()
            _reset(start, started, made, scale.of(1, workers), outcomes)
        _replace(start, made[-1], scale.rounds(1, 10), outcomes)
        for one in made:
            with Oracle(start, OPTIONS, BLOCK * BLOCKS) as oracle:
                _mislead(one, oracle, scale.rounds(1, 2), outcomes)
                if not scale.is_short:
                    _lie(one, oracle, outcomes)
    outcomes.measure()


def _harm(gateway: Gateway, way: FaultyReports, plan: list[str], outcomes: Outcomes) -> None:
    """One fault after another on one way."""
    for kind in plan:
        wait_until("reports are believed", lambda: gateway.is_trusted(way), PATIENCE_S)
        after_s, said = _named_after(gateway, way, _done(way, Harm(kind)))
        outcomes.named(kind, after_s)
        outcomes.expect(f"`{kind}` is named as `{SAID[kind]}`", SAID[kind] in said, said)


def _done(way: FaultyReports, harm: Harm) -> Harm:
    """Waits until the harm is done."""
    way.harm = harm
    assert harm.done.wait(PATIENCE_S), f"no message came to be `{harm.kind}`"
    return harm


def _named_after(gateway: Gateway, way: FaultyReports, harm: Harm) -> tuple[float | None, str]:
    """After how many seconds it was named, and how."""
    deadline = harm.at + 2 * (NAMED_WITHIN_S + SLACK_S)
    while time.monotonic() < deadline:
        if not gateway.is_trusted(way) and gateway.looked > harm.at:
            return time.monotonic() - harm.at, gateway.reasons.get(way.address, "")
        time.sleep(LOOK_EVERY_S / 3)
    return None, ""


def _reset(
    start: Start, workers: list[InflightProcess], gateways: list[Gateway], count: int, outcomes: Outcomes
) -> None:
    """Workers that are killed come back with an empty cache."""
    for place in range(count):
        at = time.monotonic()
        workers[place].kill()
        harm = Harm("killed: cache reset", at=at)
        with ThreadPoolExecutor(len(gateways)) as pool:
            ways = [one.ways[place] for one in gateways]
            for after_s, _ in pool.map(_named_after, gateways, ways, [harm] * len(gateways)):
                outcomes.named(harm.kind, after_s)
        port = workers[place].address("grpc").rpartition(":")[2]
        workers[place] = start_worker(start, *OPTIONS, f"--grpc-port={port}")
        for one, way in zip(gateways, ways, strict=True):
            wait_until("the worker is back", partial(one.is_trusted, way), START_S)


def _replace(start: Start, gateway: Gateway, times: int, outcomes: Outcomes) -> None:
    """Kills a gateway; the new one must find as many tokens as it did, as soon as it hears all workers."""
    draw = random.Random(times)
    prompts = [[draw.randrange(100, 1000) for _ in range(BLOCK * BLOCKS + 1)] for _ in range(64)]
    for prompt in prompts:
        gateway.ask(prompt)
    _settle()
    old = _found(gateway, prompts)
    whole = BLOCK * BLOCKS * len(prompts)
    outcomes.expect("a gateway finds prompts that were asked before", old == whole, f"{old} of {whole}")
    for _ in range(times):
        gateway.process.kill()
        killed = time.monotonic()
        gateway.process = start("gateway", "--port=0", *(f"--worker={way.address}" for way in gateway.ways))
        gateway.address = wait_ready(gateway.process)
        ready = time.monotonic()
        wait_until("all are believed", partial(gateway.hears_all, ready), START_S)
        outcomes.took("gateway killed: the new one hears all workers, after it is ready", ready)
        new = _found(gateway, prompts)
        outcomes.took("gateway killed: until then and 64 answers, after it is ready", ready)
        outcomes.took("gateway killed: the same, after the kill", killed)
        outcomes.other(
            "gateway killed", "the new one finds what the old one found", new >= old, f"{new} of {old}"
        )
        taken = time.monotonic() - ready
        promise = f"a new gateway is as good as the old one within {KNOWS_WITHIN_S + SLACK_S:g} s"
        outcomes.expect(promise, taken < KNOWS_WITHIN_S + SLACK_S, f"{taken:.2f} s")


def _found(gateway: Gateway, prompts: list[list[int]]) -> float:
    """Asks for each prompt once; returns tokens that were expected to be cached, and found."""
    before = gateway.compared()
    for prompt in prompts:
        gateway.ask(prompt)
    return min(after - one for one, after in zip(before, gateway.compared(), strict=True))


def _settle() -> None:
    """Until a message that was sent has been taken: nothing shows that but what it says."""
    time.sleep(0.2)


def _missed(gateway: Gateway, prompt: list[int]) -> float:
    """Asks; returns tokens that were expected to be cached and not found."""
    before = gateway.compared()
    gateway.ask(prompt)
    after = gateway.compared()
    return (after[0] - before[0]) - (after[1] - before[1])


def _mislead(gateway: Gateway, oracle: Oracle, rounds: int, outcomes: Outcomes) -> None:
    """Reports that are false and possible, one at a time: what is expected is compared with what is found."""

    for _ in range(rounds):
        for way in gateway.ways:
            prompt, keys = oracle.prompt()
            _done(way, Harm(PROMISED, keys))
            _settle()
            missed = _missed(gateway, prompt)
            outcomes.other(PROMISED, "the first answer shows it", missed >= BLOCK * (BLOCKS - 1), missed)
            # So that most answers are right: no worker is to be withheld yet.
            _settle()
            for _ in range(2):
                gateway.ask(prompt)
            _done(way, Harm(HIDDEN))
            _settle()
            missed = _missed(gateway, prompt)
            outcomes.other(HIDDEN, "nothing is expected that is not held", missed <= BLOCK, missed)
            _done(way, Harm(HESITATING))
            time.sleep(NAMED_WITHIN_S / 4)
            outcomes.other(HESITATING, "reports are believed", gateway.is_trusted(way))


def _lie(gateway: Gateway, oracle: Oracle, outcomes: Outcomes) -> None:
    """A worker that promises again and again what it does not hold."""
    liar = gateway.ways[0]
    wrong = 0
    while gateway.is_trusted(liar) and wrong < 3 * TOO_MANY:
        prompt, keys = oracle.prompt()
        _done(liar, Harm(PROMISED, keys))
        _settle()
        wrong += _missed(gateway, prompt) > BLOCK
        # Until it is looked again.
        time.sleep(3 * LOOK_EVERY_S)
    outcomes.other(
        "falsified, consistent, again and again", "the worker is named", not gateway.is_trusted(liar), wrong
    )


def _reason(worker: dict[str, object]) -> str:
    return str(worker.get("cache", "")) if worker.get("ready") else "not ready"


@contextmanager
def fleet(workers: int, gateways: int) -> Iterator[tuple[Start, list[InflightProcess], list[Gateway]]]:
    """Workers, and gateways with a way of their own to each."""
    with starter() as start, ExitStack() as stack:
        started = [start_worker(start, *OPTIONS) for _ in range(workers)]
        made = []
        stop = threading.Event()
        stack.callback(stop.set)
        for _ in range(gateways):
            ways = [stack.enter_context(FaultyReports(worker.address("grpc"))) for worker in started]
            addresses = [f"--worker={way.address}" for way in ways]
            process = start("gateway", "--port=0", *addresses)
            one = Gateway(process, wait_ready(process), ways)
            made.append(one)
            looking = threading.Thread(target=one.look, args=(stop,))
            looking.start()
            stack.callback(looking.join)
            stack.callback(stop.set)
        for one in made:
            for way in one.ways:
                wait_until("all are believed", partial(one.is_trusted, way), START_S)
        yield start, started, made
