#!/usr/bin/env python3
"""Perplexity of a checkpoint and of quantized copies, by the reference executor and by transformers.

    python tools/measure_perplexity.py                      # the embedded model, on the CPU
    python tools/measure_perplexity.py DIRECTORY --device cuda

The text is Python's own help (`pydoc_data.topics`), cut into windows; the first token of each is not counted.
A quantized copy is made here, rounded to the nearest number; transformers reads its twin, which has the same
numbers in float32. So both columns of a row mean the same model, and rows differ by what is rounded.
transformers' column is empty where it is not installed, PyTorch's where PyTorch is not.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from inflight.executors.base import OutputConfig, Request
from inflight.executors.reference import create
from inflight.launch.model import DEMO_DIRECTORY

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from reference.quantize import fp8, packed, quantized

_FP8_BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def _int4(group: int) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group, "symmetric": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}


#: By name: what becomes of a matrix, and its `quantization_config`.
SCHEMES: dict[str, tuple[Any, dict[str, Any]]] = {
    "FP8, a scale per tensor": (
        lambda matrix: fp8(matrix, matrix.shape, "weight_scale"),
        {"quant_method": "fp8", "activation_scheme": "dynamic"},
    ),
    "FP8 in blocks of 128": (lambda matrix: fp8(matrix, (128, 128), "weight_scale_inv"), _FP8_BLOCKS),
    "INT4 in groups of 128": (lambda matrix: packed(matrix, 128, True), _int4(128)),
    "INT4 in groups of 32": (lambda matrix: packed(matrix, 32, True), _int4(32)),
}


def windows(directory: Path, tokens: int, size: int) -> list[list[int]]:
    """The text's first ``tokens``, in windows."""
    from pydoc_data.topics import topics

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = tokenizer.encode("\n\n".join(topics[name] for name in sorted(topics))).ids[:tokens]
    return [ids[start : start + size] for start in range(0, len(ids), size) if len(ids) - start > 1]


def ours(directory: Path, parts: Sequence[list[int]], device: str, **options: Any) -> float:
    """By the log probabilities that the executor has of prompts."""
    longest = max(map(len, parts)) + 1
    executor = create(directory, device, max_seq_len=longest, max_batch_size=4, **options)
    asked = OutputConfig(num_prompt_log_probs=0, return_log_probs=True)
    requests = [Request(key, part, 1, output_config=asked) for key, part in enumerate(parts)]
    executor.enqueue(requests)
    total, left = 0.0, len(parts)
    while left:
        rows = executor.await_responses(60.0)
        if rows.errors:
            raise SystemExit(f"error: {rows.errors}")
        for _, values, *_ in rows.prompt_log_probs:
            total -= float(np.frombuffer(values, "<f4")[1:].sum(dtype=np.float64))
        left -= sum(rows.finals)
    executor.shutdown()
    return math.exp(total / sum(len(part) - 1 for part in parts))


def theirs(directory: Path, parts: Sequence[list[int]], device: str) -> float:
    """transformers', in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).to(device).eval()
    total = 0.0
    with torch.inference_mode():
        for part in parts:
            ids = torch.tensor([part], device=device)
            log_probs = model(ids).logits[0, :-1].double().log_softmax(-1)
            total -= float(log_probs.gather(1, ids[0, 1:, None]).sum())
    return math.exp(total / sum(len(part) - 1 for part in parts))


def main() -> None:
    """Prints one row a model as it is measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, nargs="?", default=DEMO_DIRECTORY, help="in bfloat16")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--tokens", type=int, default=20_000, help="of the text")
    parser.add_argument("--window", type=int, default=1024, help="tokens that are seen at once")
    arguments = parser.parse_args()
    directory, device = arguments.directory, arguments.device
    parts = windows(directory, arguments.tokens, arguments.window)
    has_torch = importlib.util.find_spec("torch") is not None
    has_transformers = importlib.util.find_spec("transformers") is not None
    # NumPy's is the CPU's: on a GPU, float32 stands for it.
    exact: dict[str, Any] = {"backend": "numpy"} if device == "cpu" else {"dtype": "float32"}
    print(f"{sum(map(len, parts)):,} tokens in windows of {arguments.window}")
    print("| model | float32 | transformers, float32 | PyTorch, bfloat16 | and an FP8 cache |")
    print("|---|---|---|---|---|")

    def row(name: str, own: Path, twin: Path) -> None:
        figures = [ours(own, parts, device, **exact)]
        figures.append(theirs(twin, parts, device) if has_transformers else math.nan)
        for cache in ("auto", "fp8"):
            narrow = {"backend": "pytorch", "dtype": "bfloat16", "kv_cache_dtype": cache}
            figures.append(ours(own, parts, device, **narrow) if has_torch else math.nan)
        cells = ("" if math.isnan(one) else f"{one:.4f}" for one in figures)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)

    row("as it is stored", directory, directory)
    for name, scheme in SCHEMES.items():
        with tempfile.TemporaryDirectory() as folder:
            own, twin = quantized(directory, scheme, Path(folder) / "made")
            row(name, own, twin)


if __name__ == "__main__":
    main()
