"""The options of `inflight build` for the builder of engines: plugins, features, its work. Data only."""

from __future__ import annotations

from typing import Any

from inflight.build.options.declaration import (
    BUILDER,
    EARLIER,
    ENABLE,
    FEATURES,
    LOG_LEVELS,
    PLUGIN_DTYPES,
    PLUGINS,
    SWITCH,
    BuildOption,
    built,
)
from inflight.model.runtimes import PYTORCH, TENSORRT


def _plugin(name: str, meaning: str, choices: tuple[str, ...] = PLUGIN_DTYPES, **more: Any) -> BuildOption:
    return BuildOption(
        name,
        "choice",
        meaning,
        choices=choices,
        group=PLUGINS,
        build_flag=f"--{name}",
        plugin_config=name,
        **more,
    )


def _switch(name: str, meaning: str, **more: Any) -> BuildOption:
    return BuildOption(
        name,
        "choice",
        meaning,
        choices=SWITCH,
        group=FEATURES,
        build_flag=f"--{name}",
        plugin_config=name,
        bare=ENABLE,
        **more,
    )


ENGINE_OPTIONS: tuple[BuildOption, ...] = (
    # Plugins.
    _plugin(
        "gemm_plugin",
        "Matrix products; auto, because without it TensorRT's own take longer to build and more memory",
        default="auto",
        choices=("auto", "float16", "float32", "bfloat16", "int32", "fp8", "nvfp4", "disable"),
        bare="auto",
        aliases=("use_gemm_plugin",),
    ),
    _plugin(
        "gpt_attention_plugin",
        "Attention of decoders; in-flight batching needs it",
        bare="auto",
        aliases=("use_gpt_attention_plugin",),
    ),
    _plugin("bert_attention_plugin", "Attention of encoders"),
    _plugin("gemm_swiglu_plugin", "Fused product and SwiGLU of FP8 models", choices=("fp8", "disable")),
    _plugin("fp8_rowwise_gemm_plugin", "Matrix products with a scale per row"),
    _plugin("nccl_plugin", "Communication between GPUs"),
    _plugin("lora_plugin", "LoRA; on if adapters are given"),
    _plugin("moe_plugin", "Mixture of experts"),
    _plugin("mamba_conv1d_plugin", "Convolutions of Mamba models"),
    _plugin("low_latency_gemm_plugin", "FP8 products for small batches", choices=("fp8", "disable")),
    _plugin("low_latency_gemm_swiglu_plugin", "The same with SwiGLU", choices=("fp8", "disable")),
    _plugin(
        "gemm_allreduce_plugin",
        "Product and reduction over GPUs in one",
        choices=("float16", "bfloat16", "disable"),
    ),
    # Features.
    _switch("remove_input_padding", "Pack requests without padding; in-flight batching needs it"),
    BuildOption(
        "kv_cache_type",
        "choice",
        "How the KV cache is kept; paged, because in-flight batching needs it",
        group=FEATURES,
        default="paged",
        choices=("continuous", "paged", "disabled"),
        build_flag="--kv_cache_type",
        build_config="kv_cache_type",
    ),
    BuildOption(
        "paged_kv_cache",
        "choice",
        "The name of kv_cache_type before 0.12: enable is paged, disable is continuous",
        choices=SWITCH,
        group=FEATURES,
        bare=ENABLE,
    ),
    BuildOption(
        "tokens_per_block",
        "int",
        "Tokens in a block of the KV cache; TensorRT-LLM's own default",
        group=FEATURES,
        default=32,
        minimum=1,
        runtimes=(TENSORRT, PYTORCH),
        build_flag="--tokens_per_block",
        plugin_config="tokens_per_block",
        llm_args="kv_cache_config.tokens_per_block",
    ),
    _switch("context_fmha", "Fused attention over prompts", aliases=("enable_context_fmha",)),
    _switch("bert_context_fmha_fp32_acc", "Accumulate encoder attention in float32"),
    _switch("use_paged_context_fmha", "The same over a paged cache; block reuse and chunked prompts need it"),
    _switch("use_fp8_context_fmha", "FP8 attention over prompts of FP8 models"),
    _switch("fuse_fp4_quant", "Quantize to FP4 inside attention"),
    _switch("multiple_profiles", "Several tuned sizes: faster at small batches, longer to build"),
    _switch("paged_state", "Paged state of recurrent models"),
    _switch("dora_plugin", "DoRA adapters"),
    _switch("norm_quant_fusion", "Fuse normalisation and quantization"),
    _switch("reduce_fusion", "Fuse the reduction over GPUs with what follows it"),
    _switch("user_buffer", "Reduce over GPUs in registered buffers; needs reduce_fusion"),
    _switch("use_fused_mlp", "Fuse the gated MLP's two products"),
    _switch("pp_reduce_scatter", "Scatter between pipeline stages"),
    built("gather_context_logits", "bool", FEATURES, "Keep the logits of prompts", default=False),
    built(
        "gather_generation_logits",
        "bool",
        FEATURES,
        "Keep the logits of outputs",
        default=False,
        runtimes=(TENSORRT, PYTORCH),
        llm_args="gather_generation_logits",
    ),
    BuildOption(
        "gather_all_token_logits",
        "bool",
        "Both of the above",
        group=FEATURES,
        default=False,
        build_flag="--gather_all_token_logits",
    ),
    BuildOption(
        "logits_dtype",
        "choice",
        "Precision of logits; absent: float32",
        group=FEATURES,
        choices=("float16", "float32"),
        build_flag="--logits_dtype",
    ),
    # Builder.
    BuildOption(
        "fast_build",
        "bool",
        "Fewer kernel trials: minutes saved, some speed lost",
        group=BUILDER,
        default=False,
        build_flag="--fast_build",
    ),
    built("input_timing_cache", "path", BUILDER, "Kernel timings of an earlier build"),
    built("output_timing_cache", "path", BUILDER, "Where to keep kernel timings"),
    built(
        "profiling_verbosity",
        "choice",
        BUILDER,
        "What profilers may see",
        choices=("layer_names_only", "detailed", "none"),
    ),
    built("strip_plan", "bool", BUILDER, "Leave weights out", default=False, build_config="use_strip_plan"),
    built("weight_sparsity", "bool", BUILDER, "Use structured sparsity", default=False),
    built("weight_streaming", "bool", BUILDER, "Let weights stay in main memory", default=False),
    built("enable_debug_output", "bool", BUILDER, "Keep inner tensors", default=False),
    built("visualize_network", "path", BUILDER, "Where to draw the network"),
    built("monitor_memory", "bool", BUILDER, "Log memory while building", default=False),
    BuildOption(
        "log_level",
        "choice",
        "How much TensorRT-LLM logs",
        group=BUILDER,
        choices=LOG_LEVELS,
        build_flag="--log_level",
    ),
    BuildOption(
        "model_cls_file",
        "path",
        "Python file of a model class",
        group=BUILDER,
        build_flag="--model_cls_file",
        reads=True,
    ),
    BuildOption("model_cls_name", "text", "The class in it", group=BUILDER, build_flag="--model_cls_name"),
    # What `build.py` of the examples took; the result does not depend on them.
    BuildOption(
        "world_size",
        "int",
        "Total number of ranks; sets tp_size, or must agree with it",
        group=EARLIER,
        minimum=1,
    ),
    BuildOption(
        "use_inflight_batching",
        "bool",
        "Same as packed requests and a paged cache, which are on by default",
        group=EARLIER,
        default=False,
    ),
    BuildOption("model_version", "text", "Unused: `config.json` already specifies it", group=EARLIER),
)
