#!/usr/bin/env python3
"""How long the reference executor takes to the first token of a prompt with images, alone.

    python tools/measure_images.py --device cuda

The model has the shape of Qwen2.5-VL-7B and random weights. Each size is asked about twice, with an image
that nothing has seen before, and the same prompt again, whose blocks the KV cache has; the median of
`--repeat` such pairs is printed.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from inflight.executors.base import Executor, NamedTensor, Request
from inflight.executors.reference import create

IMAGE, TEXT = 151655, range(1000, 1064)
SHAPE: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "image_token_id": IMAGE,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 152064,
    "vision_config": {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "temporal_patch_size": 2,
    },
}
PROCESSOR = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
SIZES = ((448, 448), (1024, 1024), (1920, 1080))


def picture(width: int, height: int, seed: int) -> bytes:
    """A file that no other seed gives."""
    from PIL import Image

    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((width, height)).save(file, "JPEG")
    return file.getvalue()


def first_token(executor: Executor, number: int, seed: int, file: bytes | None) -> float:
    """Seconds to the first token of a short prompt that no other seed has, with an image if there is one."""
    prompt, tensors = [seed, *TEXT], []
    if file is not None:
        prompt.insert(8, IMAGE)
        packed = struct.pack("<I", len(file)) + file
        tensors.append(NamedTensor("inflight_images", "BYTES", (1,), packed))
    begun = time.perf_counter()
    executor.enqueue([Request(number, prompt, 1, tensors=tensors)])
    while True:
        batch = executor.await_responses(60.0)
        if batch.errors:
            raise RuntimeError(str(batch.errors))
        if len(batch.client_ids):
            return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        (directory / "config.json").write_text(json.dumps(SHAPE))
        (directory / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
        begun = time.monotonic()
        executor = create(directory, options.device, load_format="dummy", backend="pytorch")
        print(f"ready after {time.monotonic() - begun:.0f} s", flush=True)
        print("| prompt | first token, ms | the same prompt again, ms |\n|---|---|---|", flush=True)
        number = 0

        def median(files: list[bytes | None]) -> float:
            nonlocal number
            found = []
            for seed, file in enumerate(files):
                number += 1
                found.append(first_token(executor, number, seed, file))
            # The first one compiles.
            return 1000 * statistics.median(found[1:])

        print(f"| {len(TEXT)} tokens of text | {median([None] * (options.repeat + 1)):.1f} | |", flush=True)
        for width, height in SIZES:
            new = [picture(width, height, seed) for seed in range(options.repeat + 1)]
            first = median(list(new))
            again = median(list(new))
            print(f"| an image of {width} x {height} | {first:.1f} | {again:.1f} |", flush=True)
        executor.shutdown()


if __name__ == "__main__":
    main()
