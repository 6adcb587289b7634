"""Measures the gateway's endpoint picker: what a pick takes, and what it costs.

Speaks Envoy's external processing protocol to it, as a proxy does, with bodies in pieces as Envoy sends
them.

    python tools/measure_picker.py --gateway target/release/inflight-gateway [--workers 8]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import grpc

ROOT = Path(__file__).parents[1]
PROTO = ROOT / "proto" / "envoy" / "service" / "ext_proc" / "v3" / "external_processor.proto"
#: Bytes of a body in one message of Envoy's.
PIECE = 16384
#: No prompt is longer.
MAX_SEQ_LEN = 1_000_000
FULL_DUPLEX = 4
WORDS = (
    "the",
    "cache",
    "of",
    "a",
    "worker",
    "holds",
    "blocks",
    "and",
    "each",
    "has",
    "tokens",
    "in",
    "order",
)


def messages() -> Any:
    """The protocol's messages; not as a package `envoy`, which PyPI's has already."""
    made = Path(tempfile.mkdtemp())
    (made / "picker.proto").write_text(PROTO.read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{made}", f"--python_out={made}", "picker.proto"]
    subprocess.run(command, check=True)
    spec = importlib.util.spec_from_file_location("picker_pb2", made / "picker_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Process:
    """A process, what it printed, and what it uses."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []

    def address(self, pattern: str) -> str:
        """What the pattern finds in a line, once there is one."""
        assert self.process.stdout is not None
        for line in self.lines:
            if found := re.search(pattern, line):
                return found[1]
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found[1]
        raise SystemExit("".join(self.lines))

    def cpu_s(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        """Resident memory."""
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024


def wait_ready(http: str) -> None:
    """Returns once a gateway has a worker."""
    while True:
        try:
            urllib.request.urlopen(f"http://{http}/health/ready")
            return
        except OSError:
            time.sleep(0.1)


class Proxy:
    """One proxy's connection to the picker."""

    def __init__(self, address: str, pb: Any) -> None:
        self.pb = pb
        self.channel = grpc.aio.insecure_channel(address)
        self.process = self.channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )

    async def pick(self, body: bytes) -> float:
        """Asks for one request; seconds from its last piece to its endpoint."""
        pb = self.pb
        head = pb.ProcessingRequest()
        for key, value in ((":path", b"/v1/chat/completions"), (":method", b"POST")):
            head.request_headers.headers.headers.add(key=key, raw_value=value)
        head.protocol_config.request_body_mode = FULL_DUPLEX
        call = self.process()
        await call.write(head)
        for at in range(0, len(body), PIECE):
            piece = pb.ProcessingRequest()
            piece.request_body.body = body[at : at + PIECE]
            piece.request_body.end_of_stream = at + PIECE >= len(body)
            await call.write(piece)
        sent = time.perf_counter()
        answer = await call.read()
        took = time.perf_counter() - sent
        assert answer.WhichOneof("response") == "request_headers", answer
        call.cancel()
        return took


def chat(model: str, tokens: int, seed: int, shared: str = "") -> bytes:
    """A chat of about so many tokens, behind what it shares with others."""
    draw = random.Random(seed)
    text = shared + " ".join(draw.choice(WORDS) for _ in range(tokens))
    return json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()


async def paced(proxy: Proxy, bodies: list[bytes], rate: float) -> list[float]:
    """Asks for each, so many a second whatever the answers take."""
    began = time.perf_counter()
    asked = []
    for number, body in enumerate(bodies):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        asked.append(asyncio.create_task(proxy.pick(body)))
    return list(await asyncio.gather(*asked))


def server_ms(http: str) -> tuple[float, float]:
    """Picks so far, and the milliseconds that they took in all, by the picker itself."""
    text = urllib.request.urlopen(f"http://{http}/metrics").read().decode()
    name = "inflight_gateway_endpoint_pick_time_seconds"
    count = re.search(rf"^{name}_count (\S+)", text, re.MULTILINE)
    total = re.search(rf"^{name}_sum (\S+)", text, re.MULTILINE)
    assert count is not None
    assert total is not None
    return float(count[1]), 1000 * float(total[1])


def count(http: str, body: bytes) -> int:
    """Tokens of a chat."""
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"http://{http}/v1/messages/count_tokens", body, headers)
    return int(json.load(urllib.request.urlopen(asked))["input_tokens"])


async def measure(picker: Process, http: str, address: str, model: str, seconds: float) -> None:
    """Prints a row for each load."""
    proxy = Proxy(address, messages())
    await proxy.pick(chat(model, 10, 0))
    before, began = picker.cpu_s(), time.perf_counter()
    await asyncio.sleep(seconds)
    idle = (picker.cpu_s() - before) / (time.perf_counter() - began)
    print(f"idle: {idle:.4f} cores, {picker.resident_mb():.0f} MB")
    loads: list[tuple[str, float, list[bytes]]] = []
    fresh = [chat(model, 150, number) for number in range(int(500 * seconds))]
    loads.append(("500/s of 150 words", 500, fresh))
    shared = chat(model, 97_000, 1).decode()
    prefix = json.loads(shared)["messages"][0]["content"] + " "
    agents = [chat(model, 3_000, number, prefix) for number in range(int(10 * seconds))]
    loads.append(("10/s of 100,000 words, 97,000 of them shared", 10, agents))
    long = [chat(model, 100_000, 7 + number) for number in range(int(2 * seconds))]
    loads.append(("2/s of 100,000 words, none shared", 2, long))
    for name, rate, bodies in loads:
        cpu, (picks, spent), began = picker.cpu_s(), server_ms(http), time.perf_counter()
        times = sorted(await paced(proxy, bodies, rate))
        took = time.perf_counter() - began
        after, spent_after = server_ms(http)
        cores = (picker.cpu_s() - cpu) / took
        p50, p95 = statistics.median(times), times[int(0.95 * len(times))]
        inside = (spent_after - spent) / (after - picks)
        tokens = count(http, bodies[0])
        print(
            f"{name} ({tokens} tokens): {cores:.3f} cores, {picker.resident_mb():.0f} MB; to the endpoint "
            f"p50 {1000 * p50:.2f} ms, p95 {1000 * p95:.2f} ms; inside {inside:.2f} ms on average"
        )
    await proxy.channel.close()


def main() -> None:
    """Starts workers and a picker, and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    started: list[Process] = []
    try:
        options = (
            "--executor=simulated",
            "--grpc-port=0",
            "--metrics-port=0",
            "--enable-kv-cache-reuse=true",
        )
        longest = f"--max-seq-len={MAX_SEQ_LEN}"
        inflight = str(Path(sys.executable).parent / "inflight")
        for _ in range(given.workers):
            started.append(Process(inflight, "worker", "--served-model-name=m", longest, *options))
        addresses = [one.address(r"grpc://(\S+)") for one in started]
        workers = [f"--worker={address}" for address in addresses]
        ports = ("--port=0", "--endpoint-picker-port=0", "--log=info")
        picker = Process(str(given.gateway), *workers, *ports)
        started.append(picker)
        address = picker.address(r"picking endpoints on (\S+)")
        http = picker.address(r"listening on http://(\S+)")
        wait_ready(http)
        asyncio.run(measure(picker, http, address, "m", given.seconds))
    finally:
        for one in started:
            one.process.kill()


if __name__ == "__main__":
    main()
