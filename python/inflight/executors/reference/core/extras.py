"""What a request asks for in tensors that the worker hands through unread.

Owns the reading of `Request.tensors` by Triton's names and what their values may be. Pure; the errors are
`Refused`. Knows nothing of what becomes of the values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inflight.executors.base import NamedTensor, Request, StatusCode
from inflight.executors.images import IMAGES
from inflight.executors.reference.model.array_types import Float32

from .adapters import LoraRequest
from .context_phase import CONTEXT_ONLY, CONTEXT_PHASE_PARAMS, GENERATION_ONLY, REQUEST_TYPE, WHOLE
from .guides import GUIDE_TYPES, GuideRequest
from .hearing import AUDIO
from .pooling import POOLINGS, Pooling
from .prompt_tuning import PromptTuning
from .refusal import Refused, invalid
from .reuse import DEFAULT_PLAN, DEFAULT_RETENTION, Retention, RetentionPlan
from .thinking import Thinking

#: TensorRT-LLM's ``Request.kDefaultPriority``, of 0 to 1.
DEFAULT_PRIORITY = 0.5
#: The last one: nobody waits for the answer. What a gateway asks for may come down to just above it.
IDLE_PRIORITY = 0.0

#: Ranges of one request's retention; TensorRT-LLM has no limit, and each is looked at for every block.
_MAX_RANGES = 256

#: Draft tokens of a request: each is a row of an iteration.
_MAX_DRAFTS = 256

#: Tokens of what begins or ends a sequence's reasoning.
_MAX_MARK = 32

_DTYPES = {
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT64": "<u8",
    "FP16": "<f2",
    "BF16": "<u2",
    "FP32": "<f4",
}


@dataclass(frozen=True, slots=True)
class ExternalDrafts:
    """``ExternalDraftTokensConfig``: tokens that a client guesses for the beginning of the output."""

    tokens: tuple[int, ...]
    #: The draft model's ``[tokens, vocabulary]``; None: a guess must be the token that is chosen.
    logits: Float32 | None = None
    #: Share of the draft's probability that the model must give; None: a number drawn for each token.
    acceptance_threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """The part of a request that this worker computes."""

    kind: str
    #: What the other part left; empty for the first.
    params: bytes = b""


@dataclass(frozen=True, slots=True)
class Extras:
    """The tensors' values, with every default filled in."""

    priority: float = DEFAULT_PRIORITY
    retention: RetentionPlan = DEFAULT_PLAN
    #: Requests with different salts never share blocks.
    cache_salt: bytes = b""
    drafts: ExternalDrafts | None = None
    guide: GuideRequest | None = None
    lora: LoraRequest | None = None
    prompt_tuning: PromptTuning | None = None
    #: How the prompt becomes an embedding; None: it is not asked for.
    pooling: Pooling | None = None
    #: The alternatives whose log probabilities are reported; empty: the best ones.
    log_prob_ids: tuple[int, ...] = ()
    #: How long a sequence may think; None: as long as it likes.
    thinking: Thinking | None = None
    #: The files of its images, until they are prepared.
    images: NamedTensor | None = None
    #: The samples of its clip.
    audio: NamedTensor | None = None
    #: None: the whole request.
    phase: Phase | None = None


def read_extras(request: Request) -> Extras:
    """The values of a request's tensors. Errors: `Refused` for one that is unknown or cannot be."""
    if not request.tensors:
        return _NOTHING
    by_name = {tensor.name: tensor for tensor in request.tensors}
    extras = _NOTHING
    for names, read in _READERS:
        if any(name in by_name for name in names):
            taken = {name: by_name.pop(name) for name in names if name in by_name}
            extras = read(extras, taken)
    if by_name:
        raise Refused(
            StatusCode.UNIMPLEMENTED,
            f"the reference executor does not implement `{', '.join(by_name)}`; send the request without it",
        )
    return extras


def _priority(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    value = float(_scalar(tensors["priority"]))
    if not 0.0 <= value <= 1.0:
        raise invalid(f"priority is `{value:g}`; it must be between 0 and 1")
    return replace(extras, priority=value)


def _phase(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    """``RequestType`` and ``ContextPhaseParams``."""
    kind = text(tensors[REQUEST_TYPE]) if REQUEST_TYPE in tensors else WHOLE
    params = tensors[CONTEXT_PHASE_PARAMS].data if CONTEXT_PHASE_PARAMS in tensors else b""
    if kind not in (CONTEXT_ONLY, GENERATION_ONLY, WHOLE):
        raise invalid(f"{REQUEST_TYPE} is `{kind}`; use one of {WHOLE}, {CONTEXT_ONLY}, {GENERATION_ONLY}")
    if params and kind != GENERATION_ONLY:
        raise invalid(f"{CONTEXT_PHASE_PARAMS} came with the {REQUEST_TYPE} `{kind}`; send one of them")
    if not params and kind == GENERATION_ONLY:
        raise invalid(f"{REQUEST_TYPE} is `{kind}` without {CONTEXT_PHASE_PARAMS}; send both")
    return extras if kind == WHOLE else replace(extras, phase=Phase(kind, params))


def _cache_salt(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    return replace(extras, cache_salt=text(tensors[CACHE_SALT]).encode())


def _pooling(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    name = text(tensors[POOLING])
    if name not in POOLINGS:
        raise invalid(f"{POOLING} is `{name}`; use one of {', '.join(POOLINGS)}")
    return replace(extras, pooling=Pooling(name))


def _images(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    value = tensors[IMAGES]
    return replace(extras, images=value if value.data else None)


def _audio(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    value = tensors[AUDIO]
    return replace(extras, audio=value if value.data else None)


def _log_prob_ids(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    ids = numbers(tensors[LOG_PROB_IDS]).reshape(-1)
    return replace(extras, log_prob_ids=tuple(int(one) for one in ids))


def _thinking(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    if not {THINKING_BUDGET, THINKING_END_IDS} <= tensors.keys():
        raise invalid(f"{' and '.join(tensors)} came without {THINKING_BUDGET} and {THINKING_END_IDS}")
    budget = int(_scalar(tensors[THINKING_BUDGET]))
    if budget < 0:
        raise invalid(f"{THINKING_BUDGET} is `{budget}`; it must be at least 0")

    def ids(name: str) -> tuple[int, ...]:
        return tuple(int(one) for one in numbers(tensors[name]).reshape(-1)) if name in tensors else ()

    start, end = ids(THINKING_START_IDS), ids(THINKING_END_IDS)
    if not 1 <= len(end) <= _MAX_MARK or len(start) > _MAX_MARK:
        raise invalid(
            f"the marks of the reasoning have {len(start)} and {len(end)} tokens; each may have {_MAX_MARK}, "
            "and the end must have one"
        )
    return replace(extras, thinking=Thinking(budget, start, end))


def _retention(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    """``KvCacheRetentionConfig``: ranges of the prompt with priorities of 0 to 100, and what is generated."""

    def column(name: str) -> list[int]:
        tensor = tensors.get(f"retention_token_range_{name}")
        return [] if tensor is None else [int(value) for value in numbers(tensor)]

    starts, ends, priorities = column("starts"), column("ends"), column("priorities")
    durations = column("durations_ms") or [-1] * len(starts)
    if not len(starts) == len(ends) == len(priorities) == len(durations):
        raise invalid(
            f"the retention ranges have {len(starts)} starts, {len(ends)} ends, {len(priorities)} priorities "
            f"and {len(durations)} durations; send as many of each"
        )
    if len(starts) > _MAX_RANGES:
        raise invalid(f"there are {len(starts)} retention ranges; there may be {_MAX_RANGES}")
    ranges: list[tuple[int, int | None, Retention]] = []
    for start, end, priority, duration in zip(starts, ends, priorities, durations, strict=True):
        if start < 0 or (end != -1 and end <= start):
            raise invalid(f"a retention range is `{start}` to `{end}`; it must end after its start, or at -1")
        ranges.append((start, None if end == -1 else end, _worth(priority, duration)))
    ranges.sort(key=lambda one: one[0])
    for (start, last, _), (following, _, _) in itertools.pairwise(ranges):
        if last is None or last > following:
            raise invalid(f"the retention ranges from `{start}` and `{following}` overlap; separate them")
    decode = DEFAULT_RETENTION
    if "retention_decode_priority" in tensors:
        duration_tensor = tensors.get("retention_decode_duration_ms")
        duration = -1 if duration_tensor is None else int(_scalar(duration_tensor))
        decode = _worth(int(_scalar(tensors["retention_decode_priority"])), duration)
    elif "retention_decode_duration_ms" in tensors:
        raise invalid("retention_decode_duration_ms is without its retention_decode_priority; send both")
    return replace(extras, retention=RetentionPlan(tuple(ranges), decode))


def _drafts(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    """``ExternalDraftTokensConfig``."""
    if "draft_input_ids" not in tensors:
        raise invalid(f"{' and '.join(tensors)} came without draft_input_ids; send both or none")
    tokens = tuple(int(token) for token in numbers(tensors["draft_input_ids"]).reshape(-1))
    if not tokens:
        return extras
    if len(tokens) > _MAX_DRAFTS:
        raise invalid(f"draft_input_ids has {len(tokens)} tokens; it may have {_MAX_DRAFTS}")
    logits = numbers(tensors["draft_logits"]) if "draft_logits" in tensors else None
    threshold = None
    if "draft_acceptance_threshold" in tensors:
        threshold = float(_scalar(tensors["draft_acceptance_threshold"]))
        if not 0.0 <= threshold <= 1.0:
            raise invalid(f"draft_acceptance_threshold is `{threshold:g}`; it must be between 0 and 1")
    if logits is not None and not bool(np.isfinite(logits).all()):
        raise invalid("draft_logits holds a value that is not a number or is infinite; send finite values")
    return replace(extras, drafts=ExternalDrafts(tokens, logits, threshold))


def _guide(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    """``GuidedDecodingParams``."""
    if "guided_decoding_guide_type" not in tensors:
        raise invalid("guided_decoding_guide is without its guided_decoding_guide_type; send both")
    guide_type = text(tensors["guided_decoding_guide_type"])
    if guide_type not in GUIDE_TYPES:
        raise invalid(f"guided_decoding_guide_type is `{guide_type}`; use one of {', '.join(GUIDE_TYPES)}")
    guide = tensors.get("guided_decoding_guide")
    if guide is None and guide_type != "json":
        raise invalid(f"guided_decoding_guide_type `{guide_type}` is without its guided_decoding_guide")
    return replace(extras, guide=GuideRequest(guide_type, "" if guide is None else text(guide)))


def _lora(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    """``LoraConfig``."""
    if "lora_task_id" not in tensors:
        raise invalid(f"{' and '.join(tensors)} came without lora_task_id; send all or none")
    weights, config = (
        numbers(tensors[name]) if name in tensors and 0 not in tensors[name].shape else None
        for name in ("lora_weights", "lora_config")
    )
    if (weights is None) != (config is None):
        raise invalid("one of lora_weights and lora_config came without the other; send both or none")
    return replace(extras, lora=LoraRequest(int(_scalar(tensors["lora_task_id"])), weights, config))


def _prompt_tuning(extras: Extras, tensors: dict[str, NamedTensor]) -> Extras:
    """``PromptTuningConfig``. Only Triton's models use ``prompt_vocab_size``, among themselves; like
    TensorRT-LLM, the executor counts the rows of the table."""
    table, extra_ids = (
        numbers(tensors[name]) if name in tensors and 0 not in tensors[name].shape else None
        for name in ("prompt_embedding_table", "prompt_table_extra_ids")
    )
    if table is None:
        if extra_ids is not None:
            raise invalid("prompt_table_extra_ids came without prompt_embedding_table; send both or none")
        return extras
    if not bool(np.isfinite(table).all()):
        raise invalid(
            "prompt_embedding_table holds a value that is not a number or is infinite; send finite values"
        )
    ids = () if extra_ids is None else tuple(extra_ids.reshape(-1).tolist())
    return replace(extras, prompt_tuning=PromptTuning(table, ids))


def _worth(priority: int, duration_ms: int) -> Retention:
    if not 0 <= priority <= 100:
        raise invalid(f"a retention priority is `{priority}`; it must be between 0 and 100")
    if duration_ms < -1:
        raise invalid(f"a retention duration is `{duration_ms}` ms; it must not be negative, or -1 for ever")
    return Retention(priority, None if duration_ms == -1 else duration_ms / 1000.0)


def numbers(tensor: NamedTensor) -> np.ndarray[Any, Any]:
    """A tensor's values in its shape. Errors: `Refused` where bytes and shape do not fit."""
    dtype = _DTYPES.get(tensor.datatype)
    if dtype is None:
        raise invalid(f"{tensor.name} is of type {tensor.datatype}; it must hold numbers")
    shape = tuple(int(size) for size in tensor.shape)
    if len(tensor.data) != np.dtype(dtype).itemsize * math.prod(shape):
        raise invalid(f"{tensor.name} has {len(tensor.data)} bytes, which is not its shape `{list(shape)}`")
    values = np.frombuffer(tensor.data, dtype=dtype).reshape(shape)
    if tensor.datatype == "BF16":
        # The upper half of a float32.
        return (values.astype("<u4") << 16).view("<f4")
    return values


def _scalar(tensor: NamedTensor) -> Any:
    values = numbers(tensor).reshape(-1)
    if len(values) != 1:
        raise invalid(f"{tensor.name} has {len(values)} values; it must have one")
    return values[0]


def text(tensor: NamedTensor) -> str:
    """The one string of a BYTES tensor: its length in four bytes, then itself."""
    data = tensor.data
    if tensor.datatype != "BYTES" or len(data) < 4 or int.from_bytes(data[:4], "little") != len(data) - 4:
        raise invalid(f"{tensor.name} must hold one string")
    try:
        return data[4:].decode()
    except UnicodeDecodeError as error:
        raise invalid(f"{tensor.name} is not UTF-8") from error


CACHE_SALT = "inflight_cache_salt"
POOLING = "inflight_pooling"
LOG_PROB_IDS = "inflight_log_prob_ids"
THINKING_BUDGET = "inflight_thinking_budget"
THINKING_START_IDS = "inflight_thinking_start_ids"
THINKING_END_IDS = "inflight_thinking_end_ids"

_NOTHING = Extras()

_Reader = Callable[[Extras, dict[str, NamedTensor]], Extras]

#: Names that are read together, and what reads them.
_READERS: Sequence[tuple[Sequence[str], _Reader]] = (
    (("priority",), _priority),
    ((REQUEST_TYPE, CONTEXT_PHASE_PARAMS), _phase),
    ((CACHE_SALT,), _cache_salt),
    ((POOLING,), _pooling),
    ((LOG_PROB_IDS,), _log_prob_ids),
    ((IMAGES,), _images),
    ((AUDIO,), _audio),
    ((THINKING_BUDGET, THINKING_START_IDS, THINKING_END_IDS), _thinking),
    (("guided_decoding_guide_type", "guided_decoding_guide"), _guide),
    (("lora_task_id", "lora_weights", "lora_config"), _lora),
    (("prompt_embedding_table", "prompt_table_extra_ids", "prompt_vocab_size"), _prompt_tuning),
    (("draft_input_ids", "draft_logits", "draft_acceptance_threshold"), _drafts),
    (
        (
            "retention_token_range_starts",
            "retention_token_range_ends",
            "retention_token_range_priorities",
            "retention_token_range_durations_ms",
            "retention_decode_priority",
            "retention_decode_duration_ms",
        ),
        _retention,
    ),
)
