"""Batches of tests: a file of requests, what became of each, and how many run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from support.metrics import total
from support.processes import InflightProcess, wait_until
from support.servers import MODEL_NAME

CHAT = "/v1/chat/completions"


def requests(path: Path, count: int, **fields: object) -> Path:
    """A file of so many chats."""
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}
    lines = [{"custom_id": f"r{n}", "method": "POST", "url": CHAT, "body": body} for n in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def results(path: Path) -> dict[str, int]:
    """The status of each line."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {line["custom_id"]: line["response"]["status_code"] for line in lines}
    assert len(found) == len(lines), "a line has several results"
    return found


def running(address: str) -> int:
    """Lines that are being run."""
    return int(total(address, "inflight_gateway_batch_lines_running"))


def outlive_holder(
    gateways: Sequence[InflightProcess],
    addresses: Sequence[str],
    completed: Callable[[str], int],
    patience_s: float,
) -> int:
    """Kills the one of two gateways that runs a batch, once it has lines done, and waits until the other one
    runs it. Returns the other one's place."""
    wait_until("lines are done", lambda: completed(addresses[1]) > 20, patience_s)
    holder = next(place for place in range(2) if running(addresses[place]))
    gateways[holder].kill()
    left = 1 - holder
    done = completed(addresses[left])
    wait_until("the other gateway runs it", lambda: completed(addresses[left]) > done + 20, patience_s)
    return left
