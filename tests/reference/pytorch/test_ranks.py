"""Two ranks on PyTorch say what one does: over gloo on the CPU, over NCCL where there are two GPUs.

torchrun starts the ranks, which are this file as a program: it comes with PyTorch and needs no MPI.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.executors.base import Executor, OutputConfig, Request, SamplingConfig
from inflight.executors.reference import create

FIXTURES = Path(__file__).parents[1] / "fixtures"
RANKS_S = 110


def requests(vocab_size: int) -> list[Request]:
    """Greedy and sampled ones, beams, and one that is told of its prompt and its logits."""
    draw = np.random.default_rng(1)
    made = []
    for client_id in range(12):
        prompt = draw.integers(3, vocab_size, size=int(draw.integers(1, 40))).tolist()
        one = Request(client_id, prompt, 10, streaming=False)
        if client_id % 3 == 1:
            one.sampling_config = SamplingConfig(top_p=0.9, temperature=2.0, seed=client_id)
        elif client_id % 3 == 2:
            one.sampling_config = SamplingConfig(beam_width=3)
        elif client_id == 6:
            one.output_config = OutputConfig(
                return_log_probs=True, num_prompt_log_probs=1, return_context_logits=True
            )
        made.append(one)
    return made


def answer(directory: str, device: str, dtype: str) -> dict[str, Any]:
    """The tokens of every sequence, and the log probabilities of a prompt; on a rank above 0 it ends here."""
    options = {
        "backend": "pytorch",
        "dtype": dtype,
        "max_batch_size": 8,
        "max_num_tokens": 48,
        "tokens_per_block": 4,
        "max_seq_len": 128,
        "max_tokens_in_paged_kv_cache": 2000,
    }
    executor = create(directory, device, **options)
    asked = requests(executor.info().vocab_size)
    told: dict[str, Any] = {"tokens": {}, "prompt": []}
    take(executor, asked, told)
    # Again, from their fourth token on: the ranks compute as context what they generated before.
    resumed: dict[str, Any] = {"tokens": {}, "prompt": []}
    told["resumed"] = resumed
    searching = [one.client_id for one in asked if one.sampling_config.beam_width > 1]
    parts = [
        replace(one, generated=[told["tokens"][str((one.client_id, 0))][:4]])
        for one in asked
        if one.client_id not in searching
    ]
    take(executor, parts, resumed)
    executor.shutdown()
    return told


def take(executor: Executor, asked: list[Request], told: dict[str, Any]) -> None:
    """Adds the answers to ``told``."""
    executor.enqueue(asked)
    left = len(asked)
    while left:
        rows = executor.await_responses(10.0)
        if rows.errors:
            raise RuntimeError(str(rows.errors))
        ids, offsets = np.frombuffer(rows.client_ids, "<u8"), np.frombuffer(rows.token_offsets, "<u4")
        indices, tokens = np.frombuffer(rows.sequence_index, "<i4"), np.frombuffer(rows.token_ids, "<i4")
        for row, key in enumerate(zip(ids.tolist(), indices.tolist(), strict=True)):
            own = tokens[offsets[row] : offsets[row + 1]].tolist()
            told["tokens"].setdefault(str(key), []).extend(own)
        for _, values, *_ in rows.prompt_log_probs:
            told["prompt"] = np.frombuffer(values, "<f4")[1:].tolist()
        left -= sum(rows.finals)


def run_ranks(count: int, *arguments: str) -> dict[str, Any]:
    """What rank 0 of so many prints."""
    launcher = [sys.executable]
    if count > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run([*launcher, __file__, *arguments], capture_output=True, text=True, timeout=RANKS_S)
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = [one for one in done.stdout.splitlines() if one.startswith("{")]
    told: dict[str, Any] = json.loads(line)
    return told


def devices() -> list[Any]:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
    too_few = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two NVIDIA GPUs")
    return [
        pytest.param("cpu", "float32"),
        pytest.param("cuda", "float32", marks=too_few),
        pytest.param("cuda", "bfloat16", marks=too_few),
    ]


@pytest.mark.parametrize(("device", "dtype"), devices())
@pytest.mark.parametrize(
    "name", ["llama", "qwen2_tied", "gemma2", "mixtral", "gpt_oss", "deepseek_v2", "deepseek_v3"]
)
def test_two_ranks_say_what_one_does(name: str, device: str, dtype: str) -> None:
    arguments = (str(FIXTURES / name), device, dtype)
    one, two = run_ranks(1, *arguments), run_ranks(2, *arguments)
    if dtype == "float32":
        assert two["tokens"] == one["tokens"]
        assert {key: one["tokens"][key][4:] for key in one["resumed"]["tokens"]} == two["resumed"]["tokens"]
        assert two["resumed"]["prompt"]
    assert two["tokens"].keys() == one["tokens"].keys()
    ours, theirs = np.array(two["prompt"]), np.array(one["prompt"])
    # Eight bits of bf16 through a few layers, in another order of sums.
    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    assert error < (1e-5 if dtype == "float32" else 2e-2)


if __name__ == "__main__":
    print(json.dumps(answer(*sys.argv[1:])))
