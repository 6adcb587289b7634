"""What a context worker hands to a generation worker besides, in later versions than 1.2: the rank and the
endpoint that hold the cache, the id of the transfer, who schedules first.

Owns which fields of `DisaggregatedParams` travel, and that both sides know the same ones. The four that 1.2
has are `convert`'s.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from inflight.executors.tensorrt_llm.convert import Refused
from inflight.executors.tensorrt_llm.verify import parameters

#: Numbers, texts and flat structures of them. Logits, log probabilities and handles of images stay behind.
_TRAVEL = ("disagg_request_id", "ctx_dp_rank", "ctx_info_endpoint", "schedule_style", "ctx_usage")
#: The one whose values are an enumeration: its class.
_STYLE, _STYLE_CLASS = "schedule_style", "DisaggScheduleStyle"


def further_fields(params: Any) -> dict[str, Any]:
    """Those that are there and have a value, as JSON holds them."""
    found = {name: getattr(params, name, None) for name in _TRAVEL}
    return {
        name: value.name if isinstance(value, enum.Enum) else value
        for name, value in found.items()
        if value is not None
    }


def further_keywords(more: dict[str, Any], find: Callable[[str], Any]) -> dict[str, Any]:
    """The same as keywords of the installed `DisaggregatedParams`. Errors: `Refused` where it lacks one: the
    cache could not be found without."""
    taken = parameters(find("DisaggregatedParams"))
    known = [name for name in _TRAVEL if taken is None or name in taken]
    unknown = sorted(set(more) - set(known))
    if unknown:
        raise Refused(
            f"`context_phase_params` has `{unknown[0]}`, which this worker's TensorRT-LLM does not; run one "
            "version on context and generation workers"
        )
    keywords = dict(more)
    style = keywords.get(_STYLE)
    if isinstance(style, str):
        member = getattr(find(_STYLE_CLASS), style, None)
        if member is None:
            raise Refused(f"`context_phase_params` has the unknown `{_STYLE}` `{style[:64]}`")
        keywords[_STYLE] = member
    return keywords
