#!/usr/bin/env python3
"""Loads as people make them, against servers of one model on this machine, one server after the other, with
the same client and the same prompts: `inflight bench replay`. Owns the loads, starting and stopping the
servers, and the table; measures nothing itself.

    python tools/real_loads.py --shape 8b --traces DIRECTORY --output results.jsonl \\
        --server "ours=inflight serve {model} --port {port} --device cuda --served-model-name m \\
            --executor-option load_format=dummy --executor-option max_batch_size=1024" \\
        --server "vllm=vllm serve {model} --port {port} --served-model-name m --load-format dummy \\
            --max-num-seqs 1024 --max-model-len 40960"

Weights are random. A command may begin with variables, as in a shell; `{model}` is the directory that is
written, `{port}` a free port, `{file:PATH}` a copy of a file in which they are filled in as well, such as a
topology of `tools/phases` or `tools/prefixes` for `inflight launch`. Where a server lists several models,
requests go to one after the other. With `--adapters N`, N LoRA adapters are written, and requests go to those
that a server lists: `{adapters}` is the directory that has them, `{lora_modules}` what vLLM's option of that
name takes. DIRECTORY holds Mooncake's `conversation_trace.jsonl` and
`synthetic_trace.jsonl`, whose lengths are scaled to a quarter; without it their loads are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shapes import SHAPES, write_model

#: Longest prompt and answer together.
MAX_LENGTH = 40960
READY_S = 400.0
#: Of a load.
MOST_S = 300

GREEDY = {"temperature": 0}
SAMPLED = {"temperature": 1, "top_p": 0.9}

Row = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """What one run sends: rows, or a file of ``--traces``."""

    rows: Sequence[Row] = ()
    trace: str | None = None
    options: Sequence[str] = ()
    body: dict[str, Any] = field(default_factory=lambda: GREEDY)


def row(prompt: int, answer: int, **others: Any) -> Row:
    """A request."""
    return {"input_length": prompt, "output_length": answer, **others}


def shared(prefix: int, count: int, answer: int) -> list[Row]:
    """Prompts that begin with the same ``prefix`` tokens and continue with 128 of their own."""
    blocks = list(range(prefix // 512))
    return [row(prefix + 128, answer, hash_ids=blocks) for _ in range(count)]


def interrupted(streams: int, answer: int, prompts: int, apart_ms: int) -> list[Row]:
    """Running streams, and now and then a prompt of 32,768 tokens."""
    short = [row(128, answer, group="streams") for _ in range(streams)]
    long = [row(32768, 16, group="long prompts", timestamp=1000 + one * apart_ms) for one in range(prompts)]
    return short + long


def returning(prefixes: int, times: int, per_second: float) -> list[Row]:
    """Prefixes of 8,192 to 16,384 tokens, each of which comes so many times, with 256 tokens of its own.

    Requests come at random, at this rate on average.
    """
    draw = random.Random(prefixes)
    blocks = [range(number << 10, (number << 10) + draw.randint(16, 32)) for number in range(prefixes)]
    order = list(range(prefixes)) * times
    draw.shuffle(order)
    rows, seen, timestamp = [], set[int](), 0.0
    for prefix in order:
        timestamp += 1000 * draw.expovariate(per_second)
        group = "again" if prefix in seen else "for the first time"
        seen.add(prefix)
        length = 512 * len(blocks[prefix]) + 256
        rows.append(row(length, 64, timestamp=timestamp, hash_ids=list(blocks[prefix]), group=group))
    return rows


def traced(name: str, speed: float, requests: int, body: dict[str, Any] | None = None) -> Load:
    """The start of a trace at a quarter of its lengths."""
    options = ["--length-scale", "0.25", "--speed", str(speed), "--requests", str(requests)]
    return Load(trace=f"{name}_trace.jsonl", options=options, body=body or GREEDY)


def closed(streams: int, rows: Sequence[Row], body: dict[str, Any] | None = None) -> Load:
    """So many requests at a time."""
    return Load(rows, options=["--streams", str(streams)], body=body or GREEDY)


LOADS: dict[str, Load] = {
    "64 streams, 128 + 128": closed(64, [row(128, 128)] * 256),
    "256 streams, 128 + 128": closed(256, [row(128, 128)] * 1024),
    "256 streams, 128 + 128, top-p": closed(256, [row(128, 128)] * 1024, SAMPLED),
    "1,024 streams, 128 + 128": closed(1024, [row(128, 128)] * 2048),
    "64 requests of 4 choices": closed(64, [row(128, 128)] * 128, {**SAMPLED, "n": 4}),
    "shared prefix of 4,096, 64 streams": closed(64, shared(4096, 384, 128)),
    "shared prefix of 32,768, 16 streams": closed(16, shared(32768, 64, 64)),
    "32,768-token prompts among 32 streams": Load(interrupted(32, 768, 4, 2000)),
    "conversation, 2x": traced("conversation", 2, 160),
    "conversation, 3x": traced("conversation", 3, 240),
    "conversation, 3x, top-p": traced("conversation", 3, 240, SAMPLED),
    "synthetic, 2x": traced("synthetic", 2, 160),
    "32,768-token prompts among 64 streams": Load(interrupted(64, 1024, 4, 3000)),
    "32 returning prefixes, 4 a second": Load(returning(32, 12, 4)),
    "32 returning prefixes, 8 a second": Load(returning(32, 12, 8)),
}

#: Before what is measured: kernels are compiled when a shape first comes. Two workers get a long prompt each.
WARM_UP = [
    closed(64, [row(128, 32)] * 64, SAMPLED),
    closed(8, [row(32768, 8), row(32768, 8), *shared(4096, 8, 16), *[row(1500, 16)] * 8]),
    closed(1024, [row(64, 16)] * 1024),
    closed(16, [row(64, 16)] * 16, {**SAMPLED, "n": 4}),
]


def adapter_tensors(config: dict[str, Any], rank: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and shapes, as PEFT writes them, of an adapter on all linear layers of a Llama."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    queries, keys = heads * head, config["num_key_value_heads"] * head
    sizes = {
        "self_attn.q_proj": (hidden, queries),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (queries, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in sizes.items():
            beginning = f"base_model.model.model.layers.{layer}.{name}"
            yield f"{beginning}.lora_A.weight", (rank, inputs)
            yield f"{beginning}.lora_B.weight", (outputs, rank)


def write_adapters(config: dict[str, Any], directory: Path, count: int, rank: int) -> list[Path]:
    """Adapters of random weights, as PEFT writes them, served under the names of their directories."""
    header, end = dict[str, Any](), 0
    modules = set[str]()
    for name, shape in adapter_tensors(config, rank):
        begin, end = end, end + 2 * shape[0] * shape[1]
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [begin, end]}
        modules.add(name.split(".")[-3])
    about = json.dumps(header).encode()
    about += b" " * (-len(about) % 8)
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "bias": "none"}
    written = []
    for number in range(count):
        path = directory / f"adapter-{number}"
        path.mkdir(parents=True)
        (path / "adapter_config.json").write_text(json.dumps({**settings, "target_modules": sorted(modules)}))
        weights = np.random.default_rng(number).random(end // 2, np.float32) * 0.04 - 0.02
        with (path / "adapter_model.safetensors").open("wb") as file:
            file.write(len(about).to_bytes(8, "little") + about)
            file.write(weights.astype(np.float16).tobytes())
        written.append(path)
    return written


def arguments_of(
    load: Load, traces: Path | None, directory: Path, models: Sequence[str] = ()
) -> list[str] | None:
    """Where the trace of a load is, and options; None without its file. Requests go to the models in turn."""
    rows: Sequence[Row] = load.rows
    if load.trace is not None:
        if traces is None:
            return None
        if len(models) < 2:
            return [str(traces / load.trace), *load.options]
        rows = [json.loads(line) for line in (traces / load.trace).read_text().splitlines()]
    if len(models) > 1:
        rows = [{**one, "model": models[place % len(models)]} for place, one in enumerate(rows)]
    path = directory / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return [str(path), *load.options]


def replay(
    options: argparse.Namespace, address: str, load: Load, arguments: list[str], seed: int
) -> dict[str, Any]:
    """The client's report."""
    command = [*shlex.split(options.client), "bench", "replay", address, *arguments, "--json"]
    command += ["--seed", str(seed), "--vocab-size", str(SHAPES[options.shape]["vocab_size"])]
    command += ["--body", json.dumps(load.body), "--timeout-s", str(MOST_S)]
    if options.length_scale is not None and "--length-scale" not in arguments:
        command += ["--length-scale", str(options.length_scale)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": done.stderr.strip()[-2000:]}
    return report


def problems(report: dict[str, Any]) -> list[str]:
    """What went wrong, if anything did."""
    found = [report.get("error"), *(one["first_problem"] for one in report.get("groups", {}).values())]
    return [problem for problem in found if problem]


class Server:
    """A server under test, in its own process group."""

    def __init__(self, command: str, model: Path, log: Path, adapters: Sequence[Path] = ()) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        #: What it serves, once it is ready.
        self.models: list[str] = []
        self._adapters = {path.name for path in adapters}
        self._log = log
        places = {
            "{model}": str(model),
            "{port}": str(port),
            "{adapters}": str(model.parent / "adapters"),
            "{lora_modules}": " ".join(f"{path.name}={path}" for path in adapters),
        }

        def filled(text: str) -> str:
            for place, value in places.items():
                text = text.replace(place, value)
            return text

        def copied(found: re.Match[str]) -> str:
            path = Path(found[1])
            copy = model.parent / path.name
            copy.write_text(filled(path.read_text()))
            return str(copy)

        words = filled(re.sub(r"\{file:([^}]+)\}", copied, command))
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", f"exec env {words}"], stdout=output, stderr=output, start_new_session=True
            )

    def wait_until_ready(self) -> float:
        """Seconds until the server lists its model."""
        started = time.monotonic()
        while (spent := time.monotonic() - started) < READY_S:
            if self._process.poll() is not None:
                break
            with suppress(urllib.error.URLError, OSError, ValueError):
                with urllib.request.urlopen(f"http://{self.address}/v1/models", timeout=2) as answer:
                    listed = sorted(one["id"] for one in json.load(answer).get("data") or ())
                if self._adapters:
                    # Also as `model:adapter`.
                    listed = [name for name in listed if name.rpartition(":")[2] in self._adapters]
                if listed and len(listed) >= len(self._adapters):
                    self.models = listed
                    return spent
            time.sleep(0.2)
        tail = self._log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"the server at {self.address} did not become ready:\n{tail}")

    def stop(self) -> None:
        """Ends the whole group: memory of the GPU is free for the next server."""
        for ending, seconds in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
            try:
                os.killpg(self._process.pid, ending)
                self._process.wait(seconds)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        time.sleep(2)


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A record for each server and load."""
    wanted = [name for name in LOADS if not options.load or any(part in name for part in options.load)]
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        model = directory / "model"
        write_model(options.shape, model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": MAX_LENGTH}))
        adapters = write_adapters(config, directory / "adapters", options.adapters, options.adapter_rank)
        for name, _, command in (server.partition("=") for server in options.server):
            options.logs.mkdir(parents=True, exist_ok=True)
            log = options.logs / f"{name}-{options.shape}.log"
            server = Server(command, model, log, adapters)
            try:
                print(f"{name}: ready after {server.wait_until_ready():.0f} s", file=sys.stderr, flush=True)
                for seed, load in enumerate(WARM_UP, 1000):
                    given = arguments_of(load, None, directory, server.models) or []
                    found = replay(options, server.address, load, given, seed)
                    for problem in problems(found):
                        print(f"{name}: warming up: {problem}", file=sys.stderr, flush=True)
                for seed, load_name in enumerate(LOADS):
                    load = LOADS[load_name]
                    arguments = arguments_of(load, options.traces, directory, server.models)
                    if load_name not in wanted or arguments is None:
                        continue
                    found = replay(options, server.address, load, arguments, seed)
                    for problem in problems(found):
                        print(f"{name}: {load_name}: {problem}", file=sys.stderr, flush=True)
                    yield {"server": name, "shape": options.shape, "load": load_name, **found}
            except RuntimeError as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
            finally:
                server.stop()


COLUMNS = (
    "tokens/s",
    "first token p50 / p99, ms",
    "between tokens p50 / p99, ms",
    "mean between tokens p99, ms",
    "within the objective",
    "cached",
)


def figures(report: dict[str, Any]) -> list[str]:
    """What the table says of a group of requests."""

    def pair(name: str, *quantiles: str) -> str:
        found = report[name]
        return " / ".join("–" if found is None else f"{found[one]:,.1f}" for one in quantiles)

    whole = report["whole"] + report["short"] + report["truncated"] + report["errored"]
    return [
        f"{report['tokens_per_second']:,.0f}",
        pair("time_to_first_token_ms", "p50", "p99"),
        pair("inter_token_ms", "p50", "p99"),
        pair("mean_inter_token_ms", "p99"),
        f"{report['good']} of {whole}",
        f"{report['cached_tokens'] / prompts:.1%}" if (prompts := report.get("prompt_tokens")) else "–",
    ]


def table(records: Sequence[dict[str, Any]]) -> str:
    """Markdown: the servers of a load follow each other."""
    lines = [f"| load | server | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 2) + "|"]
    place = list(LOADS).index
    for record in sorted(records, key=lambda one: (one["shape"], place(one["load"]), one["server"])):
        for group, report in record.get("groups", {}).items():
            name = record["load"] if len(record["groups"]) == 1 else f"{record['load']}: {group}"
            lines.append(f"| {name} | {record['server']} | {' | '.join(figures(report))} |")
        if "error" in record:
            lines.append(f"| {record['load']} | {record['server']} | {record['error'][:80]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="small")
    parser.add_argument("--traces", type=Path, metavar="DIRECTORY", help="of Mooncake's traces")
    parser.add_argument(
        "--length-scale", type=float, help="multiplies lengths, except of traces, to try a load without a GPU"
    )
    parser.add_argument(
        "--adapters", type=int, default=0, metavar="N", help="LoRA adapters that requests share out"
    )
    parser.add_argument("--adapter-rank", type=int, default=16, metavar="N", help="their rank; default: 16")
    parser.add_argument("--load", action="append", help="only loads whose names contain this")
    parser.add_argument("--client", default="inflight", help="command of the load generator")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()), help="of the servers")
    parser.add_argument("--output", type=Path, help="a file that gets a line of JSON for each run")
    options = parser.parse_args()
    records = []
    for record in measure(options):
        records.append(record)
        if options.output is not None:
            with options.output.open("a") as file:
                file.write(json.dumps(record) + "\n")
        print(table([record]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(records))


if __name__ == "__main__":
    main()
