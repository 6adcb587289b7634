"""Workers and gateways of a running `inflight launch` are replaced again and again while clients ask.

Promised: no request fails and none gets another answer, streams that began on the old worker or gateway
included, and clients that keep their connections.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from reliability.bystander import PROMPTS, body, whole
from reliability.kills import Load
from reliability.report import Report, Scale
from reliability.site import starter
from support.http import stream
from support.metrics import total
from support.processes import INFLIGHT, START_S, exists
from support.servers import MODEL_NAME

TOPOLOGY = """
models:
  - executor: simulated
    replicas: {replicas}
    grpc_port: 0
    metrics_port: 0
    worker_options: {{step_us: 5000, step_us_per_sequence: 0, prefill_us_per_token: 0}}
gateways: {{port: 0}}
reload: {{order: {order}, gateways: {gateways}}}
"""
#: Each replaces every replica.
RELOAD_S = 120.0


def run(scale: Scale, report: Report) -> None:
    """Reloads of one replica and the gateway, and of two replicas that stop first."""
    for replicas, order, gateways, rounds in (
        (1, "start-first", "always", scale.rounds(2, 50)),
        (2, "stop-first", "changed", scale.rounds(1, 25)),
    ):
        with TemporaryDirectory() as directory, starter() as start:
            path = Path(directory) / "topology.yaml"
            path.write_text(TOPOLOGY.format(replicas=replicas, order=order, gateways=gateways))
            launched = start("launch", str(path))
            launched.wait_until("all are ready", lambda: "Press Ctrl-C" in launched.log, START_S)  # noqa: B023
            gateway = launched.address("http")
            begun = time.monotonic()
            with Load(gateway, report), KeptAlive(gateway, report):
                for _ in range(rounds):
                    before = set(launched.descendants())
                    _reload(path, gateway, report)
                    report.attempt(f"workers replaced, {order}", replicas)
                    if gateways == "always":
                        report.attempt("gateways replaced")
                    left = before & {pid for pid in launched.descendants() if exists(pid)}
                    # A gateway that stays has a template helper.
                    stay = 0 if gateways == "always" else 2
                    report.expect("the old processes are gone", len(left) <= stay, left)
            report.measure(
                f"seconds for each replaced worker, {order}, gateways {gateways}",
                f"{(time.monotonic() - begun) / rounds / replicas:.1f}",
            )
            report.expect(
                "nothing was retried in vain", total(gateway, "inflight_gateway_worker_up") == replicas
            )


class KeptAlive:
    """Keeps its connection until the server says that an answer is the last; asks without a pause, and waits
    now and then, as pools of connections do.
    """

    def __init__(self, address: str, report: Report) -> None:
        self._address = address
        self._report = report
        self._body = body(MODEL_NAME, PROMPTS[0])
        self._expected = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> KeptAlive:
        self._expected = whole(self._address, self._body)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=30)
        asked = json.dumps(self._body)
        turn = 0
        while not self._stop.wait(0.3 if turn % 10 == 0 else 0):
            turn += 1
            self._report.attempt("answers on kept connections")
            try:
                connection.request("POST", "/v1/completions", asked, {"content-type": "application/json"})
                response = connection.getresponse()
                received = response.read()
                # http.client opens another one where the answer said that it was the last.
                text = json.loads(received)["choices"][0]["text"]
            except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
                self._report.breaks(f"a kept connection: {error!r}")
                connection.close()
                continue
            self._report.expect("an answer is whole and right", text == self._expected, text)
        connection.close()


def _reload(path: Path, gateway: str, report: Report) -> None:
    """One reload, with a stream that begins before it and that it has to wait for."""
    asked = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 800, "ignore_eos": True}
    with closing(stream(gateway, "/v1/completions", asked)) as opened:
        events = opened.events()
        next(events)
        command = [str(INFLIGHT), "launch", str(path), "--reload"]
        made = subprocess.run(command, capture_output=True, text=True, timeout=RELOAD_S)
        report.expect("the reload succeeds", made.returncode == 0, made.stdout + made.stderr)
        *_, last, done = events
    report.attempt("streams that a reload waits for")
    report.expect("a stream ends whole", done == "[DONE]" and "error" not in json.loads(last), last)
