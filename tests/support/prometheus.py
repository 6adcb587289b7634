"""A real Prometheus on real servers, and what is wrong with a query. Owns how it is started and asked; which
queries must answer is the tests'.

Debian's package `prometheus` is used: `tools/install-system-packages prometheus` installs it.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from support.http import get
from support.processes import PATIENCE_S, wait_until

PROMETHEUS = shutil.which("prometheus")
MISSING = "prometheus is not installed: tools/install-system-packages prometheus"
LISTENING = re.compile(r'msg="Listening on" address=(\S+)')
#: A metric of ours with its labels, as our queries write it: no value has a brace.
SELECTOR = re.compile(r"\b(?:inflight|nv)_\w+(?:\{[^}]*\})?")
GROUPED = re.compile(r"\bby \(([^)]*)\)")


class Prometheus:
    """A server that scrapes once a second."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until("Prometheus listens", lambda: self._address() is not None)
        address = self._address()
        assert address is not None
        self.address = address
        wait_until("Prometheus is ready", lambda: get(address, "/-/ready").status == 200)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            self._lines += pipe

    def _address(self) -> str | None:
        assert self._process.poll() is None, "".join(self._lines)
        return next((found[1] for line in list(self._lines) if (found := LISTENING.search(line))), None)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._reader.join(PATIENCE_S)

    def ask(self, path: str, **arguments: str | Sequence[str]) -> Any:
        """The data of an answer of the HTTP API."""
        answer = get(self.address, f"/api/v1/{path}?{urlencode(arguments, doseq=True)}")
        body = answer.json()
        assert body["status"] == "success", body
        return body["data"]

    def series(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of a query now."""
        return [(one["metric"], float(one["value"][1])) for one in self.ask("query", query=query)["result"]]

    def alerts(self) -> dict[str, str]:
        """By name of an alert: `inactive`, `pending` or `firing`."""
        groups = self.ask("rules")["groups"]
        return {rule["name"]: rule["state"] for group in groups for rule in group["rules"]}

    def complaints(self, query: str, shown: str = "", *, exempt: Sequence[str] = ()) -> list[str]:
        """What makes a query untrue: no number, or a metric, a label or a value that is not there.

        `shown` is what is written next to its series, with labels as `{{label}}` or `{{ $labels.label }}`.
        """
        found = []
        labels: set[str] = set()
        for selector in SELECTOR.findall(query):
            series = [one for one, _ in self.series(selector)]
            if not series and not selector.startswith(tuple(exempt)):
                found.append(f"nothing is called {selector}")
            labels.update(*series)
        # Prometheus leaves out a label that no series has, and says nothing.
        grouped = {label for group in GROUPED.findall(query) for label in group.split(", ")}
        found += [f"no series has the label `{label}`" for label in sorted(grouped - labels - {"le"})]
        if found:
            return found
        result = self.series(query)
        if not any(math.isfinite(value) for _, value in result):
            return [f"no series with a number: {query}: {result}"]
        written = re.findall(r"\{\{(?: \$labels\.)?\s*(\w+)\s*\}\}", shown)
        return [f"`{shown}`: no `{label}`" for label in written if not any(label in one for one, _ in result)]


@contextlib.contextmanager
def prometheus(folder: Path, jobs: Mapping[str, Sequence[str]], rules: str) -> Iterator[Prometheus]:
    """Scrapes the addresses of each job, and follows the rules."""
    assert PROMETHEUS is not None
    (folder / "rules.yaml").write_text(rules, encoding="utf-8")
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(targets)}]} for job, targets in jobs.items()
        ],
    }
    # JSON is YAML.
    (folder / "prometheus.yaml").write_text(json.dumps(configuration), encoding="utf-8")
    arguments = {
        "config.file": folder / "prometheus.yaml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": "127.0.0.1:0",
    }
    process = subprocess.Popen(
        [PROMETHEUS, *(f"--{name}={value}" for name, value in arguments.items())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    server = None
    try:
        server = Prometheus(process)
        yield server
    finally:
        if server is not None:
            server.stop()
        else:
            process.kill()
            process.wait(PATIENCE_S)
