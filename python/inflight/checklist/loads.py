"""With which options an executor is started, and which checks belong to which start.

Most features need an option, and some options take others away: each gets a start with it. Owns the options
of TensorRT-LLM and of the reference executor for that. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inflight.checklist.check import Check
from inflight.checklist.checks.adapters import FOLDER
from inflight.checklist.material import LAYERS
from inflight.checklist.outcome import AS_GIVEN

#: Load -> the options that make it; by what runs.
_OPTIONS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "pytorch": {
        "guides": {"guided_decoding_backend": "xgrammar"},
        "logits": {"gather_generation_logits": "true", "enable_kv_cache_reuse": "false"},
        "beams": {"max_beam_width": "2"},
        "events": {"event_buffer_max_size": "1024"},
    },
    "engines": {
        "guides": {"guided_decoding_backend": "xgrammar"},
        "logits": {"gather_generation_logits": "true"},
        "beams": {"max_beam_width": "2"},
    },
    "reference": {"events": {"event_buffer_max_size": "1024"}},
}
#: Where adapters are files.
_TAKES_FILES = {
    "pytorch": {"lora_target_modules": ",".join(LAYERS)},
    "reference": {},
}


@dataclass(frozen=True)
class Load:
    """One start of the executor."""

    name: str
    options: Mapping[str, str]


def plan(runtime: str, given: Mapping[str, str], folder: Path) -> tuple[tuple[Load, ...], Mapping[str, str]]:
    """The starts in order, and for each that is left out why. `runtime`: `pytorch`, `engines` or the
    executor's name; `given`: a user's options, which win; `folder`: where checks write adapters."""
    further = dict(_OPTIONS.get(runtime, {}))
    left_out = {}
    if "lora_adapter_dir" in given:
        left_out["adapters"] = "`lora_adapter_dir` was given, and its adapters are not known here"
    elif runtime in _TAKES_FILES:
        further["adapters"] = {"lora_adapter_dir": str(folder / FOLDER), **_TAKES_FILES[runtime]}
    else:
        left_out["adapters"] = "this executor takes the weights of adapters in requests"
    loads = [Load(AS_GIVEN, given)]
    for name, options in further.items():
        # What was given already makes the load as given do.
        if not options.keys() <= given.keys():
            loads.append(Load(name, {**options, **given}))
    return tuple(loads), left_out


def belongs(check: Check, loads: Sequence[Load]) -> str:
    """The load that a check runs with."""
    return check.load if any(load.name == check.load for load in loads) else AS_GIVEN
