"""A large batch is run by two gateways and two workers, and any of them is killed again and again. So is the
object store that has the contents, in a separate form.

Promised: each line has its result once, and it is the one that it would have had. Little is computed twice:
what a killed gateway was waiting for.
"""

from __future__ import annotations

import json
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from reliability.bystander import PROMPTS, body, whole
from reliability.report import Report, Scale
from reliability.site import PACE, Site, expect_all_free, starter
from support.http import get, post, request
from support.metrics import total
from support.object_store import BUCKET, ObjectStore, object_store
from support.processes import InflightProcess, wait_until
from support.servers import MODEL_NAME, Start, start_worker, wait_ready

PATH = "/v1/completions"
TOKENS = 8
#: A batch is at most so long, as OpenAI has it.
LINES = 50_000
#: Between two kills.
BETWEEN_S = (0.5, 2.0)
#: For what is left once nothing is killed any more.
REST_S = 1800.0


@dataclass
class Servers:
    """Two of each kind, at addresses that they keep."""

    start: Start
    data: Path
    workers: list[InflightProcess]
    gateways: list[InflightProcess]
    bucket: ObjectStore | None = None

    @property
    def address(self) -> str:
        """Of a gateway that serves."""
        return self.gateways[0].address("http")

    def kill(self, kind: str, place: int) -> None:
        """Kills one and starts it again."""
        if kind == "object store":
            assert self.bucket is not None
            self.bucket.crash()
            self.bucket.start()
            return
        of_kind = self.workers if kind == "worker" else self.gateways
        one = of_kind[place]
        one.send(signal.SIGKILL)
        one.wait()
        if kind == "worker":
            port = one.address("grpc").rpartition(":")[2]
            self.workers[place] = start_worker(self.start, *PACE, f"--grpc-port={port}")
        else:
            self.gateways[place] = self.gateway()
            wait_ready(self.gateways[place])

    def gateway(self) -> InflightProcess:
        """One more gateway on the same directory."""
        arguments = [f"--worker={worker.address('grpc')}" for worker in self.workers]
        arguments += [f"--data-dir={self.data}", "--batch-lines=4"]
        environment = None
        if self.bucket is not None:
            arguments.append(f"--data-objects=s3://{BUCKET}/batches")
            environment = self.bucket.environment()
        return self.start("gateway", "--port=0", *arguments, environment=environment)


@contextmanager
def servers(are_in_bucket: bool) -> Iterator[Servers]:
    """All of them, ready."""
    with ExitStack() as parts:
        data = parts.enter_context(tempfile.TemporaryDirectory())
        bucket = parts.enter_context(object_store()) if are_in_bucket else None
        start = parts.enter_context(starter())
        workers = [start_worker(start, *PACE) for _ in range(2)]
        made = Servers(start, Path(data), workers, [], bucket)
        made.gateways = [made.gateway() for _ in range(2)]
        for gateway in made.gateways:
            wait_ready(gateway)
        yield made


def lines(count: int) -> bytes:
    """The requests: each prompt in turn."""
    made = []
    for number in range(count):
        asked = body(MODEL_NAME, PROMPTS[number % len(PROMPTS)], TOKENS)
        made.append(json.dumps({"custom_id": str(number), "method": "POST", "url": PATH, "body": asked}))
    return "\n".join(made).encode()


def upload(address: str, content: bytes) -> str:
    """The name of the file that has this content."""
    head = '--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    head += '--b\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    form = head.encode() + content + b"\r\n--b--\r\n"
    media_type = {"content-type": "multipart/form-data; boundary=b"}
    answer = request(address, "POST", "/v1/files", form, media_type)
    assert answer.status == 200, answer.body
    return str(answer.json()["id"])


def run(scale: Scale, report: Report) -> None:
    """Kills until the batch is through, or often enough."""
    kill(scale, report, ("worker", "gateway"))


def run_in_bucket(scale: Scale, report: Report) -> None:
    """The same with contents in an object store, which is killed as well."""
    kill(scale, report, ("object store", "gateway", "worker"))


def kill(scale: Scale, report: Report, kinds: tuple[str, ...]) -> None:
    """Kills one of each kind in turn."""
    rng = random.Random(scale.seed)
    count, kills = scale.of(400, LINES), scale.rounds(len(kinds), 100)
    with servers("object store" in kinds) as made:
        expected = [whole(made.address, body(MODEL_NAME, prompt, TOKENS)) for prompt in PROMPTS]
        begun = time.monotonic()
        asked = {
            "input_file_id": upload(made.address, lines(count)),
            "endpoint": PATH,
            "completion_window": "24h",
        }
        batch = post(made.address, "/v1/batches", asked).json()
        report.attempt("lines of a batch", count)
        waited_for = 0
        for number in range(kills):
            time.sleep(rng.uniform(*BETWEEN_S))
            kind, place = kinds[number % len(kinds)], rng.randrange(2)
            if kind == "gateway":
                waited_for += running(made.gateways[place])
            report.attempt(f"SIGKILL to a{'n' if kind[0] == 'o' else ''} {kind}")
            made.kill(kind, place)
            if status(made, batch["id"])["status"] == "completed":
                break
        wait_until("the batch ends", lambda: status(made, batch["id"])["status"] == "completed", REST_S)
        seconds = time.monotonic() - begun
        check(report, made, status(made, batch["id"]), expected, count)
        share = 100 * waited_for / count
        report.measure("lines that a killed gateway waited for", f"{waited_for} ({share:.2f} % of all)")
        report.measure("lines a second, kills included", f"{count / seconds:.0f}")
        for gateway in made.gateways:
            expect_all_free(report, Site(gateway, made.workers, gateway.address("http")))


def status(made: Servers, batch: str) -> dict[str, object]:
    """The batch as it is."""
    found = get(made.address, f"/v1/batches/{batch}")
    assert found.status == 200, found.body
    return dict(found.json())


def running(gateway: InflightProcess) -> int:
    """Lines that a gateway waits for."""
    with suppress(OSError):
        return int(total(gateway.address("http"), "inflight_gateway_batch_lines_running"))
    return 0


def check(report: Report, made: Servers, batch: dict[str, object], expected: list[str], count: int) -> None:
    """Each line has its result once, and the right one."""
    counts = {"total": count, "completed": count, "failed": 0}
    report.expect("all lines succeed", batch["request_counts"] == counts, batch["request_counts"])
    content = get(made.address, f"/v1/files/{batch['output_file_id']}/content").body
    results = [json.loads(line) for line in content.splitlines()]
    names = Counter(result["custom_id"] for result in results)
    report.expect("each line has one result", names == Counter(map(str, range(count))), len(names))
    for result in results:
        text = result["response"]["body"]["choices"][0]["text"]
        wanted = expected[int(result["custom_id"]) % len(expected)]
        report.expect("a result is the one of an undisturbed request", text == wanted, text)
