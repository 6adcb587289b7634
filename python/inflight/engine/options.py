"""Every option of `inflight build`, declared once: name, type, default, reason, and where it goes.

Names are TensorRT-LLM's. Owns no command and no plan: `inflight.cli.build` makes its flags from `OPTIONS`,
the planners read where a value goes (a flag of `trtllm-build`, a field of `BuildConfig` or `PluginConfig`, a
field of the PyTorch runtime's arguments). Flags may be spelled with `-` or with TensorRT-LLM's `_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

TENSORRT = "tensorrt"
PYTORCH = "pytorch"
REFERENCE = "reference"
RUNTIMES = (TENSORRT, PYTORCH, REFERENCE)

Kind = Literal["integer", "text", "texts", "choice", "switch", "flag", "path"]

#: What trtllm-build takes for a plugin without a list of its own (`DefaultPluginDtype`).
PLUGIN_DTYPES = ("auto", "float16", "float32", "bfloat16", "int32", "disable")
LOG_LEVELS = ("internal_error", "error", "warning", "info", "verbose", "debug", "trace")
ENABLE, DISABLE = "enable", "disable"


@dataclass(frozen=True)
class Option:
    """One option. `default` None: absent, or derived from the checkpoint as `reason` says."""

    name: str
    kind: Kind
    reason: str
    group: str
    default: Any = None
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    #: Runtimes it means something to; given for another it is refused.
    runtimes: tuple[str, ...] = (TENSORRT,)
    #: Flag of `trtllm-build`, `BuildConfig` field, `PluginConfig` field, field of `TorchLlmArgs` (dotted).
    build_flag: str | None = None
    build_config: str | None = None
    plugin_config: str | None = None
    llm_args: str | None = None
    #: Names of earlier releases, still taken.
    aliases: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """As people type it."""
        return "--" + self.name.replace("_", "-")


RUN, PARALLEL, LENGTHS, QUANTIZATION, LORA, SPECULATION, PLUGINS, FEATURES, BUILDER = (
    "What to build",
    "Parallelism and precision",
    "Sizes",
    "Quantization",
    "LoRA and prompt tables",
    "Speculative decoding",
    "Plugins",
    "Features",
    "Builder",
)


def _build(name: str, kind: Kind, group: str, reason: str, **more: Any) -> Option:
    """An option with a flag of `trtllm-build` and a field of `BuildConfig` of its own name."""
    more.setdefault("build_config", name)
    return Option(name, kind, reason, group, build_flag=f"--{name}", **more)


def _plugin(name: str, reason: str, default: str | None = None, choices: tuple[str, ...] = ()) -> Option:
    return Option(
        name,
        "choice",
        reason,
        PLUGINS,
        default=default,
        choices=choices or PLUGIN_DTYPES,
        build_flag=f"--{name}",
        plugin_config=name,
    )


def _switch(name: str, reason: str, **more: Any) -> Option:
    return Option(name, "switch", reason, FEATURES, build_flag=f"--{name}", plugin_config=name, **more)


OPTIONS: tuple[Option, ...] = (
    # What to build. `output`, `runtime` and the like steer this command and reach no other.
    Option("output", "path", "Directory to write; made whole or not at all.", RUN, runtimes=RUNTIMES),
    Option(
        "runtime",
        "choice",
        "What will serve it; auto picks by what is installed and says why.",
        RUN,
        default="auto",
        choices=("auto", *RUNTIMES),
        runtimes=RUNTIMES,
    ),
    Option(
        "examples_dir",
        "path",
        "TensorRT-LLM's `examples` of the installed release; encoder-decoder and calibrated formats need it.",
        RUN,
    ),
    Option(
        "trust_remote_code",
        "flag",
        "Let the checkpoint's own Python code run; off, because it is code of strangers.",
        RUN,
        default=False,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="trust_remote_code",
    ),
    Option(
        "workers",
        "integer",
        "Ranks converted and built at once; 1, because each needs a GPU and the whole model in memory.",
        RUN,
        default=1,
        minimum=1,
        build_flag="--workers",
    ),
    Option("dry_run", "flag", "Print the plan and stop.", RUN, default=False, runtimes=RUNTIMES),
    Option(
        "force", "flag", "Build again, and replace an earlier build.", RUN, default=False, runtimes=RUNTIMES
    ),
    Option("json", "flag", "Print the plan or the result as JSON.", RUN, default=False, runtimes=RUNTIMES),
    # Parallelism and precision.
    Option(
        "dtype",
        "choice",
        "Precision of weights; auto takes the checkpoint's, except float32, which engines narrow to float16.",
        PARALLEL,
        default="auto",
        choices=("auto", "float16", "bfloat16", "float32"),
        runtimes=RUNTIMES,
        llm_args="dtype",
    ),
    Option(
        "tp_size",
        "integer",
        "Tensor parallelism: GPUs that share every layer.",
        PARALLEL,
        default=1,
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="tensor_parallel_size",
    ),
    Option(
        "pp_size",
        "integer",
        "Pipeline parallelism: groups of GPUs that share the list of layers.",
        PARALLEL,
        default=1,
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="pipeline_parallel_size",
    ),
    Option(
        "cp_size",
        "integer",
        "Context parallelism: GPUs that share a long prompt.",
        PARALLEL,
        default=1,
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="context_parallel_size",
    ),
    Option(
        "moe_tp_size",
        "integer",
        "Tensor parallelism of experts; absent: tp_size / moe_ep_size.",
        PARALLEL,
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="moe_tensor_parallel_size",
    ),
    Option(
        "moe_ep_size",
        "integer",
        "Expert parallelism; absent: tp_size / moe_tp_size, or 1.",
        PARALLEL,
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="moe_expert_parallel_size",
    ),
    Option(
        "use_parallel_embedding",
        "flag",
        "Share the embedding table over tensor parallel ranks; off, as in convert_checkpoint.",
        PARALLEL,
        default=False,
    ),
    Option(
        "embedding_sharding_dim",
        "integer",
        "Dimension along which use_parallel_embedding cuts: 0 vocabulary, 1 hidden.",
        PARALLEL,
        default=0,
        minimum=0,
    ),
    Option(
        "load_by_shard",
        "flag",
        "Convert shard by shard, for models larger than this machine's memory.",
        PARALLEL,
        default=False,
    ),
    Option(
        "load_model_on_cpu", "flag", "Convert in main memory instead of the GPU's.", PARALLEL, default=False
    ),
    # Sizes. Written into every plan, so that a build does not depend on the installed release's defaults.
    _build(
        "max_batch_size",
        "integer",
        LENGTHS,
        "Sequences in one iteration; TensorRT-LLM's own default.",
        default=2048,
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="max_batch_size",
    ),
    _build(
        "max_input_len",
        "integer",
        LENGTHS,
        "Longest prompt; absent: max_seq_len, because trtllm-build's 1024 refuses longer ones at run time.",
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="max_input_len",
    ),
    _build(
        "max_seq_len",
        "integer",
        LENGTHS,
        "Prompt plus output; absent: what the model was trained for.",
        minimum=2,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="max_seq_len",
        aliases=("max_decoder_seq_len",),
    ),
    Option(
        "max_output_len",
        "integer",
        "Of releases before 0.11: max_seq_len becomes max_input_len plus this.",
        LENGTHS,
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
    ),
    _build(
        "max_num_tokens",
        "integer",
        LENGTHS,
        "Tokens in one iteration, padding not counted; TensorRT-LLM's own default.",
        default=8192,
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="max_num_tokens",
    ),
    _build("opt_num_tokens", "integer", LENGTHS, "Tokens that kernels are tuned for.", minimum=1),
    _build(
        "max_beam_width",
        "integer",
        LENGTHS,
        "Widest beam search; 1, because every beam costs KV cache.",
        default=1,
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="max_beam_width",
    ),
    _build(
        "max_encoder_input_len",
        "integer",
        LENGTHS,
        "Longest input of an encoder-decoder's encoder; TensorRT-LLM's own default.",
        default=1024,
        minimum=1,
    ),
    # Quantization.
    Option(
        "quantization",
        "choice",
        "Format of weights and activations; *_wo convert with the wheel alone, the others calibrate.",
        QUANTIZATION,
        default="none",
        choices=("none", "fp8", "nvfp4", "int8_sq", "int4_awq", "w4a8_awq", "int8_wo", "int4_wo"),
        runtimes=(TENSORRT, PYTORCH),
    ),
    Option(
        "kv_cache_dtype",
        "choice",
        "Precision of the KV cache; auto: that of the weights.",
        QUANTIZATION,
        default="auto",
        choices=("auto", "int8", "fp8"),
        runtimes=(TENSORRT, PYTORCH),
        llm_args="kv_cache_config.dtype",
    ),
    Option("calib_dataset", "text", "Text to calibrate on.", QUANTIZATION, default="cnn_dailymail"),
    Option("calib_size", "integer", "Samples to calibrate on.", QUANTIZATION, default=512, minimum=1),
    Option(
        "calib_max_seq_length", "integer", "Longest calibration sample.", QUANTIZATION, default=512, minimum=1
    ),
    Option(
        "awq_block_size",
        "integer",
        "Weights that share a scale in AWQ.",
        QUANTIZATION,
        default=128,
        minimum=1,
    ),
    # LoRA and prompt tables.
    Option(
        "lora_dir",
        "texts",
        "Adapters whose target modules the engine must take.",
        LORA,
        build_flag="--lora_dir",
    ),
    Option(
        "lora_ckpt_source",
        "choice",
        "Who wrote the adapters.",
        LORA,
        default="hf",
        choices=("hf", "nemo"),
        build_flag="--lora_ckpt_source",
    ),
    Option(
        "lora_target_modules",
        "texts",
        "Modules that adapters change.",
        LORA,
        runtimes=(TENSORRT, PYTORCH),
        build_flag="--lora_target_modules",
        llm_args="lora_config.lora_target_modules",
    ),
    Option(
        "max_lora_rank",
        "integer",
        "Largest rank of an adapter; TensorRT-LLM's own default.",
        LORA,
        default=64,
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
        build_flag="--max_lora_rank",
        llm_args="lora_config.max_lora_rank",
    ),
    _build(
        "max_prompt_embedding_table_size",
        "integer",
        LORA,
        "Rows of a request's prompt table; 0: no prompt tuning.",
        default=0,
        minimum=0,
        aliases=("max_multimodal_len",),
    ),
    # Speculative decoding.
    _build(
        "speculative_decoding_mode",
        "choice",
        SPECULATION,
        "Who drafts tokens; absent: nobody.",
        choices=("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle"),
    ),
    _build("max_draft_len", "integer", SPECULATION, "Most tokens drafted in a step.", default=0, minimum=0),
    # Plugins.
    _plugin(
        "gemm_plugin",
        "Matrix products; auto, because without it TensorRT's own take longer to build and more memory.",
        default="auto",
        choices=("auto", "float16", "float32", "bfloat16", "int32", "fp8", "nvfp4", "disable"),
    ),
    _plugin("gpt_attention_plugin", "Attention of decoders; in-flight batching needs it."),
    _plugin("bert_attention_plugin", "Attention of encoders."),
    _plugin("gemm_swiglu_plugin", "Fused product and SwiGLU of FP8 models.", choices=("fp8", "disable")),
    _plugin("fp8_rowwise_gemm_plugin", "Matrix products with a scale per row."),
    _plugin("nccl_plugin", "Communication between GPUs."),
    _plugin("lora_plugin", "LoRA; on by itself where adapters are named."),
    _plugin("moe_plugin", "Mixture of experts."),
    _plugin("mamba_conv1d_plugin", "Convolutions of Mamba models."),
    _plugin("low_latency_gemm_plugin", "FP8 products for small batches.", choices=("fp8", "disable")),
    _plugin("low_latency_gemm_swiglu_plugin", "The same with SwiGLU.", choices=("fp8", "disable")),
    _plugin(
        "gemm_allreduce_plugin",
        "Product and reduction over GPUs in one.",
        choices=("float16", "bfloat16", "disable"),
    ),
    # Features.
    _switch("remove_input_padding", "Pack requests without padding; in-flight batching needs it."),
    Option(
        "kv_cache_type",
        "choice",
        "How the KV cache is kept; paged, because in-flight batching needs it.",
        FEATURES,
        default="paged",
        choices=("continuous", "paged", "disabled"),
        build_flag="--kv_cache_type",
        build_config="kv_cache_type",
    ),
    Option(
        "paged_kv_cache",
        "switch",
        "The name of kv_cache_type before 0.12: enable is paged, disable is continuous.",
        FEATURES,
    ),
    Option(
        "tokens_per_block",
        "integer",
        "Tokens in a block of the KV cache; TensorRT-LLM's own default.",
        FEATURES,
        default=32,
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
        build_flag="--tokens_per_block",
        plugin_config="tokens_per_block",
        llm_args="kv_cache_config.tokens_per_block",
    ),
    _switch("context_fmha", "Fused attention over prompts.", aliases=("enable_context_fmha",)),
    _switch("bert_context_fmha_fp32_acc", "Accumulate encoder attention in float32."),
    _switch(
        "use_paged_context_fmha", "The same over a paged cache; block reuse and chunked prompts need it."
    ),
    _switch("use_fp8_context_fmha", "FP8 attention over prompts of FP8 models."),
    _switch("fuse_fp4_quant", "Quantize to FP4 inside attention."),
    _switch("multiple_profiles", "Several tuned sizes: faster at small batches, longer to build."),
    _switch("paged_state", "Paged state of recurrent models."),
    _switch("dora_plugin", "DoRA adapters."),
    _switch("norm_quant_fusion", "Fuse normalisation and quantization."),
    _switch("reduce_fusion", "Fuse the reduction over GPUs with what follows it."),
    _switch("user_buffer", "Reduce over GPUs in registered buffers; needs reduce_fusion."),
    _switch("use_fused_mlp", "Fuse the gated MLP's two products."),
    _switch("pp_reduce_scatter", "Scatter between pipeline stages."),
    _build("gather_context_logits", "flag", FEATURES, "Keep the logits of prompts.", default=False),
    _build(
        "gather_generation_logits",
        "flag",
        FEATURES,
        "Keep the logits of outputs.",
        default=False,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="gather_generation_logits",
    ),
    Option(
        "gather_all_token_logits",
        "flag",
        "Both of the above.",
        FEATURES,
        default=False,
        build_flag="--gather_all_token_logits",
    ),
    Option(
        "logits_dtype",
        "choice",
        "Precision of logits; absent: float32.",
        FEATURES,
        choices=("float16", "float32"),
        build_flag="--logits_dtype",
    ),
    # Builder.
    Option(
        "fast_build",
        "flag",
        "Fewer kernel trials: minutes saved, some speed lost.",
        BUILDER,
        default=False,
        build_flag="--fast_build",
    ),
    _build("input_timing_cache", "path", BUILDER, "Kernel timings of an earlier build."),
    _build("output_timing_cache", "path", BUILDER, "Where to keep kernel timings."),
    _build(
        "profiling_verbosity",
        "choice",
        BUILDER,
        "What profilers may see.",
        choices=("layer_names_only", "detailed", "none"),
    ),
    _build("strip_plan", "flag", BUILDER, "Leave weights out.", default=False, build_config="use_strip_plan"),
    _build("weight_sparsity", "flag", BUILDER, "Use structured sparsity.", default=False),
    _build("weight_streaming", "flag", BUILDER, "Let weights stay in main memory.", default=False),
    _build("enable_debug_output", "flag", BUILDER, "Keep inner tensors.", default=False),
    _build("visualize_network", "path", BUILDER, "Where to draw the network."),
    _build("monitor_memory", "flag", BUILDER, "Log memory while building.", default=False),
    Option(
        "log_level",
        "choice",
        "How much TensorRT-LLM logs.",
        BUILDER,
        choices=LOG_LEVELS,
        build_flag="--log_level",
    ),
    Option("model_config", "path", "A TensorRT-LLM model config.", BUILDER, build_flag="--model_config"),
    Option("build_config", "path", "A TensorRT-LLM build config.", BUILDER, build_flag="--build_config"),
    Option("model_cls_file", "path", "Python file of a model class.", BUILDER, build_flag="--model_cls_file"),
    Option("model_cls_name", "text", "The class in it.", BUILDER, build_flag="--model_cls_name"),
)

BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}

#: Steer this command, or say where its tools lie; no part of what is built.
COMMAND_ONLY = frozenset({"output", "runtime", "examples_dir", "dry_run", "force", "json", "workers"})


class Values:
    """Option values: what the user gave, over the defaults. Raises `KeyError` for a name not declared."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given: dict[str, Any] = {
            name: value
            for name, value in given.items()
            if BY_NAME[name] and value is not None and value is not False and value != ()
        }

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name, BY_NAME[name].default)

    def is_given(self, name: str) -> bool:
        """Whether the user said anything about it."""
        return name in self.given

    def record(self) -> dict[str, Any]:
        """What the manifest keeps: the given options that shape the result, sorted."""
        return {name: _plain(self.given[name]) for name in sorted(self.given) if name not in COMMAND_ONLY}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
