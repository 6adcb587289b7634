"""What becomes of the core model's parameters where there is no engine: why each has no counterpart in
TensorRT-LLM's PyTorch runtime. Data only.
"""

from __future__ import annotations

_SCHEDULES = "the PyTorch runtime plans iterations itself"
_GONE = "there is no engine any more"
#: Parameters of the core model without a counterpart that change no answer -> why.
LEFT_OUT = {
    "FORCE_CPU_ONLY_INPUT_TENSORS": "Inflight's model always reads inputs where Triton has them",
    "gpt_model_type": "batches are always formed in flight",
    "enable_trt_overlap": _SCHEDULES,
    "recv_poll_period_ms": _SCHEDULES,
    "iter_stats_max_iterations": "statistics are drained as they come",
    "request_stats_max_iterations": "requests report their own times (`return_perf_metrics`)",
    "multi_block_mode": "kernels are chosen at run time",
    "enable_context_fmha_fp32_acc": "kernels are chosen at run time",
    "cuda_graph_cache_size": "graphs are made for the batch sizes of `cuda_graph_batch_sizes`",
    "gpu_weights_percent": _GONE,
    "executor_worker_path": "TensorRT-LLM starts its ranks itself",
    "participant_ids": "TensorRT-LLM starts its ranks itself",
    "num_nodes": "TensorRT-LLM starts its ranks itself",
    "xgrammar_tokenizer_info_path": "the checkpoint's tokenizer is read instead",
    "tokenizer_dir": "the tokenizer comes from the checkpoint",
}
#: Those that change answers or features -> what is lost.
LOST = {
    "encoder_model_path": "encoder-decoder models are not served from checkpoints",
    "cross_kv_cache_fraction": "encoder-decoder models are not served from checkpoints",
    "normalize_log_probs": "cumulative log probabilities are sums",
    "lora_prefetch_dir": "adapters are Hugging Face's, one folder per task id: `--set lora_adapter_dir=DIR`",
    "lookahead_window_size": "lookahead decoding needs an engine",
    "lookahead_ngram_size": "lookahead decoding needs an engine",
    "lookahead_verification_set_size": "lookahead decoding needs an engine",
    "medusa_choices": "Medusa needs an engine",
    "eagle_choices": "trees of Eagle are arguments of `speculative_config` (`llm_args`)",
    "speculative_decoding_fast_logits": "draft models run inside TensorRT-LLM (`speculative_config`)",
}
DRAFTERS = {
    "medusa": "Medusa needs an engine",
    "redrafter": "ReDrafter needs an engine",
    "lookahead": "lookahead decoding needs an engine; n-grams are an argument of `speculative_config`",
    "eagle": "build with `inflight build --runtime pytorch --speculative-decoding-mode eagle`",
}
