"""The plans of the examples that people follow today, as snapshots.

`UPDATE_SNAPSHOTS=1 pytest tests/engine` writes them anew; the difference is then reviewed like code.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from .checkpoints import CONFIGS
from .shell import Shell

SNAPSHOTS = Path(__file__).parent / "snapshots"

ENCODER_DECODER_SCRIPT = "models/core/enc_dec/convert_checkpoint.py"

#: Example -> its command, with the flags of the walk-throughs in their own spelling.
EXAMPLES = {
    "gpt2-medium": (
        "--output engines/fp16/4-gpu --dtype float16 --tp_size 4 --gpt_attention_plugin float16"
        " --remove_input_padding enable --paged_kv_cache enable --gemm_plugin float16"
    ),
    "llama-2-70b": "--output llama/70B/fp16/8-gpu --dtype float16 --tp_size 4 --pp_size 2 --gemm_plugin auto",
    "mixtral-8x22b": (
        "--output mixtral/tp2ep4 --dtype float16 --tp_size 8 --moe_tp_size 2 --moe_ep_size 4"
        " --gemm_plugin float16"
    ),
    "baichuan2-13b": (
        "--output baichuan_v2_13b/fp16/1-gpu --dtype float16 --max_input_len 4096 --max_output_len 1024"
        " --remove_input_padding enable --gpt_attention_plugin float16 --enable_context_fmha enable"
        " --gemm_plugin float16 --paged_kv_cache enable --max_batch_size 64 --trust_remote_code"
    ),
    "codellama-13b": (
        "--output codellama_13b/fp16/1-gpu --dtype float16 --gemm_plugin float16 --max_input_len 4096"
        " --max_output_len 1024 --gpt_attention_plugin float16 --remove_input_padding enable"
        " --paged_kv_cache enable --context_fmha enable --max_batch_size 64"
    ),
    "t5-small": (
        "--output t5-small-engine --dtype float16 --examples-dir examples --max_batch_size 16"
        " --max_encoder_input_len 1024 --max_seq_len 201 --gemm_plugin float16"
        " --remove_input_padding enable"
    ),
}


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 convert_checkpoint.py …; trtllm-build …",
    "inflight build DIR --output OUT …",
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_plan_of_an_example_is_the_reviewed_one(example: str, as_json: bool, shell: Shell) -> None:
    shutil.copytree(CONFIGS / example, shell.folder / example)
    script = shell.folder / "examples" / ENCODER_DECODER_SCRIPT
    script.parent.mkdir(parents=True)
    script.touch()
    more = ["--json"] if as_json else []
    told = shell("build", example, "--runtime", "tensorrt", "--dry-run", *EXAMPLES[example].split(), *more)
    assert told.code == 0, told
    # The interpreter that runs example scripts lies elsewhere on every machine.
    plan = re.sub(r'[^\s"]*/bin/python[\d.]*', "python3", told.output)
    snapshot = SNAPSHOTS / f"{example}.{'json' if as_json else 'txt'}"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        snapshot.write_text(plan, encoding="utf-8")
    assert plan == snapshot.read_text(encoding="utf-8")
    assert not list(shell.folder.glob("**/.*.building"))


#: Example -> the command of its walk-through for a builder before 0.8, as it is typed there.
EARLIER = {
    "baichuan2-13b": (
        "--model_version v2_13b --dtype float16 --max_input_len 4096 --max_output_len 1024"
        " --remove_input_padding --use_gpt_attention_plugin float16 --enable_context_fmha"
        " --use_gemm_plugin float16 --output_dir baichuan_v2_13b/fp16/1-gpu --paged_kv_cache"
        " --max_batch_size 64 --trust_remote_code"
    ),
    "codellama-13b": (
        "--dtype float16 --max_input_len 4096 --max_output_len 1024 --remove_input_padding"
        " --use_gpt_attention_plugin float16 --enable_context_fmha --use_gemm_plugin float16"
        " --output_dir codellama_13b/fp16/1-gpu --paged_kv_cache --max_batch_size 64 --use_inflight_batching"
    ),
}


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 build.py --model_dir DIR --dtype float16 --use_gpt_attention_plugin float16 …",
    "inflight build DIR --output OUT --dtype float16 --use_gpt_attention_plugin float16 …",
)
@pytest.mark.parametrize("example", EARLIER)
def test_the_flags_of_earlier_builders_make_the_same_plan(example: str, shell: Shell) -> None:
    shutil.copytree(CONFIGS / example, shell.folder / example)
    plans = [
        shell("build", example, "--runtime", "tensorrt", "--dry-run", "--json", *flags.split()).json()
        for flags in (EXAMPLES[example], EARLIER[example])
    ]
    assert plans[0]["steps"] == plans[1]["steps"]
    assert plans[0]["settings"] == plans[1]["settings"]


def test_a_world_size_of_earlier_builders_is_tensor_parallelism(shell: Shell) -> None:
    shutil.copytree(CONFIGS / "baichuan2-13b", shell.folder / "baichuan")
    told = shell(
        *("build", "baichuan", "--runtime", "tensorrt", "--dry-run", "--json", "--world_size", "2"),
        *("--use_gpt_attention_plugin", "--use_gemm_plugin", "--output_dir", "out", "--trust_remote_code"),
    )
    plan = told.json()
    assert (plan["settings"]["world_size"], plan["settings"]["tp_size"]) == (2, 2)
    build = next(step["argv"] for step in plan["steps"] if step["name"] == "build")
    assert build[build.index("--gpt_attention_plugin") + 1] == "auto"
    assert not {"--world_size", "--use_inflight_batching", "--model_version"} & set(build)


def test_an_example_without_weights_stops_only_when_run(shell: Shell) -> None:
    shutil.copytree(CONFIGS / "llama-2-70b", shell.folder / "llama")
    told = shell("build", "llama", "--output", "out", "--runtime", "tensorrt")
    assert told.code == 2
    assert "`llama` has no weights" in told.errors
    assert "needs TensorRT-LLM, which is not installed" in told.errors
    assert not (shell.folder / "out").exists()


def test_an_encoder_decoder_says_that_it_needs_the_examples(shell: Shell) -> None:
    shutil.copytree(CONFIGS / "t5-small", shell.folder / "t5")
    told = shell("build", "t5", "--output", "out", "--runtime", "tensorrt", "--dry-run")
    assert told.code == 2
    assert ENCODER_DECODER_SCRIPT in told.errors
    assert "`--examples-dir`" in told.errors
