"""Batches of tests: a file of requests, what became of each, and how many run."""

from __future__ import annotations

import json
from pathlib import Path

from support.metrics import total
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
