"""Which conditions of `fields` hold for one LLM of the PyTorch runtime.

Owns the probes: what an installed TensorRT-LLM does is read off its classes, never off its version, because a
release candidate has some of the next release. Knows nothing of requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from inflight.executors.tensorrt_llm.pytorch_config import SPECULATION, reuses_blocks
from inflight.executors.tensorrt_llm.verify import parameters
from inflight.model.speculation import CLASSES, TWO_MODEL

LOG = logging.getLogger("inflight.tensorrt_llm")

OLDER_SAMPLER = "TRTLLMSampler"


def has_two_samplers(find: Callable[[str], Any]) -> bool:
    """Whether this TensorRT-LLM lets users choose a sampler.

    The choice was removed once its TorchSampler applied what the older one did: bad words, penalties, seeds,
    min-p, the decay of top-p (pull requests 16052, 16485, 17172 and 18232). Before, it ignores them silently.
    """
    arguments = find("TorchLlmArgs")
    taken = None if arguments is None else parameters(arguments)
    return taken is None or "sampler_type" in taken


def runs_older_sampler(arguments: dict[str, Any], find: Callable[[str], Any]) -> bool:
    """Whether the older sampler runs: it was asked for, or beams are, for which 1.2 takes it by itself."""
    if not has_two_samplers(find):
        return False
    kind = arguments.get("sampler_type")
    if kind is not None and kind != "auto":
        return bool(kind == OLDER_SAMPLER)
    # Later versions run beams on the newer one; only the field's own text says which.
    field = getattr(find("TorchLlmArgs"), "model_fields", {}).get("sampler_type")
    says_beams = "beam" in str(getattr(field, "description", "")).lower()
    return says_beams and (arguments.get("max_beam_width") or 1) > 1


def samples_inside_the_model(config: Any) -> bool:
    """Whether drafted tokens are sampled in the model's own pass, which knows temperature, top-k and top-p
    only. `config`: the object of `speculative_config`; None: nothing drafts.

    The object itself says so where it can; else all but the types that are known not to.
    """
    if config is None:
        return False
    try:
        return bool(config.spec_dec_mode.use_one_engine())
    except Exception as error:
        # Absent, or a type that is resolved only later.
        LOG.debug("the drafter does not say where it samples: %r", error)
    kinds = {name: kind for kind, name in CLASSES.items()}
    return kinds.get(type(config).__name__) not in TWO_MODEL


def conditions(
    arguments: dict[str, Any],
    find: Callable[[str], Any],
    *,
    adapters: bool,
    images: bool,
    encodes_anew: bool,
) -> frozenset[str]:
    """Keys of `fields.CONDITIONS`. `arguments`: those that the LLM was made with; `encodes_anew`: prompts of
    text alone are encoded anew by TensorRT-LLM, too."""
    drafter = arguments.get(SPECULATION)
    own_sampling = not samples_inside_the_model(drafter)
    older = runs_older_sampler(arguments, find)
    held = {
        "beams": (arguments.get("max_beam_width") or 1) > 1,
        "guided": bool(arguments.get("guided_decoding_backend")),
        "adapters": adapters,
        "images": images,
        "undrafted": drafter is None,
        "own_sampling": own_sampling,
        "alternatives": own_sampling and not older,
        "kept_logits": bool(arguments.get("gather_generation_logits")) and drafter is None,
        "no_reuse": not reuses_blocks(arguments) and not encodes_anew,
        "cache_transceiver": bool(arguments.get("cache_transceiver_config")),
        "full_sampler": older or (not has_two_samplers(find) and drafter is None),
    }
    return frozenset(name for name, holds in held.items() if holds)
