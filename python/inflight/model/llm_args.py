"""A file with arguments of TensorRT-LLM's `LLM`, as `trtllm-serve --config` takes it: YAML, names as in
`TorchLlmArgs`. Every argument that has no option of ours can be given in one. The `model.yaml` of Triton's
llmapi model (`llmapi`) is such a file with keys for Triton.

Owns what may be in it, how it is merged with others, and what an unknown name was probably meant to be. Knows
none of TensorRT-LLM's classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake

#: A file of more is not one of arguments.
_MAX_BYTES = 1 << 20

#: Arguments that a worker sets itself, or that would change what it serves.
OWNED = {
    "model": "it is the directory that is served",
    "tokenizer": "it is in the directory that is served",
    "skip_tokenizer_init": "the worker sets it as the model needs it",
    "enable_iter_perf_stats": "the worker needs them for its metrics",
    "num_postprocess_workers": "the gateway turns tokens into text",
    "postprocess_tokenizer_dir": "the gateway turns tokens into text",
    "encode_only": "it is an option: `--executor-option encode_only=true`",
    "mm_encoder_only": "the worker generates text",
}
#: Arguments of those, at the values that a worker gives them or that change nothing.
_SET_BY_WORKERS = {
    "skip_tokenizer_init": False,
    "enable_iter_perf_stats": True,
    "num_postprocess_workers": 0,
    "encode_only": False,
    "mm_encoder_only": False,
}
BACKEND = "pytorch"
#: The key that only a `model.yaml` of Triton's llmapi model has, and all that are for Triton.
TRITON = "triton_config"
PROCESSORS = "logits_post_processors"
TRITONS = (TRITON, PROCESSORS)
#: Configurations of which several kinds exist: another one is not merged with the first.
_WHOLE = frozenset({"speculative_config", "sparse_attention_config"})


def read_arguments(path: Path) -> dict[str, Any]:
    """The arguments in the file. Errors: `UserMistake` for one that cannot be read, is not a mapping, or has
    what the worker sets itself.

    In a `model.yaml` of Triton's, what is for Triton is left out, and `model` too, which is what is served.
    """
    found = load(path, f"`llm_args` is `{path}`, which")
    if TRITON in found:
        found = _without_tritons(found)
    if found.get("backend", BACKEND) != BACKEND:
        raise UserMistake(
            f"`{path}` sets `backend` to `{found['backend']}`, and workers run `{BACKEND}`",
            "leave `backend` out",
        )
    found.pop("backend", None)
    for name, why in OWNED.items():
        if name in found:
            raise UserMistake(f"`{path}` sets `{name}`, which cannot be given: {why}", f"leave `{name}` out")
    return found


def load(path: Path, which: str) -> dict[str, Any]:
    """The mapping in a YAML file; `which` begins an error's sentence."""
    # By name: it has no types.
    yaml: Any = import_module("yaml")
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError("it has more than 1 MiB")
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        # Dates and the like, which no argument is, and which the manifest could not keep.
        found = {} if found is None else json.loads(json.dumps(found))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        text = " ".join(str(error).split())
        raise UserMistake(
            f"{which} cannot be read: {text}", "pass a YAML file of names and values"
        ) from error
    if not isinstance(found, dict):
        raise UserMistake(f"{which} is not a mapping", "write `name: value` for each argument of `LLM`")
    return found


def _without_tritons(found: dict[str, Any]) -> dict[str, Any]:
    """The arguments that `LLM` gets, but for those with the values that a worker sets itself."""
    same: dict[str, Any] = {**_SET_BY_WORKERS, "tokenizer": found.get("model")}
    return {
        name: value
        for name, value in found.items()
        if name not in (*TRITONS, "model", "revision") and (name not in same or same[name] != value)
    }


def merge(
    below: Mapping[str, Any],
    above: Mapping[str, Any],
    replaced: Callable[[str, Any, Any], None] | None = None,
    prefix: str = "",
) -> dict[str, Any]:
    """`above` over `below`: configurations are merged by their fields, all else is replaced, which `replaced`
    hears with the name and both values."""
    merged = dict(below)
    for name, value in above.items():
        before = merged.get(name)
        mergeable = isinstance(before, Mapping) and isinstance(value, Mapping) and name not in _WHOLE
        if mergeable:
            value = merge(before or {}, value, replaced, f"{prefix}{name}.")
        elif name in merged and before != value and replaced is not None:
            replaced(f"{prefix}{name}", before, value)
        merged[name] = value
    return merged


def suggest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return near[0] if near else None
