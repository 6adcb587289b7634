"""The llmapi model of TensorRT-LLM's Triton backend: its tensors as data, and its code and tensors in a
checkout of TensorRT-LLM's sources, which is the user's.

Names and types are those of TensorRT-LLM 1.2.1; later ones are marked. No tensor has a batch dimension. Of
NVIDIA's code nothing is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inflight.errors import UserMistake
from inflight.triton.repository.pbtxt import Message, PbtxtError, parse
from inflight.triton.repository.tables import Tensor

#: The model's name in NVIDIA's repository.
MODEL = "tensorrt_llm"
#: Below a checkout of TensorRT-LLM, and what people may pass instead.
FOLDERS = (
    "triton_backend/all_models/llmapi/tensorrt_llm",
    "all_models/llmapi/tensorrt_llm",
    "llmapi/tensorrt_llm",
    "tensorrt_llm",
    ".",
)
CODE = "model.py"
#: What the model's code imports from its own folder.
HELPERS = "helpers.py"


def _table(text: str, *, optional: bool = False) -> tuple[Tensor, ...]:
    made = []
    for line in text.strip().splitlines():
        name, kind, size = line.split()
        made.append(Tensor(name, f"TYPE_{kind}", (int(size),), optional=optional))
    return tuple(made)


INPUTS = _table("text_input STRING -1") + _table(
    """
    streaming BOOL 1
    sampling_param_best_of INT32 1
    sampling_param_temperature FP32 1
    sampling_param_top_k INT32 1
    sampling_param_top_p FP32 1
    sampling_param_frequency_penalty FP32 1
    sampling_param_presence_penalty FP32 1
    sampling_param_max_tokens INT32 1
    sampling_param_stop STRING -1
    sampling_param_seed UINT64 1
    sampling_param_exclude_input_from_output BOOL 1
    sampling_param_return_perf_metrics BOOL 1
    return_finish_reason BOOL 1
    return_stop_reason BOOL 1
    return_cumulative_logprob BOOL 1
    stop BOOL 1
    """,
    optional=True,
)
#: Of releases after 1.2.1: adapters by path. And of proposed changes: images, named processors of logits.
LATER_INPUTS = _table(
    """
    lora_id UINT64 1
    lora_name STRING 1
    lora_path STRING 1
    lora_ckpt_source STRING 1
    image_url STRING -1
    sampling_param_logits_post_processor_name STRING 1
    """,
    optional=True,
)
OUTPUTS = _table(
    """
    text_output STRING -1
    finish_reason STRING -1
    stop_reason STRING -1
    cumulative_logprob FP32 -1
    kv_cache_reused_block INT32 -1
    kv_cache_missed_block INT32 -1
    kv_cache_alloc_new_blocks INT32 -1
    kv_cache_alloc_total_blocks INT32 -1
    kv_cache_hit_rate FP32 -1
    arrival_time_ns INT64 1
    first_scheduled_time_ns INT64 1
    first_token_time_ns INT64 1
    last_token_time_ns INT64 1
    acceptance_rate FP32 1
    total_accepted_draft_tokens INT32 1
    total_draft_tokens INT32 1
    """
)


@dataclass(frozen=True)
class Sources:
    """What a checkout has of the model: its code by file name, and the tensors that this code takes."""

    code: dict[str, str]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def read_sources(directory: Path) -> Sources:
    """The model in a checkout of TensorRT-LLM. Raises `UserMistake` where it is not there."""
    folders = (directory / folder for folder in FOLDERS)
    folder = next((one for one in folders if (one / "1" / CODE).is_file()), None)
    if folder is None:
        raise UserMistake(
            f"`--sources {directory}` has no `{FOLDERS[0]}/1/{CODE}`",
            "pass a checkout of TensorRT-LLM at the tag of the version that Triton runs",
        )
    path = folder / "config.pbtxt"
    try:
        code = {file.name: file.read_text(encoding="utf-8") for file in sorted((folder / "1").glob("*.py"))}
        path = folder / "config.pbtxt"
        config = parse(path.read_text(encoding="utf-8"))
        return Sources(code, _tensors(config, "input"), _tensors(config, "output"))
    except (OSError, UnicodeDecodeError, PbtxtError, ValueError) as error:
        raise UserMistake(
            f"the llmapi model in `{folder}` cannot be read: {error}", "check out the sources again"
        ) from error


def _tensors(config: Message, field: str) -> tuple[Tensor, ...]:
    """As declared. Raises `ValueError` for a tensor without a name, a type or sizes."""
    made = []
    for held in config.get(field, []):
        if not isinstance(held, dict):
            raise ValueError(f"`{field}` of `config.pbtxt` is not a list of tensors")
        name, data_type, dims = held.get("name"), held.get("data_type"), held.get("dims")
        if not name or not data_type or not dims or not all(isinstance(size, int) for size in dims):
            raise ValueError(f"a tensor of `{field}` in `config.pbtxt` has no name, type or sizes")
        optional = held.get("optional", [False])[-1] is True
        made.append(Tensor(str(name[-1]), str(data_type[-1]), tuple(dims), optional=optional))
    return tuple(made)
