"""What a gateway takes of the machine, counted. Allocations are in `crates/gateway/tests/budgets`."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.http import stream
from support.servers import MODEL_NAME, Start, start_gateway, start_worker, wait_ready

STREAMS = 64
#: Two for each core, and what the runtime, the log and signals take.
THREADS = 2 * (os.cpu_count() or 1) + 8


def test_chats_need_no_threads_and_no_processes_of_their_own(start: Start) -> None:
    worker = start_worker(start, "--step-us=20000")
    gateway = start_gateway(start, [worker])
    http = wait_ready(gateway)
    process = Path("/proc") / str(gateway.pid)
    together = threading.Barrier(STREAMS + 1)

    def chat(index: int) -> None:
        messages = [{"role": "user", "content": f"Count to {index}."}]
        body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 50}
        answer = stream(http, "/v1/chat/completions", body)
        assert answer.status == 200
        for count, _ in enumerate(answer.chunks()):
            if count == 1:
                together.wait(60)
        answer.close()

    with ThreadPoolExecutor(STREAMS) as pool:
        chats = [pool.submit(chat, index) for index in range(STREAMS)]
        together.wait(60)
        threads = len(list((process / "task").iterdir()))
        children = (process / "task" / str(gateway.pid) / "children").read_text().split()
        for one in chats:
            one.result(60)
    assert threads <= THREADS
    # The embedded model's template is plain.
    assert children == []
