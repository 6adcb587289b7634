"""The five models as data: every tensor with its type and shape, and how the ensemble joins them.

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
