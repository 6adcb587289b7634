"""Workers of a running `inflight launch` are replaced again and again while clients ask.

Promised: no request fails and none gets another answer, streams that began on the old worker included.
"""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

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
reload: {{order: {order}}}
"""
#: Each replaces every replica.
RELOAD_S = 120.0


def run(scale: Scale, report: Report) -> None:
    """Reloads of one replica, and of two that stop first."""
    for replicas, order, rounds in ((1, "start-first", scale.of(2, 50)), (2, "stop-first", scale.of(1, 25))):
        with TemporaryDirectory() as directory, starter() as start:
            path = Path(directory) / "topology.yaml"
            path.write_text(TOPOLOGY.format(replicas=replicas, order=order))
            launched = start("launch", str(path))
            launched.wait_until("all are ready", lambda: "Press Ctrl-C" in launched.log, START_S)  # noqa: B023
            gateway = launched.address("http")
            begun = time.monotonic()
            with Load(gateway, report):
                for _ in range(rounds):
                    before = set(launched.descendants())
                    _reload(path, gateway, report)
                    report.attempt(f"workers replaced, {order}", replicas)
                    left = before & {pid for pid in launched.descendants() if exists(pid)}
                    # The gateway stays, and each worker's template helper goes with it.
                    report.expect("the old workers are gone", len(left) <= 2, left)
            report.measure(
                f"seconds for each replaced worker, {order}",
                f"{(time.monotonic() - begun) / rounds / replicas:.1f}",
            )
            report.expect(
                "nothing was retried in vain", total(gateway, "inflight_gateway_worker_up") == replicas
            )


def _reload(path: Path, gateway: str, report: Report) -> None:
    """One reload, with a stream that begins before it and is longer than it."""
    asked = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 800, "ignore_eos": True}
    with closing(stream(gateway, "/v1/completions", asked)) as opened:
        events = opened.events()
        next(events)
        command = [str(INFLIGHT), "launch", str(path), "--reload"]
        made = subprocess.run(command, capture_output=True, text=True, timeout=RELOAD_S)
        report.expect("the reload succeeds", made.returncode == 0, made.stdout + made.stderr)
        *_, last, done = events
    report.attempt("streams longer than a reload")
    report.expect("a stream ends whole", done == "[DONE]" and "error" not in json.loads(last), last)
