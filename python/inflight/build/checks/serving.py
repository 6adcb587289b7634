"""What options of a build mean for the worker that serves the result: refused if none could serve it, noted
if the worker needs an additional option. Pure; the facts are TensorRT-LLM's executor's.
"""

from __future__ import annotations

from inflight.build.checks.lengths import Lengths
from inflight.build.options import Values
from inflight.build.options.declaration import DISABLE
from inflight.errors import Problem
from inflight.model.config import ModelFacts
from inflight.model.runtimes import PYTORCH

#: Engines without one of these are refused by TensorRT-LLM's executor, which batches in flight only.
_NEEDED = (
    ("kv_cache_type", "continuous", "a paged KV cache"),
    ("paged_kv_cache", DISABLE, "a paged KV cache"),
    ("remove_input_padding", DISABLE, "packed requests"),
    ("gpt_attention_plugin", DISABLE, "the attention plugin"),
)


#: Weights with which an fp8 cache keeps paged context FMHA.
_FP8_WEIGHTS = frozenset({"fp8", "w4a8_awq", "nvfp4"})
#: Samples that `quantize.py` calibrates AWQ with at most.
AWQ_CALIB_SIZE = 32


def _excludes_paged_context_fmha(cache: str, quantization: str) -> bool:
    return cache == "int8" or (cache == "fp8" and quantization not in _FP8_WEIGHTS)


def check_servable(values: Values) -> list[Problem]:
    """Options of an engine that no worker could load."""
    return [
        Problem(
            f"`--{name.replace('_', '-')} {value}` builds an engine that no worker can serve: in-flight"
            f" batching needs {needed}",
            f"leave `--{name.replace('_', '-')}` out",
        )
        for name, value, needed in _NEEDED
        if values[name] == value
    ]


def serving_notes(values: Values, lengths: Lengths, runtime: str, facts: ModelFacts) -> list[str]:
    """What a person has to do, or to know, before the result serves all that it was built for."""
    notes = []
    if values["strip_plan"]:
        notes.append(
            "`--strip-plan` leaves the weights out: no worker can serve the engine until"
            " `trtllm-refit` restores"
            " them from the converted checkpoint, which a build does not keep"
        )
    if "awq" in values["quantization"] and values["calib_size"] > AWQ_CALIB_SIZE:
        notes.append(
            f"`quantize.py` calibrates AWQ with at most `{AWQ_CALIB_SIZE}` samples, not"
            f" `{values['calib_size']}`"
        )
    if facts.is_encoder_decoder or values["context_fmha"] == DISABLE:
        # Prompts go to an encoder, or need not fit an iteration.
        return notes
    cache = values["kv_cache_dtype"]
    by_cache = runtime != PYTORCH and _excludes_paged_context_fmha(cache, values["quantization"])
    if by_cache:
        notes.append(
            f"`--kv-cache-dtype {cache}` turns paged context FMHA off"
            + (", because the weights are not fp8" if cache == "fp8" else "")
            + ": a worker does not reuse cache blocks, and refuses `enable_chunked_context`"
        )
    if lengths.max_input_len > lengths.max_num_tokens:
        needed = f"prompts of more than max_num_tokens, `{lengths.max_num_tokens}`, need chunks"
        if by_cache:
            notes.append(f"{needed}, which this engine cannot make: they are refused")
        elif runtime != PYTORCH and values["use_paged_context_fmha"] == DISABLE:
            notes.append(f"{needed}, which `--use-paged-context-fmha {DISABLE}` excludes: they are refused")
        else:
            notes.append(
                f"{needed}: a worker started without `--executor-option enable_chunked_context=true`"
                " refuses them"
            )
    return notes
