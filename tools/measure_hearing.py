#!/usr/bin/env python3
"""Seconds of audio that the reference executor transcribes a second, alone, with random weights.

    python tools/measure_hearing.py --shape large-v3 --batch 1 --batch 8 --batch 32

Every request has a clip of 30 s that no other has, and an answer of `--tokens`, about what is said in that
time, under the rules for timestamps of a published checkpoint; no end token ends it. `encoding` is from a
request with one token, alone, to that token: the spectrogram, the encoder, and the prompt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from inflight.executors.base import Executor, NamedTensor, Request
from inflight.executors.reference import create

SECONDS, RATE = 30, 16_000
START, ENGLISH, TRANSCRIBE, NO_TIMES = 50258, 50259, 50360, 50364
COMMON: dict[str, Any] = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "activation_function": "gelu",
    "d_model": 1280,
    "decoder_attention_heads": 20,
    "decoder_ffn_dim": 5120,
    "decoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "encoder_layers": 32,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "num_mel_bins": 128,
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 51866,
}
SHAPES: dict[str, dict[str, Any]] = {
    "large-v3": COMMON,
    "large-v3-turbo": COMMON | {"decoder_layers": 4},
    "tiny": COMMON
    | {
        "d_model": 384,
        "decoder_attention_heads": 6,
        "decoder_ffn_dim": 1536,
        "decoder_layers": 4,
        "encoder_attention_heads": 6,
        "encoder_ffn_dim": 1536,
        "encoder_layers": 4,
        "num_mel_bins": 80,
    },
}
GENERATION = {
    "no_timestamps_token_id": NO_TIMES,
    "max_initial_timestamp_index": 50,
    "suppress_tokens": [1, 2],
}


class Asking:
    """Sends clips that no other request has."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._random = np.random.default_rng(1)
        self._next = 1

    def ask(self, count: int, tokens: int) -> float:
        """Seconds from the first request to the last token of ``count``."""
        clips = [
            self._random.normal(0, 0.1, SECONDS * RATE).astype("<f4").clip(-1, 1).tobytes()
            for _ in range(count)
        ]
        requests = [
            Request(
                self._next + place,
                [START, ENGLISH, TRANSCRIBE],
                tokens,
                tensors=[NamedTensor("WAV", "FP32", (SECONDS * RATE,), clip)],
            )
            for place, clip in enumerate(clips)
        ]
        self._next += count
        begun, left = time.perf_counter(), count
        self.executor.enqueue(requests)
        while left:
            batch = self.executor.await_responses(60.0)
            if batch.errors or not len(batch.client_ids):
                raise RuntimeError(str(batch.errors or "nothing came within a minute"))
            left -= sum(batch.finals)
        return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="large-v3")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--tokens", type=int, default=112)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--option", action="append", default=[], help="NAME=VALUE of the executor")
    arguments = parser.parse_args()
    batches = arguments.batch or [1, 8, 32]
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        (directory / "config.json").write_text(json.dumps(SHAPES[arguments.shape]))
        (directory / "generation_config.json").write_text(json.dumps(GENERATION))
        options = {"max_batch_size": max(batches), "max_num_tokens": 1024, "load_format": "dummy"}
        options |= dict(one.split("=", 1) for one in arguments.option)
        begun = time.monotonic()
        executor = create(directory, arguments.device, backend="pytorch", **options)
        print(f"{arguments.shape}: ready after {time.monotonic() - begun:.0f} s", flush=True)
        asking = Asking(executor)
        asking.ask(2, 4)
        encoding = [asking.ask(1, 1) for _ in range(2 * arguments.repeat)]
        print(f"encoding: {1e3 * statistics.median(encoding):.1f} ms", flush=True)
        print("| clips at once | seconds | seconds of audio a second |\n|---|---|---|")
        for batch in batches:
            seconds = statistics.median(asking.ask(batch, arguments.tokens) for _ in range(arguments.repeat))
            print(f"| {batch} | {seconds:.2f} | {batch * SECONDS / seconds:.0f} |", flush=True)
        executor.shutdown()


if __name__ == "__main__":
    main()
