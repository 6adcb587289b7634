"""The five models as data: every tensor with its type and shape, and how the ensemble joins them.

Names, types and shapes are those of NVIDIA's tensorrtllm_backend (release line 0.20 to 1.2). They come from
the worker's tables. A data type in angle brackets is the option of that name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inflight._native import CoreInput, CoreOutput, core_model, text_models

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


#: The tables of the text models (`crates/worker/src/text_models`).
_TEXT = {model.name: model for model in text_models()}


def _declared(rows: Iterable[CoreInput] | Iterable[CoreOutput]) -> tuple[Tensor, ...]:
    return tuple(_core_tensor(row) for row in rows if row.declared)


#: Inputs of earlier releases that NVIDIA's BLS has to this day. An ensemble joins tensors one to one, so that
#: it cannot have a second name.
OLDER_INPUTS = ("min_length", "random_seed")
INPUTS: dict[str, tuple[Tensor, ...]] = {
    model: _declared(CORE.inputs if model == CORE.name else _TEXT[model].inputs) for model in MODELS
}
INPUTS["tensorrt_llm_bls"] += tuple(
    _core_tensor(row) for row in _TEXT["tensorrt_llm_bls"].inputs if row.name in OLDER_INPUTS
)
OUTPUTS: dict[str, tuple[Tensor, ...]] = {
    model: _declared(CORE.outputs if model == CORE.name else _TEXT[model].outputs) for model in MODELS
}

#: Tensors of the core model that only a config.pbtxt for the Python backend has: Inflight's own, and one that
#: NVIDIA's backend reads without declaring it. Handles belong to the worker's step batching.
INFLIGHT_INPUTS = tuple(
    _core_tensor(one) for one in CORE.inputs if not one.declared and one.name != "inflight_handle"
)
INFLIGHT_OUTPUTS = tuple(_core_tensor(one) for one in CORE.outputs if not one.declared)

#: Tensors of the text models that the core model takes as they are: theirs -> the core model's.
FORWARDED: dict[str, str] = {
    row.name: row.path for row in _TEXT["ensemble"].inputs if row.declared and row.path is not None
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
