"""docs/reference/metrics.md lists what a gateway and a worker export; `UPDATE_SNAPSHOTS=1` rewrites it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.http import get, post
from support.processes import wait_until
from support.servers import Server

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
#: Triton's and vLLM's names are as they are.
OTHERS = ("nv_", "vllm:")
SAMPLE = re.compile(r"^([\w:]+?)(?:_total|_bucket|_sum|_count)?(?:\{(.*)\})? \S+$")


def table(address: str) -> str:
    """The families of a metrics page, with the names and labels that a query uses."""
    kinds: dict[str, str] = {}
    helps: dict[str, str] = {}
    labels: dict[str, list[str]] = {}
    full: dict[str, str] = {}
    for line in get(address, "/metrics").body.decode().splitlines():
        if line.startswith(("# HELP ", "# TYPE ")):
            _, what, name, text = line.split(" ", 3)
            (helps if what == "HELP" else kinds)[name.removesuffix("_total")] = text
        elif sample := SAMPLE.match(line):
            name = next(known for known in (sample[1], line.partition("{")[0].split()[0]) if known in kinds)
            named = [label for label in re.findall(r'(\w+)="', sample[2] or "") if label != "le"]
            labels[name] = named
            full[name] = line.partition("{")[0].split()[0] if kinds[name] != "histogram" else name
    lines = ["| metric | type | labels | |", "|---|---|---|---|"]
    for name, kind in kinds.items():
        listed = ", ".join(f"`{label}`" for label in labels.get(name, []))
        lines.append(f"| `{full.get(name, name)}` | {kind} | {listed} | {helps[name].rstrip('.')} |")
    return "\n".join([*lines, ""])


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "curl localhost:8002/metrics",
    "curl localhost:8002/metrics",
)
def test_the_page_lists_every_metric(server: Server) -> None:
    # Families without a sample are not exported: a request, an ignored field and a refusal fill all.
    body = {"model": server.model, "prompt": "Hello", "max_tokens": 2, "unknown_field": 1}
    assert post(server.http, "/v1/completions", body).status == 200
    assert post(server.http, "/v1/completions", {**body, "model": "nobody"}).status == 404
    # The machine's families are there once its driver has been looked for.
    wait_until(
        "the worker knows its machine", lambda: "nv_cpu_" in get(server.metrics, "/metrics").body.decode()
    )
    page = PAGE.read_text(encoding="utf-8")
    for name, address in {"gateway": server.http, "worker": server.metrics}.items():
        block = re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- end of {name} -->)", re.DOTALL)
        found = block.search(page)
        assert found is not None
        made = table(address)
        if os.environ.get("UPDATE_SNAPSHOTS"):
            page = page[: found.start(2)] + made + page[found.end(2) :]
            PAGE.write_text(page, encoding="utf-8")
        else:
            command = "UPDATE_SNAPSHOTS=1 pytest tests/e2e/test_metrics_reference.py"
            assert found[2] == made, f"run `{command}` and review the difference"


def complaints(page: str) -> list[str]:
    """What `promtool check metrics` would say of a page in Prometheus' text format: its rules for names."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", page, re.MULTILINE))
    found = []
    for name, kind in kinds.items():
        ending = name.rpartition("_")[2]
        if name not in helps:
            found.append(f"{name} has no help")
        if (kind == "counter") != (ending == "total"):
            found.append(f"{name}: `_total` is for counters, and all of them")
        if kind in ("counter", "gauge") and ending in ("count", "sum", "bucket"):
            found.append(f"{name}: `_{ending}` is for histograms")
        if {"ms", "us", "ns", "s", "mb", "kb"} & set(name.split("_")):
            found.append(f"{name}: units are whole words")
        if {"counter", "gauge", "histogram", "summary"} & set(name.split("_")):
            found.append(f"{name}: names do not have types")
    for line in page.splitlines():
        if not line.startswith("#") and not any(line.startswith(name) for name in kinds):
            found.append(f"no family for {line}")
    return found


def test_our_names_are_as_prometheus_wants_them(server: Server) -> None:
    body = {"model": server.model, "prompt": "Hello", "max_tokens": 2, "unknown_field": 1}
    assert post(server.http, "/v1/completions", body).status == 200
    assert complaints(get(server.http, "/metrics").body.decode()) == []
    found = complaints(get(server.metrics, "/metrics").body.decode())
    assert [one for one in found if not one.startswith(OTHERS)] == []


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool, of the Debian package prometheus, is missing"
)
def test_promtool_finds_nothing_but_names_of_others(server: Server) -> None:
    found = {}
    for name, address in {"gateway": server.http, "worker": server.metrics}.items():
        page = get(address, "/metrics").body
        done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=60)
        found[name] = [line for line in done.stderr.decode().splitlines() if not line.startswith(OTHERS)]
    assert found == {"gateway": [], "worker": []}
