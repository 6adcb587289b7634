"""The servers of a scenario, and the proof that nothing is left of its clients afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reliability.report import Report
from support.metrics import scrape, total
from support.processes import InflightProcess, WaitedTooLong, wait_until
from support.servers import MODEL_NAME, Start, start_gateway, start_worker, wait_ready

#: A token every 5 ms, whatever the batch.
PACE = ("--step-us=5000", "--step-us-per-sequence=0", "--prefill-us-per-token=0")
#: Everything must be free again within this; it takes milliseconds on an idle machine.
FREE_S = 10.0


@contextmanager
def starter() -> Iterator[Start]:
    """Starts processes; stops them at the end, the last one first."""
    started: list[InflightProcess] = []

    def start(
        *arguments: str, environment: dict[str, str] | None = None, launcher: Sequence[str] = ()
    ) -> InflightProcess:
        process = InflightProcess(*arguments, environment=environment, launcher=launcher)
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in reversed(started):
            try:
                process.stop()
            except WaitedTooLong:
                # `stop` has killed it; a worker that hangs at its end shows in the scenario's own checks.
                continue


@dataclass
class Site:
    """A gateway and the workers behind it."""

    gateway: InflightProcess
    workers: list[InflightProcess]
    address: str
    model: str = MODEL_NAME

    @property
    def host(self) -> tuple[str, int]:
        """The gateway's host and port."""
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def workers_up(self) -> float:
        return total(self.address, "inflight_gateway_worker_up")

    def memory_mib(self) -> list[float]:
        """Resident memory of the gateway and of each worker."""
        return [memory_mib(process.pid) for process in (self.gateway, *self.workers)]

    def files(self) -> int:
        """Open files of the gateway."""
        return len(list(Path(f"/proc/{self.gateway.pid}/fd").iterdir()))


@contextmanager
def site(
    workers: int = 1, worker_options: tuple[str, ...] = PACE, gateway_options: tuple[str, ...] = ()
) -> Iterator[Site]:
    """Simulated workers and a gateway in front of them, ready."""
    with starter() as start:
        started = [start_worker(start, *worker_options) for _ in range(workers)]
        gateway = start_gateway(start, started, *gateway_options)
        made = Site(gateway, started, wait_ready(gateway))
        gateway.wait_until("all workers are up", lambda: made.workers_up() == workers)
        yield made


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    value = next(line for line in lines if line.startswith("VmRSS"))
    return int(value.split()[1]) / 1024


def in_use(gateway: str, workers: list[str]) -> dict[str, float]:
    """What clients hold, by name; by the metrics of the gateway and of its workers (addresses)."""
    samples = {f"gateway: {name}": value for name, value in scrape(gateway).items()}
    for number, worker in enumerate(workers):
        samples |= {f"worker {number}: {name}": value for name, value in scrape(worker).items()}
    marks = (
        "inflight_gateway_active_requests",
        "inflight_gateway_worker_active",
        "nv_inference_pending_request_count",
        'request_type="active"',
        'request_type="scheduled"',
        'request_type="waiting"',
        'kv_cache_block_type="used"',
    )
    return {name: value for name, value in samples.items() if value and any(m in name for m in marks)}


def expect_all_free(report: Report, site: Site) -> None:
    """Requests, places, slots and blocks: none is in use any more."""
    workers = [worker.address("metrics") for worker in site.workers]
    try:
        wait_until("all is free", lambda: not in_use(site.address, workers), FREE_S)
    except WaitedTooLong:
        report.breaks(f"not free after {FREE_S:g} s: {in_use(site.address, workers)}")
