#!/usr/bin/env python3
"""What clients notice of a batch that runs next to them: the same load, in turns without and with a batch.
Owns the loads and the table; the client is `inflight bench replay`.

    python tools/measure_batches.py --shape 8b --server "inflight serve {model} --port {port} --device cuda \\
        --served-model-name m --executor-option load_format=dummy --data-dir {data}"

Clients come one after the other at random times, `--rate` a second on average. Weights are random; `{model}`
is the directory that is written, `{port}` a free port, `{data}` an empty directory.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from real_loads import Load, Server, arguments_of, problems, replay, row
from shapes import SHAPES, write_model

#: Seconds in which what was before a turn ends.
SETTLE_S = 12.0
#: So many prompts of the batch are different; the rest repeat them.
PROMPTS = 512


def ask(address: str, method: str, path: str, body: Any = None, media_type: str = "application/json") -> Any:
    """What the server answers, in JSON."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    asked = urllib.request.Request(
        f"http://{address}{path}", data, {"content-type": media_type}, method=method
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def upload(address: str, options: argparse.Namespace, vocab_size: int) -> str:
    """Uploads more lines than are run."""
    rng = random.Random(1)
    prompts = [[rng.randrange(vocab_size) for _ in range(options.prompt)] for _ in range(PROMPTS)]
    lines = []
    for number in range(options.lines):
        body = {"model": "m", "prompt": prompts[number % PROMPTS], "max_tokens": options.answer}
        body |= {"ignore_eos": True, "temperature": 0}
        line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        lines.append(json.dumps(line))
    head = '--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
    head += 'content-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    form = head.encode() + "\n".join(lines).encode() + b"\r\n--b--\r\n"
    return str(ask(address, "POST", "/v1/files", form, "multipart/form-data; boundary=b")["id"])


def start_batch(address: str, file: str) -> str:
    """Has the lines run; returns once the first has its result."""
    asked = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = str(ask(address, "POST", "/v1/batches", asked)["id"])
    while not done(address, batch):
        time.sleep(0.2)
    return batch


def done(address: str, batch: str) -> int:
    """Lines that have results."""
    found = ask(address, "GET", f"/v1/batches/{batch}")
    if found["status"] not in ("validating", "in_progress", "cancelling", "cancelled"):
        raise RuntimeError(f"the batch is {found['status']}: raise --lines")
    return int(found["request_counts"]["completed"])


def online(options: argparse.Namespace, seed: int, clients: int) -> Load:
    """Clients at random times."""
    rng = random.Random(seed)
    at, rows = 0.0, []
    for _ in range(clients):
        at += rng.expovariate(options.rate)
        rows.append(row(options.prompt, options.answer, timestamp=round(at * 1000)))
    return Load(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", required=True, metavar="COMMAND")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="small")
    parser.add_argument("--rate", type=float, default=4.0, help="clients a second")
    parser.add_argument("--clients", type=int, default=200, help="of a turn")
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--answer", type=int, default=128, help="tokens")
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--turns", type=int, default=2, help="without and with a batch, so often")
    parser.add_argument(
        "--alone-s", type=float, default=15, help="seconds that the batch runs without clients"
    )
    parser.add_argument("--client", default="inflight", help="command of the load generator")
    parser.set_defaults(length_scale=None)  # what `replay` asks for: lengths are as they are
    options = parser.parse_args()
    vocab_size = SHAPES[options.shape]["vocab_size"]
    print("| | first token p50 / p99, ms | between tokens p50 / p99, ms | lines a second |")
    print("|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        write_model(options.shape, directory / "model")
        command = options.server.replace("{data}", str(directory / "data"))
        server = Server(command, directory / "model", directory / "log")
        try:
            print(f"ready after {server.wait_until_ready():.0f} s", file=sys.stderr, flush=True)

            def turn(times: int, tokens: int, clients: int) -> dict[str, Any]:
                load = online(options, times, clients)
                arguments = arguments_of(load, None, directory) or []
                found = replay(options, server.address, load, arguments, tokens)
                for problem in problems(found):
                    print(problem, file=sys.stderr, flush=True)
                [report] = found["groups"].values()
                return dict(report)

            file = upload(server.address, options, vocab_size)
            few = int(SETTLE_S * options.rate)
            turn(1000, 1000, few)
            for seed in range(options.turns):
                show("clients alone", turn(seed, 2 * seed, options.clients), None)
                batch = start_batch(server.address, file)
                # Lines that began before a client came are done.
                turn(seed, 2000 + seed, few)
                before, begun = done(server.address, batch), time.monotonic()
                # At the same times, with prompts that no cache has.
                report = turn(seed, 2 * seed + 1, options.clients)
                lines = (done(server.address, batch) - before) / (time.monotonic() - begun)
                show("clients, with a batch", report, lines)
                # Longer than a gateway waits for the next client.
                time.sleep(SETTLE_S)
                before, begun = done(server.address, batch), time.monotonic()
                time.sleep(options.alone_s)
                lines = (done(server.address, batch) - before) / (time.monotonic() - begun)
                show("the batch alone", None, lines)
                ask(server.address, "POST", f"/v1/batches/{batch}/cancel", {})
                time.sleep(2)
        except BaseException:
            print((directory / "log").read_text(errors="replace")[-3000:], file=sys.stderr)
            raise
        finally:
            server.stop()


def show(what: str, report: dict[str, Any] | None, lines: float | None) -> None:
    """A row of the table."""
    first = between = ""
    if report is not None:
        found = report["time_to_first_token_ms"]
        first = " / ".join(f"{found[name]:.1f}" for name in ("p50", "p99"))
        found = report["inter_token_ms"]
        between = " / ".join(f"{found[name]:.1f}" for name in ("p50", "p99"))
    print(f"| {what} | {first} | {between} | {'' if lines is None else f'{lines:.1f}'} |", flush=True)


if __name__ == "__main__":
    main()
