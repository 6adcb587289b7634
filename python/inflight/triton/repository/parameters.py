"""The parameters of the five models as data: type, default and meaning.

Keys are those of NVIDIA's tensorrtllm_backend (release line 0.20 to 1.2), and Inflight's own. Imports nothing
heavy: `inflight --help` lists them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameter:
    """A parameter of config.pbtxt and the option (fill_template's placeholder) that sets it."""

    key: str
    option: str
    #: `text`, `path`, `int`, `count` (1 to 2147483647), `ints`, `instances` (`ints` of each instance, with
    #: `;` between), `float`, `fraction`, `bool`, or the allowed values with `|` between.
    kind: str
    #: `None`: not set unless asked for, the backend then takes its own default.
    default: str | None
    meaning: str


def _parameters(table: str) -> tuple[Parameter, ...]:
    made = []
    for line in table.strip().splitlines():
        name, kind, default, meaning = (part.strip() for part in line.split(";", 3))
        key, _, option = name.partition("=")
        made.append(Parameter(key, option or key, kind, None if default == "-" else default, meaning))
    return tuple(made)


#: Options of a config that set fields other than its parameters.
SHAPE = _parameters("""
triton_max_batch_size; count; 8; largest batch that Triton sends
decoupled_mode; bool; true; many responses to a request; streaming needs it
logits_datatype; TYPE_FP32|TYPE_FP16|TYPE_BF16; TYPE_FP32; as the engine gathers logits
encoder_input_features_data_type; TYPE_FP16|TYPE_FP32|TYPE_BF16; TYPE_FP16; of an encoder's features
prompt_embedding_table_data_type; TYPE_FP16|TYPE_FP32|TYPE_BF16; TYPE_FP16; of prompt tables
max_queue_delay_microseconds; int; 0; dynamic batching
max_queue_size; int; 0; dynamic batching; 0 means no bound
preprocessing_instance_count; count; 1; instances
postprocessing_instance_count; count; 1; instances
bls_instance_count; count; 1; instances
""")

#: Parameters of earlier releases, which later ones do not read: model -> key -> the releases.
FORMER: dict[str, dict[str, str]] = {
    "preprocessing": {"tokenizer_type": "up to 0.8.0", "visual_model_path": "0.12.0 to 0.18.2"},
    "postprocessing": {"tokenizer_type": "up to 0.8.0"},
    "tensorrt_llm": {
        "max_num_sequences": "up to 0.7.2",
        "max_kv_cache_length": "0.6.0 and 0.6.1",
        "worker_path": "0.9.0",
    },
}

#: Parameters of NVIDIA's models that Inflight's classes refuse when they load: model -> keys.
REFUSED: dict[str, tuple[str, ...]] = {
    "preprocessing": ("multimodal_model_path", "max_num_images", "hf_model_path"),
    "tensorrt_llm_bls": ("tensorrt_llm_draft_model_name", "multimodal_encoders_name"),
}

PARAMETERS: dict[str, tuple[Parameter, ...]] = {
    "ensemble": (),
    "preprocessing": _parameters("""
tokenizer_dir; path; -; directory of tokenizer.json
add_special_tokens; bool; true; passed to the tokenizer
multimodal_model_path; path; -; visual encoder engine (NVIDIA's model only)
gpt_model_path=engine_dir; path; -; sizes of the vocabulary and the prompt table
max_num_images; int; -; splits the prompt table by image (NVIDIA's model only)
hf_model_path; path; -; source of the image processor (NVIDIA's model only)
"""),
    "postprocessing": _parameters("""
tokenizer_dir; path; -; directory of tokenizer.json
skip_special_tokens; bool; true; passed to the tokenizer
"""),
    "tensorrt_llm_bls": _parameters("""
accumulate_tokens; bool; false; all text so far in each streamed response
exclude_input_in_output; bool; false; answers without their prompt (Inflight's own: as the core model's)
skip_special_tokens; bool; true; passed to the tokenizer (Inflight's own)
tensorrt_llm_model_name; text; tensorrt_llm; the core model
tensorrt_llm_draft_model_name; text; -; the draft model (NVIDIA's model only)
multimodal_encoders_name; text; -; the vision encoder (NVIDIA's model only)
tokenizer_dir; path; -; directory of tokenizer.json (Inflight's own: text is made in this model)
"""),
    "tensorrt_llm": _parameters("""
max_beam_width; int; 1; widest beam
FORCE_CPU_ONLY_INPUT_TENSORS; no; no; inputs stay where Triton has them
gpt_model_type=batching_strategy; inflight_fused_batching|inflight_batching|V1|v1; inflight_fused_batching; -
gpt_model_path=engine_dir; path; -; engine, or what the executor loads
encoder_model_path=encoder_engine_dir; path; -; encoder engine
max_tokens_in_paged_kv_cache; int; -; bound of the KV cache in tokens
max_attention_window_size; ints; -; attention window; the longest sequence when not set
sink_token_length; int; -; tokens always attended to
batch_scheduler_policy; guaranteed_no_evict|max_utilization; guaranteed_no_evict; which requests run
kv_cache_free_gpu_mem_fraction; fraction; 0.9; of free GPU memory for the KV cache
cross_kv_cache_fraction; fraction; -; of it for cross attention
kv_cache_host_memory_bytes; int; 0; KV cache in host memory
kv_cache_onboard_blocks; bool; true; back from host memory when used
enable_trt_overlap; bool; false; overlap of micro batches
exclude_input_in_output; bool; false; answers without their prompt
cancellation_check_period_ms; int; 100; how often cancelled calls are looked for
stats_check_period_ms; int; 100; how often statistics are read
recv_poll_period_ms; int; 0; 0 is a busy loop
iter_stats_max_iterations; int; 1000; iterations kept
request_stats_max_iterations; int; 0; 0 is off
enable_kv_cache_reuse; bool; true; prompts that start alike share blocks
normalize_log_probs; bool; true; by length
enable_chunked_context; bool; false; long prompts in pieces
gpu_device_ids; instances; -; a comma list, with `;` between instances
participant_ids; instances; -; MPI ranks, likewise
num_nodes; int; 1; machines
lora_cache_optimal_adapter_size; int; 8; rank that pages fit best
lora_cache_max_adapter_size; int; 64; largest rank
lora_cache_gpu_memory_fraction; fraction; 0.05; of what is left
lora_cache_host_memory_bytes; int; 1073741824; 1 GiB
lora_prefetch_dir; path; -; adapters to load at start
decoding_mode; auto|top_k|top_p|top_k_top_p|beam_search|medusa|redrafter|lookahead|eagle; -; by beam width
executor_worker_path; path; /opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker; in orchestrator mode
lookahead_window_size; int; -; all three, when decoding_mode is lookahead
lookahead_ngram_size; int; -; likewise
lookahead_verification_set_size; int; -; likewise
medusa_choices; text; -; tree in braces
eagle_choices; text; -; tree in braces
gpu_weights_percent; fraction; 1.0; weights kept on the GPU
enable_context_fmha_fp32_acc; bool; false; accumulate in FP32
multi_block_mode; bool; true; attention split over blocks
cuda_graph_mode; bool; false; CUDA graphs
cuda_graph_cache_size; int; 0; graphs kept
speculative_decoding_fast_logits; bool; false; draft logits from GPU to GPU
tokenizer_dir; path; -; for guided decoding in the Python backend
guided_decoding_backend; xgrammar; -; guided decoding
xgrammar_tokenizer_info_path; path; -; JSON, for guided decoding in the C++ backend
executor; reference|tensorrt_llm|scripted; reference; Inflight's own: what runs under the Python backend
device; auto|cpu|cuda; auto; Inflight's own: where the executor computes
"""),
}
