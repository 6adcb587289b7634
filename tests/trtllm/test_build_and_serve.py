"""From `inflight build` to a worker that serves what it wrote, with real processes.

For the PyTorch runtime every option that a build checked reaches its keyword of `LLM`, and what is given at
start is put in its place.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from engine.checkpoints import checkpoint_of
from engine.shell import Shell
from inflight.build.options import OPTIONS
from support.double.package import write_double, write_encoder_decoder_script
from support.http import post
from support.servers import Start, wait_ready
from support.triton import inputs, tensor, tokens
from trtllm.test_worker import Served, run_worker

#: The adapter's own, in every start.
OWN = {"skip_tokenizer_init": True, "enable_iter_perf_stats": True}

#: Model, flags, and the keywords of LLM that they must become.
BUILDS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "codellama-13b",
        "--dtype bfloat16 --tp-size 2 --pp-size 2 --cp-size 2 --max-batch-size 16 --max-input-len 96"
        " --max-seq-len 128 --max-num-tokens 512 --max-beam-width 2 --kv-cache-dtype fp8"
        " --tokens-per-block 64 --trust-remote-code --lora-target-modules attn_q"
        " --lora-target-modules attn_v --max-lora-rank 8 --gather-generation-logits",
        {
            "dtype": "bfloat16",
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "context_parallel_size": 2,
            "max_batch_size": 16,
            "max_input_len": 96,
            "max_seq_len": 128,
            "max_num_tokens": 512,
            "max_beam_width": 2,
            "kv_cache_config": {"dtype": "fp8", "tokens_per_block": 64},
            "trust_remote_code": True,
            "enable_lora": True,
            "lora_config": {"lora_target_modules": ["attn_q", "attn_v"], "max_lora_rank": 8},
            "gather_generation_logits": True,
        },
    ),
    (
        "mixtral-8x22b",
        "--tp-size 8 --moe-tp-size 2 --moe-ep-size 4 --max-seq-len 128"
        " --speculative-decoding-mode eagle --max-draft-len 3 --speculative-model draft",
        {
            "tensor_parallel_size": 8,
            "moe_tensor_parallel_size": 2,
            "moe_expert_parallel_size": 4,
            "speculative_config": {
                "class": "EagleDecodingConfig",
                "max_draft_len": 3,
                "speculative_model": "draft",
                "allow_advanced_sampling": True,
            },
        },
    ),
    (
        "codellama-13b",
        "--speculative-decoding-mode draft_target --max-draft-len 4 --speculative-model draft",
        {
            "disable_overlap_scheduler": True,
            "speculative_config": {
                "class": "DraftTargetDecodingConfig",
                "max_draft_len": 4,
                "speculative_model": "draft",
            },
        },
    ),
    (
        "codellama-13b",
        "--speculative-decoding-mode ngram --max-draft-len 4 --max-matching-ngram-size 2",
        {
            "disable_overlap_scheduler": True,
            "speculative_config": {
                "class": "NGramDecodingConfig",
                "max_draft_len": 4,
                "max_matching_ngram_size": 2,
            },
        },
    ),
    (
        "codellama-13b",
        "--speculative-decoding-mode mtp --num-nextn-predict-layers 2",
        {
            "speculative_config": {
                "class": "MTPDecodingConfig",
                "num_nextn_predict_layers": 2,
                "allow_advanced_sampling": True,
            }
        },
    ),
    (
        "codellama-13b",
        "--speculative-decoding-mode auto",
        {"disable_overlap_scheduler": True, "speculative_config": {"class": "AutoDecodingConfig"}},
    ),
]


def test_the_builds_cover_every_option_of_the_runtime() -> None:
    flags = {flag for _, given, _ in BUILDS for flag in given.split()}
    for option in OPTIONS:
        assert option.llm_args is None or option.flag in flags, option.name


def build(tmp_path: Path, model: str, flags: str, version: str = "1.2.1") -> tuple[Path, dict[str, str]]:
    """A build below `tmp_path`, and the environment in which it was made."""
    environment = write_double(tmp_path / "double", version=version, gpus=8)
    checkpoint_of(model, tmp_path / "model")
    checkpoint_of("codellama-13b", tmp_path / "draft")
    told = Shell(tmp_path, environment)(
        "build", "model", "--output", "served", "--runtime", "pytorch", *flags.split()
    )
    assert told.code == 0, told
    return tmp_path / "served", environment


def made_with(environment: dict[str, str]) -> dict[str, Any]:
    """The keywords of the LLM in the worker."""
    found: dict[str, Any] = json.loads(Path(environment["DOUBLE_ENGINES"]).read_text().splitlines()[-1])
    return found


#: Each build on 1.2.1; on 1.3 those whose drafters it changed.
ON_LINES = [("1.2.1", *case) for case in BUILDS]
ON_LINES += [("1.3.0rc26", *case) for case in BUILDS if "mtp" in case[1] or "draft_target" in case[1]]


@pytest.mark.parametrize(
    ("version", "model", "flags", "expected"), ON_LINES, ids=lambda value: str(value)[-20:]
)
def test_what_a_build_checked_reaches_the_llm(
    start: Start, tmp_path: Path, version: str, model: str, flags: str, expected: dict[str, Any]
) -> None:
    directory, environment = build(tmp_path, model, flags, version)
    served = Served(run_worker(start, directory, environment), tmp_path)
    held = made_with(environment)
    if "speculative_model" in expected.get("speculative_config", {}):
        # The worker may stand in another folder than the build.
        drafter = expected["speculative_config"] | {"speculative_model": str(tmp_path / "draft")}
        expected = expected | {"speculative_config": drafter}
    assert {name: held[name] for name in expected} == expected
    written = json.loads((directory / "llm_args.json").read_text())
    assert set(held) == {*written, *OWN, "model"}
    assert {name: held[name] for name in written if name != "speculative_config"} == {
        name: value for name, value in written.items() if name != "speculative_config"
    }
    assert held["model"] == str(directory)
    assert {name: held[name] for name in OWN} == OWN
    # The runtime serves one width.
    beams = expected.get("max_beam_width", 1)
    answer = served.client.infer(
        "tensorrt_llm", inputs([8], 2, exclude_input_in_output=True, beam_width=beams)
    )
    assert answer.as_numpy("output_ids").tolist() == [[[9, 10]] * beams]
    # What is sampled inside the model, and beams, have no log probabilities.
    without = beams > 1 or "allow_advanced_sampling" in expected.get("speculative_config", {})
    # In 1.3 a draft model is part of the target's engine.
    without = without or (version != "1.2.1" and "draft_target" in flags)
    refusal: AbstractContextManager[Any] = (
        pytest.raises(InferenceServerException, match="log") if without else nullcontext()
    )
    with refusal:
        served.client.infer("tensorrt_llm", inputs([8], 2, return_log_probs=True, beam_width=beams))
    served.client.close()


def test_serve_answers_from_what_was_built(start: Start, tmp_path: Path) -> None:
    directory, environment = build(tmp_path, "codellama-13b", "--max-batch-size 16 --max-seq-len 64")
    process = start(
        "serve", str(directory), "--executor=tensorrt_llm", "--served-model-name=it", "--port=0",
        "--grpc-port=0", "--metrics-port=0", environment=environment,
    )  # fmt: skip
    answer = post(wait_ready(process), "/v1/completions", {"model": "it", "prompt": [8], "max_tokens": 3})
    assert answer.status == 200, answer
    assert answer.json()["usage"]["completion_tokens"] == 3
    held = made_with(environment)
    assert (held["max_batch_size"], held["max_seq_len"]) == (16, 64)


def build_engine(tmp_path: Path, model: str, *flags: str) -> tuple[Path, dict[str, str]]:
    """An engine below `tmp_path`, and an environment in which a worker may serve it."""
    environment = write_double(tmp_path / "double")
    checkpoint_of(model, tmp_path / "model")
    told = Shell(tmp_path, environment)("build", "model", "--output", "engine", *flags)
    assert told.code == 0, told
    return tmp_path / "engine", environment


def test_an_engine_that_was_built_is_served(start: Start, tmp_path: Path) -> None:
    directory, environment = build_engine(
        tmp_path, "gpt2-medium", "--max-batch-size=8", "--max-seq-len=64", "--gather-context-logits"
    )
    served = Served(run_worker(start, directory, environment), tmp_path)
    held = made_with(environment)
    assert (held["model_path"], held["model_type"]) == (str(directory), "DECODER_ONLY")
    wanted = tensor("return_context_logits", [[True]], "BOOL")
    made = [*inputs([8], 2, exclude_input_in_output=True), wanted]
    answer = served.client.infer("tensorrt_llm", made)
    assert tokens(answer) == [9, 10]
    assert answer.as_numpy("context_logits") is not None
    with pytest.raises(InferenceServerException, match="64"):
        served.client.infer("tensorrt_llm", inputs([8] * 60, 10))
    served.client.close()


def test_an_encoder_decoder_that_was_built_is_served(start: Start, tmp_path: Path) -> None:
    write_encoder_decoder_script(tmp_path / "examples")
    directory, environment = build_engine(
        tmp_path, "t5-small", "--examples-dir=examples", "--max-encoder-input-len=40", "--max-seq-len=20"
    )
    served = Served(run_worker(start, directory, environment), Path(environment["DOUBLE_REQUESTS"]))
    held = made_with(environment)
    engines = (held["encoder_model_path"], held["decoder_model_path"])
    assert engines == (str(directory / "encoder"), str(directory / "decoder"))
    served.client.infer("tensorrt_llm", inputs(list(range(30)), 3))
    request = served.last_request()
    assert (request["encoder_input_token_ids"], request["input_token_ids"]) == (list(range(30)), [0])
    with pytest.raises(InferenceServerException, match="40"):
        served.client.infer("tensorrt_llm", inputs(list(range(41)), 3))
    served.client.close()


def test_an_option_at_start_wins_and_the_log_says_so(start: Start, tmp_path: Path) -> None:
    directory, environment = build(tmp_path, "codellama-13b", "--max-batch-size 16 --kv-cache-dtype fp8")
    process = run_worker(start, directory, environment, "max_batch_size=4", "kv_cache_dtype=auto")
    Served(process, tmp_path).client.close()
    held = made_with(environment)
    assert (held["max_batch_size"], held["kv_cache_config"]) == (4, {"dtype": "auto"})
    assert "the option `max_batch_size` is `4`, in place of `16` in llm_args.json" in process.log


def test_a_sampler_that_drafting_replaces_is_refused(start: Start, tmp_path: Path) -> None:
    flags = "--speculative-decoding-mode ngram --max-draft-len 4 --max-matching-ngram-size 2"
    directory, environment = build(tmp_path, "codellama-13b", flags)
    process = run_worker(start, directory, environment, "sampler_type=TRTLLMSampler")
    assert process.wait() == 2, process.log
    assert "`sampler_type` is `TRTLLMSampler`" in process.log


def test_a_draft_model_that_is_gone_is_one_sentence(start: Start, tmp_path: Path) -> None:
    flags = "--speculative-decoding-mode draft_target --max-draft-len 4 --speculative-model draft"
    directory, environment = build(tmp_path, "codellama-13b", flags)
    (tmp_path / "draft").rename(tmp_path / "elsewhere")
    process = run_worker(start, directory, environment)
    assert process.wait() == 2, process.log
    assert f"the draft model `{tmp_path / 'draft'}` does not exist" in process.log
    assert "Traceback" not in process.log
