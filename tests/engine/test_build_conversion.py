"""What TensorRT-LLM's converters would refuse late, drop, or decide by a path: told before anything runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inflight.build.checks.conversion import find_glm_version
from inflight.build.examples import Examples
from inflight.build.runtimes.tensorrt import QUANTIZE
from inflight.build.steps import ApiCalls, BuildPlan
from inflight.errors import UserMistake
from inflight.machine import Gpu
from inflight.model.checkpoint import Checkpoint, read_checkpoint

from .checkpoints import CONFIGS
from .test_build_plan import RELEASE, checkpoint, plan

ENCODER_DECODER = "models/core/enc_dec/convert_checkpoint.py"
EXAMPLES = Examples("examples", exists=True, version="1.2.1", scripts=frozenset({QUANTIZE, ENCODER_DECODER}))
GB200 = Gpu("NVIDIA GB200", 186 << 30, "sm100")


def of(model: str, architecture: str, path: str = "model", **config: Any) -> Checkpoint:
    """The checkpoint of a model under another architecture and path."""
    made = checkpoint(model, architecture=architecture)
    return replace(made, directory=Path(path), config={**made.config, **config})


def refused(of: Checkpoint | str, **options: Any) -> str:
    with pytest.raises(UserMistake) as raised:
        plan(of, examples=EXAMPLES, **options)
    return raised.value.what


def conversion(made: BuildPlan) -> dict[str, Any]:
    """The keywords of `from_hugging_face`."""
    actions = [step.action for step in made.steps if isinstance(step.action, ApiCalls)]
    return dict(actions[0].calls[0].kwargs)


@pytest.mark.parametrize("mode", ["eagle", "medusa", "explicit_draft_tokens"])
def test_heads_that_draft_are_not_converted(mode: str) -> None:
    words = refused("llama-2-70b", speculative_decoding_mode=mode, max_draft_len=3)
    assert f"`--speculative-decoding-mode {mode}` is not supported" in words


def test_internlm2_has_no_class_that_converts_it() -> None:
    words = refused(of("llama-2-70b", "InternLM2ForCausalLM"), runtime="tensorrt", trust_remote_code=True)
    assert "`InternLM2ForCausalLM`" in words


@pytest.mark.parametrize(
    ("architecture", "options", "path", "words"),
    [
        ("LlamaForCausalLM", {}, "models/vila-7b", "contains `vila`"),
        ("MistralForCausalLM", {}, "models/llava", "contains `llava`"),
        ("LlamaForCausalLM", {"quantization": "fp8"}, "attempt/llama", "contains `mpt`"),
        ("ExaoneForCausalLM", {"trust_remote_code": True}, "models/lg", "does not contain `exaone`"),
    ],
)
def test_a_path_that_names_another_model_is_refused(
    architecture: str, options: dict[str, Any], path: str, words: str
) -> None:
    assert words in refused(of("llama-2-70b", architecture, path), **options)


def test_other_paths_are_taken() -> None:
    plan(of("gpt2-medium", "GPT2LMHeadModel", "attempt/vila"))
    plan(of("llama-2-70b", "ExaoneForCausalLM", "models/exaone-3"), trust_remote_code=True)


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [
        ("GPT2LMHeadModel", "gpt2"),
        ("GPTBigCodeForCausalLM", "starcoder"),
        ("Starcoder2ForCausalLM", "starcoder2"),
    ],
)
def test_the_variant_of_a_gpt_does_not_hang_on_its_path(architecture: str, variant: str) -> None:
    assert conversion(plan(of("gpt2-medium", architecture, "santacoder")))["gpt_variant"] == variant


GLM_CONFIGS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"inner_hidden_size": 16384}, "model", "chatglm"),
    ({"padded_vocab_size": 151552, "rope_ratio": 500}, "model", "glm4"),
    ({"_name_or_path": "THUDM/chatglm2-6b-32k", "rope_ratio": 50}, "model", "chatglm2"),
    ({"rope_ratio": 50}, "chatglm3-6b-32k", "chatglm3"),
    ({"padded_vocab_size": 65024}, "model", "chatglm3"),
    ({"rope_ratio": 50}, "model", None),
]


@pytest.mark.parametrize(("config", "path", "version"), GLM_CONFIGS)
def test_the_version_of_a_glm_is_found_or_asked_for(
    config: dict[str, Any], path: str, version: str | None
) -> None:
    glm = of("llama-2-70b", "ChatGLMModel", path, **config)
    assert find_glm_version(glm) == version
    if version is None:
        assert "which version of GLM" in refused(glm, trust_remote_code=True)
    else:
        assert conversion(plan(glm, trust_remote_code=True))["chatglm_version"] == version


@pytest.mark.parametrize(
    ("model", "options"), [("gpt2-medium", {}), ("codellama-13b", {"quantization": "fp8"})]
)
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_that_would_run_whatever_it_is_told_needs_permission(
    tmp_path: Path, model: str, options: dict[str, Any], file: str
) -> None:
    config = json.loads((CONFIGS / model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    held = json.loads((tmp_path / file).read_text()) if (tmp_path / file).exists() else {}
    (tmp_path / file).write_text(json.dumps({**held, "auto_map": {"AutoModel": "code.Model"}}))
    named = replace(read_checkpoint(tmp_path), directory=Path("model"), tokenizer_files=("tokenizer.json",))
    assert f"would run Python code that `{file}` of the checkpoint names" in refused(named, **options)
    plan(named, examples=EXAMPLES, trust_remote_code=True, **options)


def test_code_that_is_not_run_needs_no_permission() -> None:
    plan(replace(of("codellama-13b", "LlamaForCausalLM"), code_files=("config.json",)))


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "int8_wo"},
        {"quantization": "int4_wo"},
        {"quantization": "int8_sq"},
        {"quantization": "int4_awq"},
        {"kv_cache_dtype": "int8"},
    ],
)
def test_formats_that_blackwell_has_no_kernels_for_are_refused(options: dict[str, Any]) -> None:
    blackwell = replace(RELEASE, gpus=(GB200,))
    given = of("codellama-13b", "LlamaForCausalLM")
    with pytest.raises(UserMistake) as raised:
        plan(given, installed=blackwell, examples=EXAMPLES, **options)
    assert "is not supported on GPU architecture `sm100`" in raised.value.what
    plan(given, examples=EXAMPLES, **options)


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (
            "llama-2-70b",
            {
                "gather_context_logits": True,
                "speculative_decoding_mode": "draft_tokens_external",
                "max_draft_len": 4,
            },
            "cannot be kept with `--max-draft-len 4`",
        ),
        (
            "llama-2-70b",
            {"multiple_profiles": "enable", "opt_num_tokens": 64},
            "cannot be combined with `--multiple-profiles enable`",
        ),
        ("mixtral-8x22b", {"tp_size": 2, "moe_ep_size": 2, "quantization": "fp8"}, "`--moe-ep-size` has no"),
        ("codellama-13b", {"quantization": "fp8", "load_model_on_cpu": True}, "`--load-model-on-cpu` has no"),
        ("codellama-13b", {"quantization": "fp8", "use_parallel_embedding": True}, "that calibrates"),
        ("gpt2-medium", {"load_by_shard": True}, "`--load-by-shard` has no effect on `GPT2LMHeadModel`"),
        ("t5-small", {"kv_cache_dtype": "fp8"}, "`--kv-cache-dtype` has no effect"),
        ("t5-small", {"load_by_shard": True}, "`--load-by-shard` has no effect"),
        ("t5-small", {"pp_size": 2}, "`--pp-size 2` is not supported"),
    ],
)
def test_what_would_fail_later_or_be_dropped_is_refused(
    model: str, options: dict[str, Any], words: str
) -> None:
    assert words in refused(replace(checkpoint(model), directory=Path("model")), **options)


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ({"kv_cache_dtype": "int8"}, True),
        ({"kv_cache_dtype": "fp8"}, True),
        ({"kv_cache_dtype": "fp8", "quantization": "fp8"}, False),
        ({}, False),
    ],
)
def test_a_cache_format_that_rules_chunks_out_is_noted(options: dict[str, Any], noted: bool) -> None:
    made = plan(of("codellama-13b", "LlamaForCausalLM"), examples=EXAMPLES, max_num_tokens=4096, **options)
    notes = " ".join(made.notes)
    assert ("turns paged context FMHA off" in notes) is noted
    assert ("--executor-option enable_chunked_context=true" in notes) is not noted


def test_awq_calibrates_with_fewer_samples_than_asked_for() -> None:
    given = of("codellama-13b", "LlamaForCausalLM")
    for size, noted in ((64, True), (16, False)):
        made = plan(given, examples=EXAMPLES, quantization="int4_awq", calib_size=size)
        assert any("at most `32` samples" in note for note in made.notes) is noted
