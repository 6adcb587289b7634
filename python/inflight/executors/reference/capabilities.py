"""What the reference executor can do, in the names that Rust owns.

Imported with the first executor and not with the package, so that a command's help needs no extension module.
"""

from __future__ import annotations

from inflight._native import Capability

#: With every model.
ALWAYS = (
    Capability.LOG_PROBS,
    Capability.TOP_LOG_PROBS,
    Capability.LOG_PROB_IDS,
    Capability.THINKING_BUDGET,
    Capability.PROMPT_LOG_PROBS,
    Capability.MIN_P,
    Capability.PENALTIES,
    Capability.MIN_TOKENS,
    Capability.BAD_WORDS,
    Capability.EMBEDDING_BIAS,
    Capability.NUM_RETURN_SEQUENCES,
    Capability.PRIORITY,
    Capability.CACHE_SALT,
    Capability.KV_CACHE_RETENTION,
    Capability.NO_REPEAT_NGRAM,
    Capability.BEAM_SEARCH,
    Capability.CONTEXT_LOGITS,
    Capability.DRAFT_TOKENS,
    Capability.GENERATION_LOGITS,
    Capability.TOP_P_DECAY,
    Capability.PERF_METRICS,
    Capability.PROMPT_TUNING,
    Capability.EMBEDDINGS,
    Capability.RESUME,
    Capability.SHORT_PROMPTS_FIRST,
)

#: But not with one that hears.
_OF_TEXT = (
    Capability.THINKING_BUDGET,
    Capability.PROMPT_LOG_PROBS,
    Capability.CONTEXT_LOGITS,
    Capability.DRAFT_TOKENS,
    Capability.PROMPT_TUNING,
    Capability.EMBEDDINGS,
)


def capabilities(
    has_guides: bool,
    has_adapters: bool,
    reuses: bool,
    sees: bool = False,
    hands_over: bool = False,
    hears: bool = False,
) -> tuple[str, ...]:
    """All that works with these parts, where blocks of the KV cache are used again, and where they go to
    other workers."""
    return (
        *((one for one in ALWAYS if one not in _OF_TEXT) if hears else ALWAYS),
        *((Capability.GUIDED_DECODING, Capability.STRUCTURAL_FORMATS) if has_guides else ()),
        *((Capability.LORA, Capability.ADAPTER_LOADING) if has_adapters else ()),
        *((Capability.CACHE_EVENTS,) if reuses else ()),
        *((Capability.IMAGES,) if sees else ()),
        *((Capability.CONTEXT_PHASE,) if hands_over else ()),
        *((Capability.TRANSCRIPTION,) if hears else ()),
    )
