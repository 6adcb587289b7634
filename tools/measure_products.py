#!/usr/bin/env python3
"""How fast the reference executor's products, experts and loading are on a GPU, each by itself.

    python tools/measure_products.py products          Llama-3.1-8B's matrices, by format and rows
    python tools/measure_products.py tune              the tables of `pytorch/cuts.py`
    python tools/measure_products.py experts           a mixture's layer: grouped, and expert by expert
    python tools/measure_products.py loading           a checkpoint of Llama-3.1-8B's shape, warm

Times are medians of runs that find nothing in the GPU's cache.
"""

# ruff: noqa: B023 -- what is timed is called at once

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import random
import struct
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional

from inflight.executors.reference.model.compressed import Compressed
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.tensors import required_tensors
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights
from inflight.executors.reference.pytorch import compressed, cuts, kernels, operations
from inflight.executors.reference.pytorch.model import TorchModel
from inflight.executors.reference.pytorch.narrow_kernels import library_product, narrow_product, quantized
from inflight.executors.reference.pytorch.product_kernels import product
from inflight.executors.reference.pytorch.weights import DeviceWeights
from inflight.model.quantization import MXFP4_GROUP
from shapes import write_config

Tensor = Any

#: Outputs and inputs of an 8B layer's products.
MATRICES = {"qkv": (6144, 4096), "output": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
ROWS = (1, 16, 64, 256, 1024, 8192)

#: More than a GPU's cache holds, and copies of a matrix at most.
_CACHE_BYTES = 128 << 20
_COPIES = 8


def median_us(compute: Callable[[int], Any], size: int) -> float:
    """Microseconds of the median run, from a graph of runs; ``compute`` takes the number of a run, and each
    touches ``size`` bytes of its own."""
    runs = max(2, min(_COPIES, -(-_CACHE_BYTES // size)))
    for run in range(runs):
        compute(run)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in range(runs):
            compute(run)
    times = []
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / runs)
    return float(sorted(times)[len(times) // 2])


@functools.cache
def matrix(kind: str, outputs: int, inputs: int, copy: int = 0) -> Tensor:
    """A random matrix on the GPU."""
    if copy:
        return copied(matrix(kind, outputs, inputs))
    device = torch.device("cuda")
    if kind == "bf16":
        return torch.randn(outputs, inputs, device=device).mul_(inputs**-0.5).bfloat16()
    if kind.startswith("fp8"):
        weight = (16 * torch.randn(outputs, inputs, device=device)).clamp(-448, 448).to(torch.float8_e4m3fn)
        rows, columns = (1, inputs) if kind == "fp8" else (128, 128)
        scales = torch.full((-(-outputs // rows), -(-inputs // columns)), inputs**-0.5 / 16, device=device)
        return compressed.Fp8Matrix(weight, scales, rows, columns)
    quants = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, device=device)
    shape = (inputs // 128, outputs)
    scales = torch.full(shape, inputs**-0.5 / 4.6, device=device).half()
    words = compressed.with_zeros(scales, torch.full_like(scales, 8))
    return compressed.Int4Matrix(compressed.tiled(quants, 128), words, 128)


def copied(weight: Tensor) -> Tensor:
    """The same elsewhere."""
    if isinstance(weight, torch.Tensor):
        return weight.clone()
    return dataclasses.replace(weight, weight=weight.weight.clone())


#: The stored forms of `cuts.CUTS`, and the rows that stand for each of its sizes. One row of FP8 and more
#: than 64 have other products.
STORED = {"fp8": ("fp8", "fp8-block"), "int4": ("int4",)}
TUNED_ROWS: dict[str, dict[int, tuple[int, ...]]] = {
    "fp8": {16: (16,), 64: (64,)},
    "int4": {16: (1, 16), 64: (64,), 128: (128, 256)},
}

#: Outputs and warps that are tried for each size of `cuts.CUTS`.
SHAPES = {
    16: ((64, 1), (64, 2), (64, 4), (128, 2), (128, 4), (128, 8)),
    64: ((64, 4), (128, 4), (128, 8), (256, 8)),
    128: ((64, 4), (128, 8), (128, 4)),
}

#: Outputs, rows and warps that are tried for each size of `cuts.NARROW_CUTS`.
_NARROW_MANY = ((64, 128, 4), (128, 128, 8), (128, 64, 4), (256, 64, 8))
NARROW_SHAPES = {64: ((64, 64, 4), (128, 64, 4), (128, 64, 8)), 128: _NARROW_MANY, 256: _NARROW_MANY}


def tasks_of_tuning() -> list[tuple[Any, ...]]:
    """What is tried: the entry of the table, its value, and the products that are timed for it."""
    found: list[tuple[Any, ...]] = []
    for name in ("gate_up", "down"):
        wide = name == "gate_up"
        for stored, kinds in STORED.items():
            for size, rows in TUNED_ROWS[stored].items():
                for outputs, warps in SHAPES[size]:
                    for stages in (3, 5) if size == 16 else (3, 4):
                        for programs in (132, 264, 528):
                            cut = (outputs, warps, stages, programs)
                            found.append((("CUTS", (stored, size, wide)), cut, kinds, name, rows))
        for by_row in (True, False):
            kind = "fp8" if by_row else "fp8-block"
            for most in (64, 128, 256):
                entry = ("NARROW_CUTS", (by_row, most, wide))
                rows = (32, 64) if most == 64 else (most,)
                found.append((entry, None, (kind,), name, rows))
                for outputs, tile, warps in NARROW_SHAPES[most]:
                    for stages in (3, 4, 6) if most == 64 else (3, 4):
                        for programs in (132,) if wide and most > 64 else (132, 264):
                            how = (outputs, tile, warps, stages, programs)
                            found.append((entry, how, (kind,), name, rows))
    return found


def product_of(task: tuple[Any, ...], kind: str, rows: int) -> tuple[Callable[[Tensor, int], Tensor], Any]:
    """A function of rows and a copy, and what the compiled kernel depends on."""
    (table, (_, size, _)), how, _, name, _ = task
    width, inputs = MATRICES[name]
    if table == "CUTS":
        cut = cuts._cut(rows, width, inputs, (how[0], size, *how[1:]))
        return lambda x, copy: product(x, matrix(kind, width, inputs, copy), cut=cut), (kind, name, cut)
    group = 128 if kind == "fp8-block" else inputs
    if how is None:
        return (
            lambda x, copy: library_product(*quantized(x, group), matrix(kind, width, inputs, copy), x.dtype)
        ), (kind, name)
    cut = cuts._cut(rows, width, inputs, how)
    return (
        lambda x, copy: narrow_product(*quantized(x, group), matrix(kind, width, inputs, copy), x.dtype, cut)
    ), (kind, name, cut, "narrow")


def _compile(task: Any) -> tuple[Any, str | None]:
    """Runs products once, so that the compiled kernels are found later; what went wrong."""
    try:
        if len(task) == 3:
            kind, name, rows = task
            x = torch.randn(rows, MATRICES[name][1], device="cuda").bfloat16()
            kernels.linear(x, matrix(kind, *MATRICES[name]))
        else:
            *task, kind, rows = task
            x = torch.randn(rows, MATRICES[task[3]][1], device="cuda").bfloat16()
            product_of(tuple(task), kind, rows)[0](x, 0)
        torch.cuda.synchronize()
    except Exception as error:
        return task, f"{type(error).__name__}: {str(error)[:120]}"
    return task, None


def compile_all(tasks: list[Any]) -> None:
    """Compiles in parallel, and says what failed."""
    random.Random(1).shuffle(tasks)
    with ProcessPoolExecutor(min(14, os.cpu_count() or 1), get_context("spawn")) as pool:
        failed = [str(one)[:240] for one in pool.map(_compile, tasks, chunksize=2) if one[1]]
    print(f"{len(tasks)} compiled, {len(failed)} failed", *failed[:6], sep="\n", flush=True)


def tune(arguments: argparse.Namespace) -> None:
    """Prints the tables of `cuts` with the fastest of what is tried; writes them to ``--output``."""
    tasks = tasks_of_tuning()
    once = {
        (product_of(task, kind, rows)[1], rows == 1): (*task, kind, rows)
        for task in tasks
        for kind in task[2]
        for rows in task[4]
    }
    compile_all(list(once.values()))
    timed: dict[Any, list[tuple[float, Any]]] = {}
    for task in tasks:
        entry, how, kinds, name, all_rows = task
        total = 0.0
        try:
            for kind in kinds:
                for rows in all_rows:
                    x = torch.randn(rows, MATRICES[name][1], device="cuda").bfloat16()
                    run, _ = product_of(task, kind, rows)
                    size = matrix(kind, *MATRICES[name]).nbytes
                    total += median_us(lambda copy: run(x, copy), size)
        except Exception as error:
            print(f"{task}: {str(error)[:100]}")
            continue
        timed.setdefault(entry, []).append((total, how))
    lines: dict[str, list[str]] = {}
    for (table, key), found in timed.items():
        found.sort(key=lambda one: one[0])
        lines.setdefault(table, []).append(f"    {key!r}: {found[0][1]!r},")
        best = ", ".join(f"{how} {us:.1f}" for us, how in found[:3])
        library = next((f"; PyTorch's {us:.1f}" for us, how in found if how is None), "")
        print(f"{table} {key}: {best}{library}; worst {found[-1][0]:.1f}", flush=True)
    text = "".join(f"{table} = {{\n" + "\n".join(rows) + "\n}\n" for table, rows in lines.items())
    if arguments.output is not None:
        arguments.output.write_text(text)


def linear(kind: str, shape: tuple[int, int], x: Tensor, copy: int) -> Tensor:
    """A product as the model computes it."""
    return kernels.linear(x, matrix(kind, *shape, copy))


def measure_products(_arguments: argparse.Namespace) -> None:
    """Prints microseconds by format, matrix and rows."""
    kinds = ("bf16", "fp8", "fp8-block", "int4")
    compile_all([(kind, name, rows) for kind in kinds[1:] for name in MATRICES for rows in ROWS])
    for name, shape in MATRICES.items():
        for rows in ROWS:
            x = torch.randn(rows, shape[1], device="cuda").bfloat16()
            found = {
                kind: median_us(
                    functools.partial(linear, kind, shape, x),
                    matrix(kind, *shape).nbytes,
                )
                for kind in kinds
            }
            print(
                f"{name} {rows}: " + ", ".join(f"{kind} {us:.1f}" for kind, us in found.items()), flush=True
            )


def every_expert(x: Tensor, scores: Tensor, gate_up: Tensor, down: Tensor, chosen: int) -> Tensor:
    """Every expert computes every row: what a graph can do without sorting."""
    best, shares = operations.choose_experts(scores, chosen)
    by_expert = torch.zeros(scores.shape, dtype=torch.float32, device=x.device)
    by_expert.scatter_(1, best, shares)
    mixed = torch.zeros_like(x, dtype=torch.float32)
    for expert in range(scores.shape[1]):
        inner = kernels.activate(functional.linear(x, gate_up[expert]), "silu", True)
        mixed += functional.linear(inner, down[expert]) * by_expert[:, expert, None]
    return mixed.to(x.dtype)


def plain(experts: int, outputs: int, inputs: int) -> Tensor:
    """Matrices of experts in 16 bits."""
    return torch.randn(experts, outputs, inputs, device="cuda").mul_(inputs**-0.5).bfloat16()


def compressed_experts(kind: str, experts: int, outputs: int, inputs: int) -> Tensor:
    """The same in a format of `matrix`."""
    return compressed.stacked([matrix(kind, outputs, inputs, 1) for _ in range(experts)])


def mxfp4(experts: int, outputs: int, inputs: int) -> Tensor:
    """The same in MXFP4, as read from a checkpoint."""
    groups = (experts, outputs, inputs // MXFP4_GROUP)
    parts = {
        "weight": torch.randint(0, 256, (*groups, MXFP4_GROUP // 2), dtype=torch.uint8, device="cuda"),
        "scale": torch.full(groups, 120, dtype=torch.uint8, device="cuda"),
    }
    how = Compressed("mxfp4", (experts, inputs, outputs), {}, (1, MXFP4_GROUP))
    return compressed.load(how, parts.__getitem__)


def measure_experts(_arguments: argparse.Namespace) -> None:
    """Prints microseconds of a layer's experts by rows."""
    for name, experts, chosen, hidden, inner, made in (
        ("Qwen3-30B-A3B's", 128, 8, 2048, 768, plain),
        ("Qwen3-30B-A3B's in FP8", 128, 8, 2048, 768, functools.partial(compressed_experts, "fp8")),
        ("Qwen3-30B-A3B's in INT4", 128, 8, 2048, 768, functools.partial(compressed_experts, "int4")),
        ("Mixtral-8x7B's", 8, 2, 4096, 14336, plain),
        ("gpt-oss-20b's", 32, 4, 2880, 2880, mxfp4),
    ):
        gate_up, down = made(experts, 2 * inner, hidden), made(experts, hidden, inner)
        for rows in (1, 16, 64, 256, 1024, 2048, 8192):
            x = torch.randn(rows, hidden, device="cuda").bfloat16()
            scores = torch.randn(rows, experts, device="cuda").bfloat16()
            size = _CACHE_BYTES  # of the matrices; two runs
            found = {
                "grouped": median_us(
                    lambda _: kernels.experts(x, scores, gate_up, down, chosen, "silu"),
                    size,
                )
            }
            if rows <= 2048 and made is plain:
                found["every expert"] = median_us(
                    lambda _: every_expert(x, scores, gate_up, down, chosen),
                    size,
                )
            found["loop over the chosen"] = seconds_of(
                lambda: operations.experts(x, scores, gate_up, down, chosen, "silu")
            )
            print(
                f"{name}, {rows} rows: " + ", ".join(f"{one} {us:.0f} us" for one, us in found.items()),
                flush=True,
            )


def seconds_of(compute: Callable[[], Any]) -> float:
    """Microseconds of the median run with what the host does in between: no graph can hold it."""
    times = []
    for _ in range(4):
        torch.cuda.synchronize()
        started = time.perf_counter()
        compute()
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - started))
    return sorted(times)[1]


def write_checkpoint(directory: Path) -> int:
    """Random bytes in the tensors of Llama-3.1-8B's shape; how many."""
    write_config("8b", directory)
    config = load_config(directory)
    header, offset = {}, 0
    for name, shape in required_tensors(config):
        size = 2 * int(torch.Size(shape).numel())
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    piece = torch.randn(1 << 26).bfloat16().view(torch.uint8).numpy().tobytes()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, offset, len(piece)):
            file.write(piece[: offset - start])
    return offset


def measure_loading(arguments: argparse.Namespace) -> None:
    """Prints seconds from the files to a model on the GPU, in the page cache."""
    torch.empty(1, device="cuda")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        directory = Path(folder)
        size = write_checkpoint(directory)
        config = load_config(directory)
        for _ in range(3):
            started = time.perf_counter()
            with torch.inference_mode():
                checkpoint = CheckpointWeights.of(config, find_weights(directory))
                with closing(DeviceWeights(checkpoint, torch.device("cuda", 0), torch.bfloat16)) as weights:
                    model = TorchModel(config, weights, 8192, 32, kernels)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            print(
                f"loading: {size / 1e9:.1f} GB in {seconds:.2f} s, {size / seconds / 1e9:.1f} GB/s",
                flush=True,
            )
            del model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["products", "tune", "experts", "loading"])
    parser.add_argument("--output", type=Path, help="where tune writes its tables")
    parser.add_argument("--directory", type=Path, help="where loading writes its 16 GB")
    arguments = parser.parse_args()
    measures = {
        "products": measure_products,
        "tune": tune,
        "experts": measure_experts,
        "loading": measure_loading,
    }
    measures[arguments.what](arguments)


if __name__ == "__main__":
    main()
