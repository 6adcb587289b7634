"""A repository for an engine becomes that of the llmapi model. Owns what the one model does not take over
from the five, and what their clients call its tensors; what becomes of an engine is `repository.convert`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from inflight.model.tokenizer import has_tokenizer
from inflight.options import instance_lists
from inflight.triton.repository.check import one, parameters_of, role_of
from inflight.triton.repository.convert import Change, Conversion, models_of
from inflight.triton.repository.convert import convert as without_engine
from inflight.triton.repository.llmapi_options import ALONE, meaningless
from inflight.triton.repository.llmapi_tables import INPUTS, LATER_INPUTS, MODEL, OUTPUTS
from inflight.triton.repository.options import options
from inflight.triton.repository.pbtxt import Message

#: Models that clients call, the likeliest first.
_CALLED = ("ensemble", "tensorrt_llm_bls", "tensorrt_llm")
#: What an engine that gathers logits sets, which the model does not return.
_LOGITS = frozenset({"enable_kv_cache_reuse", "gather_generation_logits"})

_SAMPLING = "sampling_param_"
#: Input or output of the five models -> the llmapi model's, where the name or the meaning differs.
_RENAMED = {
    "input_ids": ("text_input", "text in place of token ids"),
    "max_tokens": (f"{_SAMPLING}max_tokens", ""),
    "request_output_len": (f"{_SAMPLING}max_tokens", ""),
    "stop_words": (f"{_SAMPLING}stop", ""),
    "stop_words_list": (f"{_SAMPLING}stop", "text in place of token ids"),
    "exclude_input_in_output": (f"{_SAMPLING}exclude_input_from_output", ""),
    "top_k": (f"{_SAMPLING}top_k", ""),
    "runtime_top_k": (f"{_SAMPLING}top_k", ""),
    "top_p": (f"{_SAMPLING}top_p", ""),
    "runtime_top_p": (f"{_SAMPLING}top_p", ""),
    "temperature": (f"{_SAMPLING}temperature", ""),
    "presence_penalty": (f"{_SAMPLING}presence_penalty", ""),
    "frequency_penalty": (f"{_SAMPLING}frequency_penalty", ""),
    "seed": (f"{_SAMPLING}seed", ""),
    "random_seed": (f"{_SAMPLING}seed", ""),
    "return_perf_metrics": (f"{_SAMPLING}return_perf_metrics", ""),
    "return_log_probs": ("return_cumulative_logprob", "the sum alone"),
    "stream": ("streaming", ""),
    "lora_task_id": ("lora_id", "with `lora_name` and `lora_path`, in releases after 1.2.1"),
    "output_ids": ("text_output", "text in place of token ids"),
    "cum_log_probs": ("cumulative_logprob", ""),
    "kv_cache_reused_blocks": ("kv_cache_reused_block", ""),
}


def convert(old: Path, checkpoint: Path, chosen: Mapping[str, str]) -> Conversion:
    """The options for `create --backend llmapi`, and an account of every setting and tensor of the old one.
    Raises `UserMistake` for a directory that is not a repository for an engine.
    """
    models = models_of(old)
    found = without_engine(old, checkpoint, {})
    kept = {change.name for change in found.changes if change.state == "kept" and change.model != "engine"}
    dropped = {"tokenizer_dir", *(_LOGITS - kept)}
    given = {
        name: value
        for name, value in found.given.items()
        if meaningless(name) is None and name not in dropped
    }
    if not has_tokenizer(checkpoint):
        given["tokenizer_dir"] = found.given["tokenizer_dir"]
    changes = [change for one in found.changes if (change := _change(one, given)) is not None]
    devices = parameters_of(models[MODEL][1]).get("gpu_device_ids", "")
    if _instances(devices) > 1:
        given["gpu_device_ids"] = devices
    for name, value in chosen.items():
        if name in given and given[name] != value:
            changes.append(Change("you", name, "changed", f"`{given[name]}` becomes `{value}`"))
        given[name] = value
    changes = [change for change in changes if change.state != "ask" or change.name not in chosen]
    return Conversion(given, (*changes, *_clients(models)))


def _change(change: Change, given: Mapping[str, str]) -> Change | None:
    """What is said of a setting, in view of the one model; nothing of tensors, which `_clients` names."""
    name, value = change.name, change.what.split(":")[0]
    if name.startswith("input "):
        return None
    if name == "the model":
        return replace(change, state="left out", what="there was none, and none is needed")
    if name in ("gather_context_logits", "gather_generation_logits"):
        return replace(change, state="lost", what="`true`: the llmapi model returns no logits")
    if name == "gpu_device_ids" and _instances(value.strip("`")) > 1:
        return replace(change, state="kept", what=value)
    if name == "tokenizer_dir" and change.state in ("kept", "ask") and name not in given:
        return replace(change, state="left out", what=f"{value}: the checkpoint has its own tokenizer")
    if name == "lora_prefetch_dir" and change.state == "lost":
        return replace(change, what=f"{value}: {meaningless(name)}")
    if name == "instance count":
        return replace(change, state="left out", what=f"{value}: {ALONE}")
    if name == "tensorrt_llm_model_name" or (name == "gpt_model_path" and role_of(change.model) != MODEL):
        return replace(change, state="left out", what=ALONE)
    if change.model == "engine" or change.state not in ("kept", "ask"):
        return change
    option = "triton_max_batch_size" if name == "max_batch_size" else name
    why = meaningless(option)
    if why is None or (name == "max_batch_size" and change.state == "ask"):
        return change
    known = options().get(option)
    is_default = known is not None and value.strip("`") == known.default
    return replace(change, state="left out" if is_default else "lost", what=f"{value}: {why}")


def _instances(devices: str) -> int:
    try:
        return len(instance_lists(devices)) if devices else 0
    except ValueError:
        return 0


def _clients(models: Mapping[str, tuple[str, Message]]) -> Iterator[Change]:
    """What clients change: the model that they call, and each of its tensors."""
    name, config = next(models[role] for role in _CALLED if role in models)
    if name != MODEL:
        yield Change(name, "the model", "changed", f"clients call `{MODEL}`")
    yield Change(name, "shapes", "changed", "no tensor has a batch dimension: `[1]`, not `[1, 1]`")
    inputs = {tensor.name for tensor in (*INPUTS, *LATER_INPUTS)}
    outputs = {tensor.name for tensor in OUTPUTS}
    for field, known in (("input", inputs), ("output", outputs)):
        for tensor in config.get(field, []):
            held = str(one(tensor, "name")) if isinstance(tensor, dict) else ""
            here = f"{field} {held}"
            if held == "text_output":
                yield Change(name, here, "changed", "in a stream, each response has all text so far")
            elif held in known:
                yield Change(name, here, "kept", f"`{held}`")
            elif held in _RENAMED:
                other, how = _RENAMED[held]
                yield Change(name, here, "changed", f"`{other}`" + (f", {how}" if how else ""))
            else:
                yield Change(name, here, "lost", f"the llmapi model has no such {field}")
