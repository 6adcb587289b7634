#!/usr/bin/env python3
"""Tokens per second of the reference executor alone: all requests at once, no gateway, no worker.

    python tools/benchmark_executor.py --shape small --shape 8b --batch 1 --batch 64 --batch 256

Weights are random (``load_format`` `dummy`), or those of the checkpoint that ``--model`` names. Prompts are
random tokens, and no end token ends an output. A run is from the first request handed in to the last token,
prompts included; the best of ``--repeat``.

How tokens are chosen is a case; the speed of each is printed also as a share of the first one's. Every
request has another seed, and the cases take turns:

    python tools/benchmark_executor.py --batch 256 --case greedy --case top-p --case penalties --case all

So are LoRA adapters on all linear layers, mixed over the requests; their weights are random and in memory:

    python tools/benchmark_executor.py --shape 8b --batch 64 --adapters 0 --adapters 1 --adapters 32 \\
        --adapter-rank 16 --option lora_cache_gpu_memory_fraction=0.9 \\
        --option max_tokens_in_paged_kv_cache=131072

With ``--vllm PYTHON``, the interpreter of an environment that has vLLM, vLLM's engine runs the same before
ours (`benchmark_vllm.py`), and a table shows both:

    python tools/benchmark_executor.py --device cuda --shape 8b --shape 30b-a3b --vllm /opt/vllm/bin/python

With ``--write DIRECTORY`` nothing runs: the shape becomes a model directory for the whole path,

    inflight serve DIRECTORY --device cuda --executor-option load_format=dummy
    inflight bench load 127.0.0.1:8000 --streams 256 --prompt-tokens 100 --requests 1024 --warmup 256

with the embedded model's tokenizer, filled up with made-up words to the shape's vocabulary. Such a directory
also serves `--guide`, which needs a tokenizer:

    python tools/benchmark_executor.py --model DIRECTORY --guide --option load_format=dummy \\
        --option backend=pytorch
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from generation_cases import CASES, prompts_of
from inflight.executors.base import Executor, NamedTensor, Request
from inflight.executors.reference import create
from inflight.executors.reference.core.adapters import Loaded, Named, task_id_of
from inflight.executors.reference.model.config import ModelConfig, load_config
from inflight.executors.reference.model.lora import Adapter, Delta, Part, Slot, named_slots
from shapes import QUANTIZATIONS, SHAPES, write_config, write_model

#: Tokens per second by shape, batch and case.
Speeds = dict[tuple[str, int, str], float]

#: A long list of small objects: keys, numbers, enumerations and free text by turns, and no end in sight.
GUIDE = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["city", "river", "mountain"]},
            "size": {"type": "integer", "minimum": 0, "maximum": 10**9},
        },
        "required": ["name", "kind", "size"],
        "additionalProperties": False,
    },
}


def random_adapter(name: str, config: ModelConfig, rank: int, pool: Any) -> Adapter:
    """On all linear layers. Matrices are parts of ``pool``, from places that the name decides: those of many
    adapters would fill the host's memory."""
    draw = random.Random(name)

    def drawn(rows: int, columns: int) -> Any:
        start = draw.randrange(len(pool) - rows * columns)
        return pool[start : start + rows * columns].reshape(rows, columns)

    slots = named_slots(config).values()
    layers: list[dict[Part, list[Delta]]] = []
    nbytes = 0
    for _ in range(config.num_layers):
        layer: dict[Part, list[Delta]] = {}
        for slot in slots:
            delta = Delta(slot, drawn(rank, slot.inputs), drawn(slot.outputs, rank))
            layer.setdefault(slot.part, []).append(delta)
            nbytes += delta.down.nbytes + delta.up.nbytes
        layers.append(layer)
    return Adapter(task_id_of(name), layers, name.encode(), nbytes)


def install_adapters(executor: Any, count: int, rank: int, config: ModelConfig) -> None:
    """Adapters with the names `1` and so on, as if they had been read from files."""

    def elements(slot: Slot) -> int:
        return rank * max(slot.inputs, slot.outputs)

    most = max(elements(slot) for slot in named_slots(config).values())
    pool = np.random.default_rng(0).normal(0, 0.02, 2 * most).astype(np.float32)
    for number in range(1, count + 1):
        adapter = random_adapter(str(number), config, rank, pool)
        named = Named(str(number), adapter.task_id, Path(str(number)))
        executor._adapters.install(Loaded(adapter, named))


def run(
    executor: Executor,
    batch: int,
    inputs: int,
    outputs: int,
    case: str,
    adapters: int,
    tensors: list[NamedTensor],
    turn: int,
) -> tuple[float, float]:
    """Seconds from handing in requests for ``batch`` sequences to their last token, and CPU seconds of the
    process. Requests take turns with ``adapters``; each ``turn`` has other prompts."""
    prompts = prompts_of(batch, case, inputs, executor.info().vocab_size, turn)
    requests = [Request(one, prompt, outputs) for one, prompt in enumerate(prompts)]
    count = len(requests)
    fields, sampling, output = CASES[case]
    for seed, request in enumerate(requests):
        request.tensors = list(tensors)
        if adapters:
            task_id = struct.pack("<Q", 1 + seed % adapters)
            request.tensors.append(NamedTensor("lora_task_id", "UINT64", (1,), task_id))
        request.sampling_config.seed = seed
        for subject, values in (
            (request, fields),
            (request.sampling_config, sampling),
            (request.output_config, output),
        ):
            for name, value in values.items():
                setattr(subject, name, value)
        request.sampling_config.num_return_sequences = batch // count
    left = count
    tokens = 0
    started, cpu_started = time.perf_counter(), time.process_time()
    executor.enqueue(requests)
    while left:
        rows = executor.await_responses(10.0)
        left -= sum(rows.finals)
        tokens += len(rows.token_ids) // 4
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    if tokens != batch // count * count * outputs:
        raise RuntimeError(f"{tokens} tokens came and {batch // count * count * outputs} were asked for")
    return seconds, cpu_seconds


def measure(
    executor: Executor,
    shape: str,
    batch: int,
    cases: list[str],
    arguments: argparse.Namespace,
    tensors: list[NamedTensor],
) -> Speeds:
    """Prints the best run of each case. The cases take turns, so that a slow moment is not all one case's.
    Returns the speeds without adapters."""
    kinds = list(itertools.product(cases, arguments.adapters or [0]))
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
    for case, adapters in kinds:
        run(executor, batch, arguments.input, 8, case, adapters, tensors, 0)
    turns = itertools.product(range(arguments.repeat), kinds)
    for turn, (_, kind) in enumerate(turns, 1):
        case, adapters = kind
        executor.stats()
        times = run(executor, batch, arguments.input, arguments.output, case, adapters, tensors, turn)
        latencies = sorted(float(one["iterLatencyMS"]) for one in executor.stats())
        found[kind].append((*times, latencies[len(latencies) // 2]))
    rank = arguments.adapter_rank
    names = {
        (case, adapters): f"{case}, {adapters} adapters of rank {rank}" if adapters else case
        for case, adapters in kinds
    }
    first = min(found[kinds[0]])[0]
    speeds: Speeds = {}
    for kind, runs in found.items():
        best, cpu, median = (min(values) for values in zip(*runs, strict=True))
        if not kind[1]:
            speeds[shape, batch, kind[0]] = batch * arguments.output / best
        print(
            f"{shape}: batch {batch}: {names[kind]}: {batch * arguments.output / best:,.0f} tokens/s, "
            f"{first / best:.2f} of {names[kinds[0]]}, "
            f"median iteration {median:.2f} ms, {batch * arguments.output / cpu:,.0f} tokens/CPU s",
            flush=True,
        )
    return speeds


def measure_vllm(shape: str, directory: Path, arguments: argparse.Namespace) -> Speeds:
    """The same in the environment of vLLM, which prints its own rows. Its process has given the GPU's memory
    back when this returns."""
    results = directory / "vllm.jsonl"
    command = [arguments.vllm, str(Path(__file__).with_name("benchmark_vllm.py")), str(directory)]
    command += ["--name", shape, "--results", str(results)]
    for name in ("input", "output", "repeat"):
        command += [f"--{name}", str(getattr(arguments, name))]
    for name, values in (
        ("batch", arguments.batch),
        ("case", arguments.case),
        ("option", arguments.vllm_option),
    ):
        for value in values:
            command += [f"--{name}", str(value)]
    if status := subprocess.run(command, check=False).returncode:
        print(f"{shape}: vLLM ended with exit status {status}", file=sys.stderr, flush=True)
    lines = results.read_text().splitlines() if results.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row["shape"], row["batch"], row["case"]): row["speed"] for row in rows}


def print_table(ours: Speeds, others: Speeds) -> None:
    """One row a cell, in Markdown."""
    print(
        "\n| shape | batch | case | Inflight, tokens/s | vLLM, tokens/s | ratio |\n|---|---|---|---|---|---|"
    )
    for (shape, batch, case), speed in ours.items():
        other = others.get((shape, batch, case))
        cells = ("–", "–") if other is None else (f"{other:,.0f}", f"{speed / other:.2f}")
        print(f"| {shape} | {batch} | {case} | {speed:,.0f} | {cells[0]} | {cells[1]} |", flush=True)


def measure_shape(
    shape: str,
    directory: Path,
    options: dict[str, Any],
    arguments: argparse.Namespace,
    tensors: list[NamedTensor],
) -> Speeds:
    """Loads what ``directory`` holds and measures it."""
    started = time.perf_counter()
    executor = create(directory, arguments.device, **options)
    print(f"{shape}: ready after {time.perf_counter() - started:.1f} s", flush=True)
    if arguments.adapters:
        install_adapters(executor, max(arguments.adapters), arguments.adapter_rank, load_config(directory))
    speeds: Speeds = {}
    for batch in arguments.batch:
        speeds |= measure(executor, shape, batch, arguments.case, arguments, tensors)
    executor.shutdown()
    return speeds


def release_memory() -> None:
    """Gives the GPU's memory back, for the next shape and for vLLM."""
    gc.collect()
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", action="append", choices=sorted(SHAPES), help="default: small")
    parser.add_argument("--quantization", choices=sorted(QUANTIZATIONS), help="of the shapes' weights")
    parser.add_argument("--model", type=Path, metavar="DIRECTORY", help="a checkpoint instead of shapes")
    parser.add_argument("--batch", action="append", type=int, help="requests at once; default: 1, 64, 256")
    parser.add_argument("--input", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens of an output")
    parser.add_argument("--repeat", type=int, default=3, help="runs, of which the best counts")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument(
        "--case", action="append", choices=list(CASES), help="how tokens are chosen; default: greedy"
    )
    parser.add_argument(
        "--adapters", action="append", type=int, help="LoRA adapters that requests share out; default: 0"
    )
    parser.add_argument("--adapter-rank", type=int, default=16, help="their rank; default: 16")
    parser.add_argument("--guide", action="store_true", help="guide every output by a JSON schema")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the executor")
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vLLM, to measure it as well")
    parser.add_argument(
        "--vllm-option", action="append", default=[], metavar="NAME=JSON", help="of `vllm.LLM`"
    )
    parser.add_argument("--write", type=Path, metavar="DIRECTORY", help="write a model to serve, run nothing")
    arguments = parser.parse_args()
    if arguments.write is not None:
        write_model((arguments.shape or ["small"])[0], arguments.write)
        return
    if arguments.vllm and (arguments.model or arguments.adapters or arguments.guide):
        parser.error("--vllm measures shapes, without --model, --adapters and --guide")
    arguments.batch = arguments.batch or [1, 64, 256]
    arguments.case = arguments.case or ["greedy"]
    guide = [("guide_type", b"json_schema"), ("guide", json.dumps(GUIDE).encode())]
    tensors = [
        NamedTensor(f"guided_decoding_{name}", "BYTES", (1,), struct.pack("<I", len(text)) + text)
        for name, text in guide
        if arguments.guide
    ]
    options: dict[str, Any] = {
        "max_batch_size": max(arguments.batch),
        # Repeated runs send the same prompts, which must be computed each time.
        "enable_kv_cache_reuse": False,
    }
    if arguments.model is None:
        options |= {"load_format": "dummy", "backend": "pytorch"}
    if arguments.adapters:
        # Those of `install_adapters` share their memory.
        options |= {"lora_cache_host_memory_bytes": 1 << 50}
        options |= {"lora_cache_max_adapter_size": arguments.adapter_rank}
    for name, _, value in (option.partition("=") for option in arguments.option):
        options[name] = int(value) if value.isdecimal() else value
    ours: Speeds = {}
    others: Speeds = {}
    for shape in [arguments.model.name] if arguments.model else arguments.shape or ["small"]:
        with tempfile.TemporaryDirectory() as directory:
            if arguments.model is None:
                write_config(shape, Path(directory), arguments.quantization)
            if arguments.vllm:
                others |= measure_vllm(shape, Path(directory), arguments)
            ours |= measure_shape(shape, arguments.model or Path(directory), options, arguments, tensors)
            release_memory()
    if arguments.vllm:
        print_table(ours, others)


if __name__ == "__main__":
    main()
