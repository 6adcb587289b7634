"""What is refused, chosen and noted: tables over the pure planner."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inflight.build.examples import Examples
from inflight.build.families import runtimes_of, supported
from inflight.build.options import Values
from inflight.build.plan import Inputs, make_plan
from inflight.build.runtimes.tensorrt import QUANTIZE
from inflight.build.steps import BuildPlan, Command
from inflight.errors import UserMistake
from inflight.machine import Gpu, Installed
from inflight.model.checkpoint import Checkpoint, read_checkpoint
from inflight.model.config import ModelFacts

from .checkpoints import CONFIGS

H100 = Gpu("NVIDIA H100", 80 << 30, "sm90")
A100 = Gpu("NVIDIA A100", 80 << 30, "sm80")
NOTHING = Installed("0.1.0")
RELEASE = Installed("0.1.0", "1.2.1", "10.14.1.48", "13.1", (H100,))


def checkpoint(model: str, **changes: Any) -> Checkpoint:
    found = read_checkpoint(CONFIGS / model)
    return replace(found, facts=replace(found.facts, **changes), tokenizer_files=("tokenizer.json",))


def plan(
    model: str | Checkpoint,
    *,
    installed: Installed = RELEASE,
    examples: Examples | None = None,
    **options: Any,
) -> BuildPlan:
    values = Values({"output": "out", **options})
    of = checkpoint(model) if isinstance(model, str) else model
    return make_plan(Inputs(of, values, installed, examples))


def build_argv(made: BuildPlan) -> list[str]:
    argv = [step.action.argv for step in made.steps if isinstance(step.action, Command)][-1]
    assert argv[0] == "trtllm-build"
    return list(argv)


REFUSALS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("llama-2-70b", {"tp_size": 3}, ("`--tp-size 3`", "`64` attention heads")),
    ("llama-2-70b", {"tp_size": 16, "pp_size": 100}, ("`--pp-size 100`", "`80` layers")),
    ("llama-2-70b", {"world_size": 8, "tp_size": 2}, ("`--world-size 8`", "`--tp-size 2`")),
    ("llama-2-70b", {"world_size": 3, "pp_size": 2}, ("`--world-size 3`", "`--pp-size 2`")),
    ("llama-2-70b", {"use_inflight_batching": True, "paged_kv_cache": "disable"}, ("-inflight-batching`",)),
    ("llama-2-70b", {"moe_ep_size": 2}, ("`--moe-ep-size 2`", "has no experts")),
    ("mixtral-8x22b", {"tp_size": 8, "moe_tp_size": 2, "moe_ep_size": 2}, ("`--moe-tp-size 2`", "-size 8`")),
    ("mixtral-8x22b", {"tp_size": 3, "moe_ep_size": 3}, ("`--moe-ep-size 3`", "`8` experts")),
    ("gpt2-medium", {"max_seq_len": 2048}, ("`--max-seq-len 2048`", "`1024` positions")),
    ("gpt2-medium", {"max_input_len": 2048}, ("`--max-input-len 2048`", "`1024` positions")),
    ("gpt2-medium", {"max_input_len": 1000, "max_output_len": 25}, ("`--max-output-len 25` are together",)),
    ("llama-2-70b", {"opt_num_tokens": 8193}, ("`--opt-num-tokens 8193`", "`--max-num-tokens 8192`")),
    ("llama-2-70b", {"kv_cache_type": "continuous"}, ("`--kv-cache-type continuous`", "no worker can serve")),
    ("llama-2-70b", {"paged_kv_cache": "disable"}, ("`--paged-kv-cache disable`", "no worker can serve")),
    ("llama-2-70b", {"remove_input_padding": "disable"}, ("`--remove-input-padding disable`", "packed")),
    ("llama-2-70b", {"gpt_attention_plugin": "disable"}, ("`--gpt-attention-plugin disable`", "plugin")),
    ("llama-2-70b", {"max_batch_size": 2**31}, ("`--max-batch-size 2147483648` is too large",)),
    ("llama-2-70b", {"tp_size": 10**20}, ("`--tp-size 100000000000000000000` is too large",)),
    ("llama-2-70b", {"cp_size": 4097, "workers": 2}, ("`4097` ranks", "`--workers 2`")),
    ("llama-2-70b", {"calib_size": 9}, ("`--calib-size 9`", "this build does not calibrate")),
    ("llama-2-70b", {"quantization": "int4_wo", "awq_block_size": 64}, ("`--awq-block-size 64`",)),
    ("llama-2-70b", {"lora_plugin": "disable", "lora_dir": ("a",)}, ("`--lora-plugin disable`",)),
    ("llama-2-70b", {"max_input_len": 5000, "max_seq_len": 4096}, ("`--max-input-len 5000`", "4096")),
    ("llama-2-70b", {"max_output_len": 10}, ("`--max-output-len 10`",)),
    ("llama-2-70b", {"max_num_tokens": 64}, ("`--max-num-tokens 64`", "2048")),
    ("llama-2-70b", {"quantization": "fp8", "dtype": "float32"}, ("`--quantization fp8`", "float32")),
    ("llama-2-70b", {"workers": 2}, ("`--workers 2`", "`1` GPUs")),
    ("llama-2-70b", {"user_buffer": "enable"}, ("`--user-buffer enable`", "--reduce-fusion")),
    ("llama-2-70b", {"max_draft_len": 4}, ("`--max-draft-len 4`",)),
    ("llama-2-70b", {"speculative_decoding_mode": "eagle"}, ("`--speculative-decoding-mode eagle`",)),
    ("llama-2-70b", {"paged_kv_cache": "enable", "kv_cache_type": "paged"}, ("--paged-kv-cache",)),
    ("llama-2-70b", {"embedding_sharding_dim": 2}, ("`--embedding-sharding-dim` is `2`",)),
    ("gpt2-medium", {"use_parallel_embedding": True, "tp_size": 2}, ("`--tp-size 2`", "`50257`")),
    ("baichuan2-13b", {}, ("needs Python code from its checkpoint", )),
    ("t5-small", {}, ("models/core/enc_dec/convert_checkpoint.py",)),
    ("llama-2-70b", {"quantization": "int4_awq"}, (QUANTIZE,)),
    ("llama-2-70b", {"kv_cache_dtype": "int8"}, (QUANTIZE,)),
    ("llama-2-70b", {"runtime": "pytorch", "gemm_plugin": "auto"}, ("`--gemm-plugin`", "`pytorch`")),
    ("llama-2-70b", {"runtime": "pytorch", "quantization": "fp8"}, ("`--quantization fp8`", "`pytorch`")),
    ("llama-2-70b", {"runtime": "pytorch", "kv_cache_dtype": "int8"}, ("`--kv-cache-dtype int8`",)),
    ("llama-2-70b", {"speculative_decoding_mode": "ngram"}, ("-decoding-mode ngram`", "`tensorrt`")),
    (
        "llama-2-70b",
        {"runtime": "pytorch", "speculative_decoding_mode": "medusa"},
        ("`--speculative-decoding-mode medusa`", "`pytorch`"),
    ),
    (
        "llama-2-70b",
        {"runtime": "pytorch", "speculative_decoding_mode": "eagle"},
        ("`--speculative-decoding-mode eagle`", "`--max-draft-len`", "`--speculative-model`"),
    ),
    (
        "llama-2-70b",
        {"runtime": "pytorch", "speculative_decoding_mode": "mtp", "max_draft_len": 3},
        ("`--max-draft-len 3`", "`--speculative-decoding-mode mtp`"),
    ),
    (
        "llama-2-70b",
        {"runtime": "pytorch", "speculative_decoding_mode": "auto", "max_beam_width": 2},
        ("`--max-beam-width 2`", "`--speculative-decoding-mode auto`"),
    ),
    ("llama-2-70b", {"runtime": "pytorch", "max_draft_len": 3}, ("`--max-draft-len 3`",)),
    ("llama-2-70b", {"runtime": "reference", "tp_size": 2}, ("`--tp-size`", "`reference`")),
    ("llama-2-70b", {"runtime": "reference", "dtype": "float16"}, ("`--dtype float16`", "float32")),
]  # fmt: skip


@pytest.mark.parametrize(("model", "options", "said"), REFUSALS)
def test_options_that_do_not_fit_are_refused_by_name_and_value(
    model: str, options: dict[str, Any], said: tuple[str, ...]
) -> None:
    with pytest.raises(UserMistake) as refusal:
        plan(model, **{"runtime": "tensorrt", **options})
    told = refusal.value.what
    for words in said:
        assert words in told
    assert refusal.value.remedy


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("llama-2-70b", {}, None),
        ("llama-2-70b", {"max_num_tokens": 4096}, None),
        ("llama-2-70b", {"max_num_tokens": 4095}, "`4095`, need chunks: a worker started without"),
        ("llama-2-70b", {"max_num_tokens": 4095, "runtime": "pytorch"}, "enable_chunked_context=true`"),
        ("llama-2-70b", {"max_num_tokens": 4095, "context_fmha": "disable"}, None),
        (
            "llama-2-70b",
            {"max_num_tokens": 4095, "use_paged_context_fmha": "disable"},
            "excludes: they are refused",
        ),
        ("mixtral-8x22b", {"tp_size": 8}, "`8192`, need chunks: "),
        ("llama-2-70b", {"strip_plan": True}, "`--strip-plan` leaves the weights out"),
        ("llama-2-70b", {"max_seq_len": 5000}, "`--max-seq-len 5000` is beyond the `4096` positions"),
        (
            "llama-2-70b",
            {"max_input_len": 4096, "max_output_len": 1024},
            "`--max-input-len 4096` and `--max-output-len 1024` are together beyond the `4096` positions",
        ),
    ],
)
def test_what_serving_it_asks_for_is_noted(model: str, options: dict[str, Any], said: str | None) -> None:
    notes = plan(model, **{"runtime": "tensorrt", "max_batch_size": 8, **options}).notes
    if said is None:
        assert not [note for note in notes if "max_num_tokens" in note]
    else:
        assert [note for note in notes if said in note], notes


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    options = {"runtime": "pytorch", "speculative_decoding_mode": "draft_target", "max_draft_len": 3}
    values = Values({"output": "out", "speculative_model": "draft", **options})
    target = checkpoint("llama-2-70b")
    make_plan(Inputs(target, values, RELEASE, None, draft=checkpoint("llama-2-70b", num_layers=2)))
    with pytest.raises(UserMistake, match=r"has a vocabulary of `32016`, and the model one of `32000`"):
        make_plan(Inputs(target, values, RELEASE, None, draft=checkpoint("llama-2-70b", vocab_size=32016)))


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(UserMistake) as refusal:
        plan("llama-2-70b", runtime="tensorrt", tp_size=3, workers=9, max_draft_len=2)
    for words in ("`--tp-size 3`", "`--workers 9`", "`--max-draft-len 2`"):
        assert words in refusal.value.what


@pytest.mark.parametrize(
    ("quantization", "gpu", "refused"),
    [("fp8", A100, True), ("fp8", H100, False), ("nvfp4", H100, True), ("int8_sq", A100, False)],
)
def test_formats_need_the_instructions_of_the_gpu(quantization: str, gpu: Gpu, refused: bool) -> None:
    examples = Examples("ex", frozenset({QUANTIZE}), "1.2.1")
    said = rf"`--quantization {quantization}`.*{gpu.architecture}"
    refusal: AbstractContextManager[Any] = (
        pytest.raises(UserMistake, match=said) if refused else nullcontext()
    )
    with refusal:
        plan(
            "llama-2-70b",
            runtime="tensorrt",
            quantization=quantization,
            installed=replace(RELEASE, gpus=(gpu,)),
            examples=examples,
            examples_dir="ex",
        )


def test_a_quantized_checkpoint_is_quantized_once() -> None:
    with pytest.raises(UserMistake) as refusal:
        plan(checkpoint("llama-2-70b", quantized="FP8"), runtime="tensorrt", quantization="int8_wo")
    assert "already quantized (`FP8`)" in refusal.value.what


@pytest.mark.parametrize(
    ("installed", "model", "runtime"),
    [
        (RELEASE, "llama-2-70b", "tensorrt"),
        (RELEASE, "gpt2-medium", "tensorrt"),
        (replace(RELEASE, tensorrt_llm="1.3.0"), "llama-2-70b", "pytorch"),
        (replace(RELEASE, tensorrt_llm="0.20.0"), "llama-2-70b", "tensorrt"),
        (NOTHING, "llama-2-70b", "reference"),
    ],
)
def test_auto_chooses_and_says_why(installed: Installed, model: str, runtime: str) -> None:
    made = plan(model, installed=installed)
    assert made.runtime == runtime
    assert "TensorRT-LLM" in made.why


@pytest.mark.parametrize(
    ("installed", "model"), [(NOTHING, "t5-small"), (replace(RELEASE, tensorrt_llm="1.3.0"), "t5-small")]
)
def test_auto_without_a_choice_says_what_is_missing(installed: Installed, model: str) -> None:
    with pytest.raises(UserMistake) as refusal:
        plan(model, installed=installed)
    assert "TensorRT-LLM" in refusal.value.what


@pytest.mark.parametrize("runtime", ["auto", "tensorrt", "pytorch", "reference"])
def test_an_unknown_architecture_is_refused_with_those_that_are_known(runtime: str) -> None:
    with pytest.raises(UserMistake) as refusal:
        plan(checkpoint("llama-2-70b", architecture="FancyNewForCausalLM"), runtime=runtime)
    assert "`FancyNewForCausalLM`" in refusal.value.what
    known = supported(runtime) if runtime != "auto" else supported("tensorrt")
    for name in known:
        assert name in str(refusal.value.remedy)


@pytest.mark.parametrize(
    ("installed", "runtime", "said"),
    [
        (NOTHING, "tensorrt", "not installed"),
        (NOTHING, "pytorch", "not installed"),
        (replace(RELEASE, tensorrt_llm="1.4.0rc0"), "tensorrt", "does not support engines"),
        (replace(RELEASE, tensorrt_llm="0.21.0"), "pytorch", "has no PyTorch runtime"),
        (replace(RELEASE, gpus=()), "tensorrt", "no NVIDIA GPU"),
    ],
)
def test_what_only_a_run_lacks_is_a_blocker(installed: Installed, runtime: str, said: str) -> None:
    made = plan("llama-2-70b", installed=installed, runtime=runtime)
    assert any(said in problem.what for problem in made.blockers)
    assert made.steps


def test_sizes_are_always_written_and_others_only_when_given() -> None:
    argv = build_argv(plan("llama-2-70b", runtime="tensorrt"))
    assert argv[argv.index("--max_input_len") + 1] == "4096"
    assert argv[argv.index("--gemm_plugin") + 1] == "auto"
    assert "--use_paged_context_fmha" not in argv
    assert "--workers" not in argv
    given = build_argv(
        plan(
            "llama-2-70b",
            runtime="tensorrt",
            lora_dir=("one", "two"),
            gather_context_logits=True,
            use_paged_context_fmha="enable",
            kv_cache_type="disabled",
            max_beam_width=8,
        )
    )
    assert given[given.index("--lora_dir") + 1 :][:2] == ["one", "two"]
    assert given.count("--gather_context_logits") == 1
    assert given[given.index("--use_paged_context_fmha") + 1] == "enable"
    assert given[given.index("--kv_cache_type") + 1] == "disabled"
    # Nobody gave it, so it follows what every sequence needs.
    assert given[given.index("--max_num_tokens") + 1] == str(2048 * 8)


def test_fewer_gpus_than_ranks_is_a_note() -> None:
    made = plan("llama-2-70b", runtime="pytorch", tp_size=8)
    assert any("8 GPUs, and this machine has 1" in note for note in made.notes)


def test_the_precision_of_a_float32_checkpoint_is_narrowed() -> None:
    assert plan("gpt2-medium", runtime="tensorrt").settings["dtype"] == "float16"
    assert plan("mixtral-8x22b", runtime="tensorrt", tp_size=8).settings["dtype"] == "bfloat16"


def test_every_architecture_has_a_runtime() -> None:
    for runtime in ("tensorrt", "pytorch", "reference"):
        for architecture in supported(runtime):
            assert runtime in runtimes_of(architecture)


def facts_of(model: str) -> ModelFacts:
    return read_checkpoint(Path(CONFIGS / model)).facts


def test_names_of_families_become_one_name_each() -> None:
    gpt, t5, mixtral = facts_of("gpt2-medium"), facts_of("t5-small"), facts_of("mixtral-8x22b")
    assert (gpt.hidden_size, gpt.num_layers, gpt.num_heads, gpt.head_dim) == (1024, 24, 16, 64)
    assert (gpt.intermediate_size, gpt.max_position_embeddings) == (4096, 1024)
    assert (t5.hidden_size, t5.num_layers, t5.encoder_layers, t5.head_dim) == (512, 6, 6, 64)
    assert t5.is_encoder_decoder
    assert not t5.gated_mlp
    assert (mixtral.num_experts, mixtral.experts_per_token, mixtral.num_kv_heads) == (8, 2, 8)
    assert facts_of("baichuan2-13b").max_position_embeddings == 4096
