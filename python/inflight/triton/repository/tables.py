"""The five models as data: every tensor and every parameter, with type, default and meaning.

Names, types and shapes are those of NVIDIA's tensorrtllm_backend (release line 0.20 to 1.2). The core model's
tensors come from the worker's table. A data type in angle brackets is the option of that name.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight._native import CoreInput, CoreOutput, core_model

#: The table of the core model (`crates/worker/src/model`).
CORE = core_model()
#: Tensors of the core model whose float type is an option of its config.pbtxt.
DATA_TYPE_OPTIONS = {
    "encoder_input_features": "encoder_input_features_data_type",
    "prompt_embedding_table": "prompt_embedding_table_data_type",
    "draft_logits": "logits_datatype",
    "context_logits": "logits_datatype",
    "generation_logits": "logits_datatype",
}

MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
DATA_TYPES = frozenset(
    f"TYPE_{name}"
    for name in [
        "BOOL",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "FP16",
        "FP32",
        "FP64",
        "STRING",
        "BF16",
    ]
)
#: Fields of a config.pbtxt (Triton's `ModelConfig`) that may appear once, and those that may repeat.
SINGLE_FIELDS = frozenset(
    {
        "name",
        "platform",
        "backend",
        "runtime",
        "version_policy",
        "max_batch_size",
        "optimization",
        "dynamic_batching",
        "sequence_batching",
        "ensemble_scheduling",
        "default_model_filename",
        "model_metrics",
        "model_operations",
        "model_transaction_policy",
        "model_repository_agents",
        "response_cache",
    }
)
REPEATED_FIELDS = frozenset(
    {
        "input",
        "output",
        "batch_input",
        "batch_output",
        "instance_group",
        "cc_model_filenames",
        "metric_tags",
        "parameters",
        "model_warmup",
    }
)


@dataclass(frozen=True)
class Tensor:
    """An input or output; `dims` without the batch dimension, -1 is any length."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False
    ragged: bool = False
    #: Reshaped to nothing: the model sees the batch dimension alone.
    squeeze: bool = False


@dataclass(frozen=True)
class Parameter:
    """A parameter of config.pbtxt and the option (fill_template's placeholder) that sets it."""

    key: str
    option: str
    #: `text`, `path`, `int`, `count` (1 to 2147483647), `ints`, `float`, `fraction`, `bool`, or the allowed
    #: values with `|` between.
    kind: str
    #: `None`: not set unless asked for, the backend then takes its own default.
    default: str | None
    meaning: str


def _tensors(table: str) -> tuple[Tensor, ...]:
    made = []
    for line in table.strip().splitlines():
        names, data_type, dims, *flags = line.split()
        shape = tuple(int(part) for part in dims.split(","))
        for name in names.split("/"):
            made.append(
                Tensor(
                    name,
                    data_type if data_type.startswith("<") else f"TYPE_{data_type}",
                    shape,
                    optional="opt" in flags,
                    ragged="ragged" in flags,
                    squeeze="squeeze" in flags,
                )
            )
    return tuple(made)


def _parameters(table: str) -> tuple[Parameter, ...]:
    made = []
    for line in table.strip().splitlines():
        name, kind, default, meaning = (part.strip() for part in line.split(";", 3))
        key, _, option = name.partition("=")
        made.append(Parameter(key, option or key, kind, None if default == "-" else default, meaning))
    return tuple(made)


#: What a request may ask of sampling, by the same name in ensemble and BLS.
_SAMPLING = """
text_input STRING 1
decoder_text_input STRING 1 opt
max_tokens INT32 1
num_return_sequences INT32 1 opt
bad_words/stop_words STRING -1 opt
exclude_input_in_output BOOL 1 opt
end_id/pad_id/top_k INT32 1 opt
top_p/temperature/length_penalty/repetition_penalty FP32 1 opt
min_tokens INT32 1 opt
presence_penalty/frequency_penalty FP32 1 opt
seed UINT64 1 opt
return_log_probs/return_context_logits/return_generation_logits/return_perf_metrics BOOL 1 opt
return_num_input_tokens/return_num_output_tokens BOOL 1 opt
beam_width INT32 1 opt
stream BOOL 1 opt
prompt_embedding_table <prompt_embedding_table_data_type> -1,-1 opt
prompt_table_extra_id UINT64 1 opt
prompt_vocab_size INT32 1 opt
embedding_bias_words STRING -1 opt
embedding_bias_weights FP32 -1 opt
lora_task_id UINT64 1 opt
lora_weights FP16 -1,-1 opt ragged
lora_config INT32 -1,3 opt ragged
"""


def _core_tensor(row: CoreInput | CoreOutput) -> Tensor:
    """A tensor of the core model as its config.pbtxt declares it."""
    option = DATA_TYPE_OPTIONS.get(row.name)
    data_type = f"TYPE_{'STRING' if row.datatype == 'BYTES' else row.datatype}"
    if isinstance(row, CoreOutput):
        return Tensor(row.name, f"<{option}>" if option else data_type, row.dims)
    return Tensor(
        row.name,
        f"<{option}>" if option else data_type,
        row.dims,
        optional=row.optional,
        ragged=row.ragged,
        squeeze=row.squeezed,
    )


#: The outputs of the text models: the core model's, with text in place of token ids.
_TEXT_OUT = (
    *_tensors("text_output STRING -1"),
    *(
        _core_tensor(one)
        for one in CORE.outputs
        if one.declared and one.name not in ("output_ids", "sequence_length", "context_phase_params")
    ),
)

INPUTS: dict[str, tuple[Tensor, ...]] = {
    "ensemble": _tensors(_SAMPLING + "guided_decoding_guide_type/guided_decoding_guide STRING 1 opt ragged"),
    "preprocessing": _tensors("""
QUERY STRING 1
DECODER_QUERY STRING 1 opt
IMAGE_BYTES UINT8 -1,-1,-1,-1 opt
IMAGE_URL STRING 1 opt
VIDEO_BYTES UINT8 -1,-1,-1,-1 opt
REQUEST_OUTPUT_LEN INT32 1
BAD_WORDS_DICT/STOP_WORDS_DICT/EMBEDDING_BIAS_WORDS STRING -1 opt
EMBEDDING_BIAS_WEIGHTS FP32 -1 opt
END_ID/PAD_ID INT32 1 opt
PROMPT_TABLE_EXTRA_ID UINT64 1 opt
"""),
    "tensorrt_llm": tuple(_core_tensor(one) for one in CORE.inputs if one.declared),
    "postprocessing": _tensors("TOKENS_BATCH INT32 -1,-1\nSEQUENCE_LENGTH INT32 -1"),
    "tensorrt_llm_bls": _tensors(
        _SAMPLING
        + """image_input FP16 -1,3,-1,-1 opt
image_bytes_input/video_bytes_input UINT8 -1,-1,-1,-1 opt
image_url_input STRING 1 opt
num_draft_tokens INT32 1 opt
use_draft_logits BOOL 1 opt squeeze
guided_decoding_guide_type/guided_decoding_guide STRING 1 opt
"""
    ),
}

OUTPUTS: dict[str, tuple[Tensor, ...]] = {
    "ensemble": _TEXT_OUT,
    "preprocessing": _tensors("""
INPUT_ID INT32 -1
REQUEST_INPUT_LEN INT32 1
DECODER_INPUT_ID INT32 -1
REQUEST_DECODER_INPUT_LEN INT32 1
BAD_WORDS_IDS/STOP_WORDS_IDS INT32 2,-1
EMBEDDING_BIAS FP32 -1
REQUEST_OUTPUT_LEN INT32 -1
OUT_END_ID/OUT_PAD_ID INT32 1
OUT_PROMPT_TABLE_EXTRA_IDS UINT64 -1
PIXEL_VALUES FP16 -1,-1,-1,-1
ASPECT_RATIO_IDS INT64 -1
ASPECT_RATIO_MASK INT64 -1,-1
CROSS_ATTENTION_MASK INT64 -1,-1,-1
IMAGE_SIZES INT64 2
IS_VIDEO_INPUT BOOL 1
ATTENTION_MASK INT64 -1
IMAGE_GRID_THW INT64 3
VISION_INPUT_ID INT32 -1
"""),
    "tensorrt_llm": tuple(_core_tensor(one) for one in CORE.outputs if one.declared),
    "postprocessing": _tensors("OUTPUT STRING -1"),
    "tensorrt_llm_bls": _TEXT_OUT,
}

#: Tensors of the core model that only a config.pbtxt for the Python backend has: Inflight's own, and one that
#: NVIDIA's backend reads without declaring it. Handles belong to the worker's step batching.
INFLIGHT_INPUTS = tuple(
    _core_tensor(one) for one in CORE.inputs if not one.declared and one.name != "inflight_handle"
)
INFLIGHT_OUTPUTS = tuple(_core_tensor(one) for one in CORE.outputs if not one.declared)

#: Options of a config that set fields other than its parameters.
SHAPE = _parameters("""
triton_max_batch_size; count; 8; largest batch that Triton sends
decoupled_mode; bool; true; many responses to a request; streaming needs it
logits_datatype; TYPE_FP32|TYPE_FP16|TYPE_BF16; TYPE_FP32; as the engine gathers logits
encoder_input_features_data_type; TYPE_FP16|TYPE_FP32|TYPE_BF16; TYPE_FP16; of an encoder's features
prompt_embedding_table_data_type; TYPE_FP16|TYPE_FP32|TYPE_BF16; TYPE_FP16; of prompt tables
max_queue_delay_microseconds; int; 0; dynamic batching
max_queue_size; int; 0; dynamic batching; 0 is no bound
preprocessing_instance_count; count; 1; instances
postprocessing_instance_count; count; 1; instances
bls_instance_count; count; 1; instances
""")

PARAMETERS: dict[str, tuple[Parameter, ...]] = {
    "ensemble": (),
    "preprocessing": _parameters("""
tokenizer_dir; path; -; directory of tokenizer.json
add_special_tokens; bool; true; passed to the tokenizer
multimodal_model_path; path; -; visual encoder engine
gpt_model_path=engine_dir; path; -; sizes of the vocabulary and the prompt table
max_num_images; int; -; splits the prompt table by image
hf_model_path; path; -; source of the image processor
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
tensorrt_llm_draft_model_name; text; -; the draft model
multimodal_encoders_name; text; -; the vision encoder
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
gpu_device_ids; text; -; a comma list, with `;` between instances
participant_ids; text; -; MPI ranks, likewise
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

#: Tensors of the text models that the core model takes as they are: theirs -> the core model's.
FORWARDED: dict[str, str] = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
    **{
        name: name
        for name in [
            "num_return_sequences",
            "temperature",
            "repetition_penalty",
            "min_tokens",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "return_log_probs",
            "return_context_logits",
            "return_generation_logits",
            "return_perf_metrics",
            "return_num_input_tokens",
            "return_num_output_tokens",
            "beam_width",
            "prompt_embedding_table",
            "prompt_vocab_size",
            "lora_task_id",
            "lora_weights",
            "lora_config",
            "guided_decoding_guide_type",
            "guided_decoding_guide",
        ]
    },
}

#: Ensemble steps: model -> (its inputs to ensemble tensors, its outputs to ensemble tensors).
STEPS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "preprocessing": (
        {
            "QUERY": "text_input",
            "DECODER_QUERY": "decoder_text_input",
            "REQUEST_OUTPUT_LEN": "max_tokens",
            "BAD_WORDS_DICT": "bad_words",
            "STOP_WORDS_DICT": "stop_words",
            "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
            "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
            "END_ID": "end_id",
            "PAD_ID": "pad_id",
            "PROMPT_TABLE_EXTRA_ID": "prompt_table_extra_id",
        },
        {
            "INPUT_ID": "_INPUT_ID",
            "REQUEST_INPUT_LEN": "_REQUEST_INPUT_LEN",
            "DECODER_INPUT_ID": "_DECODER_INPUT_ID",
            "REQUEST_DECODER_INPUT_LEN": "_REQUEST_DECODER_INPUT_LEN",
            "REQUEST_OUTPUT_LEN": "_REQUEST_OUTPUT_LEN",
            "STOP_WORDS_IDS": "_STOP_WORDS_IDS",
            "BAD_WORDS_IDS": "_BAD_WORDS_IDS",
            "EMBEDDING_BIAS": "_EMBEDDING_BIAS",
            "OUT_END_ID": "_END_ID",
            "OUT_PAD_ID": "_PAD_ID",
            "OUT_PROMPT_TABLE_EXTRA_IDS": "_PROMPT_TABLE_EXTRA_IDS",
        },
    ),
    "tensorrt_llm": (
        {
            "input_ids": "_INPUT_ID",
            "input_lengths": "_REQUEST_INPUT_LEN",
            "decoder_input_ids": "_DECODER_INPUT_ID",
            "decoder_input_lengths": "_REQUEST_DECODER_INPUT_LEN",
            "request_output_len": "_REQUEST_OUTPUT_LEN",
            "stop_words_list": "_STOP_WORDS_IDS",
            "bad_words_list": "_BAD_WORDS_IDS",
            "embedding_bias": "_EMBEDDING_BIAS",
            "end_id": "_END_ID",
            "pad_id": "_PAD_ID",
            "prompt_table_extra_ids": "_PROMPT_TABLE_EXTRA_IDS",
            "exclude_input_in_output": "exclude_input_in_output",
            **{core: ours for ours, core in FORWARDED.items()},
        },
        {
            "output_ids": "_TOKENS_BATCH",
            "sequence_length": "_SEQUENCE_LENGTH",
            **{t.name: t.name for t in OUTPUTS["ensemble"] if t.name != "text_output"},
        },
    ),
    "postprocessing": (
        {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"},
        {"OUTPUT": "text_output"},
    ),
}
