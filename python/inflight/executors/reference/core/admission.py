"""One request's check: refused with a reason, or turned into values that cannot fail later.

Pure; owns every limit a request can break and TensorRT-LLM's defaults for what it leaves out. Knows
nothing of queues or arrays in flight. A text names the value and says what would be accepted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from inflight.executors.base import Request, StatusCode
from inflight.executors.reference.model.array_types import Float32, Int

from . import resume
from .beams import BeamConfig
from .blocks import blocks_for
from .context_phase import CONTEXT_ONLY, REQUEST_TYPE
from .extras import LOG_PROB_IDS, THINKING_BUDGET, THINKING_END_IDS, Extras, read_extras
from .hearing import Hearing
from .prompt_facts import PromptFacts
from .prompt_tuning import PromptTuning
from .refusal import Refused, invalid
from .window import CacheWindow

#: What top_p decays to at the least, where a request does not say.
DEFAULT_TOP_P_MIN = 1e-6

#: Memory of the logits that one request may ask to be returned.
MAX_LOGIT_BYTES = 1 << 29

#: TensorRT-LLM's seed of a request that sends none: such requests repeat themselves.
DEFAULT_SEED = 0

#: Temperatures below this are greedy: dividing by them would leave float32's range.
GREEDY_TEMPERATURE = 1e-5

#: Words of one kind in a request: each is looked at for every token, while every stream waits.
MAX_WORDS = 1024

#: Alternatives reported for a token. The memory of a long prompt's is proportional to it.
MAX_ALTERNATIVES = 256


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the executor can hold."""

    vocab_size: int
    max_seq_len: int
    num_blocks: int
    tokens_per_block: int
    max_queue_size: int
    #: Longest context of one iteration; None: any, in chunks.
    max_context_tokens: int | None = None
    #: Whether a sequence may be paused: then its output is context too.
    may_pause: bool = False
    max_beam_width: int = 1
    #: What blocks a sequence keeps; None: all.
    window: CacheWindow | None = None
    #: Of the model's embeddings: what a prompt table must have.
    hidden_size: int = 0
    #: Whether requests share blocks: then the virtual tokens of different tables need different ids.
    reuses_blocks: bool = False
    #: Whether prompts are computed for other workers, and come from them.
    hands_over: bool = False
    #: Of a model that hears.
    hearing: Hearing | None = None


@dataclass(frozen=True, slots=True)
class Parameters:
    """How the tokens of one request are chosen, with every default filled in."""

    greedy: bool
    temperature: float
    top_k: int  #: 0: no limit
    top_p: float  #: 1: no limit
    min_p: float  #: 0: no limit
    seed: int
    min_tokens: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    bias_ids: Int | None
    bias_values: Float32 | None
    #: Tokens that would end the sequence, banned until ``min_tokens`` are generated.
    ending_ids: tuple[int, ...]
    bad_ids: tuple[int, ...]
    bad_sequences: tuple[tuple[int, ...], ...]
    no_repeat_ngram_size: int  #: 0: runs of tokens may repeat
    top_p_decay: float  #: 1: top_p stays as it is
    top_p_min: float
    top_p_reset_id: int  #: the token that undoes the decay; -1: none
    beams: BeamConfig | None

    @property
    def penalizes(self) -> bool:
        """Whether token counts are needed."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that fits: its parameters, its clipped length and the worst case in blocks of a sequence."""

    parameters: Parameters
    max_tokens: int
    blocks: int
    extras: Extras


def admit(request: Request, bounds: Bounds, of_images: int = 0, facts: PromptFacts | None = None) -> Admitted:
    """Checks one request, of whose prompt so many tokens are ``of_images``; ``facts`` is what is known of it.
    Errors: `Refused`.

    ``max_tokens`` beyond the sequence length is clipped, as TensorRT-LLM does; a prompt that leaves no
    room for a token is refused. 0 is allowed: the prompt is processed, for its log probabilities.
    """
    prompt = len(request.input_token_ids)
    if prompt == 0:
        raise invalid("the prompt is empty; send at least one token")
    if prompt >= bounds.max_seq_len:
        share = f", {of_images} of them of its images," if of_images else ""
        raise invalid(
            f"the prompt has {prompt} tokens{share} and a sequence holds {bounds.max_seq_len}, output "
            "included; shorten the prompt"
        )
    extras = _tell_apart(read_extras(request), prompt, bounds)
    virtual = 0 if extras.prompt_tuning is None else len(extras.prompt_tuning.table)
    ends = request.input_token_ids if facts is None else (facts.lowest, facts.highest)
    _check_ids("input_ids", ends, bounds.vocab_size + virtual)
    _check_supported(request)
    max_tokens = min(request.max_tokens, bounds.max_seq_len - prompt)
    if extras.phase is not None:
        _check_phase(request, extras.phase.kind, bounds)
        if extras.phase.kind == CONTEXT_ONLY:
            max_tokens = 1
    parameters = _parameters(request, bounds)
    resume.check(request, max_tokens, parameters.min_tokens, bounds.vocab_size)
    # The last token is never fed back, so that its keys and values need no slot.
    blocks = blocks_for(prompt + max(max_tokens, 1) - 1, bounds.tokens_per_block)
    width = 1
    if parameters.beams is not None:
        # Full blocks of the prompt are shared, all others are each beam's own.
        shared, width = prompt // bounds.tokens_per_block, parameters.beams.width
        blocks = shared + width * (blocks - shared)
    if bounds.window is not None:
        blocks = min(blocks, width * bounds.window.most_blocks(bounds.tokens_per_block))
    if blocks > bounds.num_blocks:
        raise Refused(
            StatusCode.RESOURCE_EXHAUSTED,
            f"the request needs {blocks} cache blocks and the executor has {bounds.num_blocks}; "
            "ask for fewer tokens",
        )
    computed = max(max_tokens, 1) - 1 if bounds.may_pause else resume.longest(request)
    context = prompt + computed
    if bounds.max_context_tokens is not None and context > bounds.max_context_tokens:
        raise invalid(
            f"the request has a context of {context} tokens and an iteration takes "
            f"{bounds.max_context_tokens}; send fewer, or let the server set `enable_chunked_context`"
        )
    output = request.output_config
    for name, count in (
        ("number of top log probabilities", output.num_top_log_probs),
        ("number of prompt log probabilities", output.num_prompt_log_probs or 0),
    ):
        most = min(bounds.vocab_size, MAX_ALTERNATIVES)
        if not 0 <= count <= most:
            raise invalid(f"the {name} is `{count}`; it must be between 0 and {most}")
    returned = prompt * output.return_context_logits + max_tokens * output.return_generation_logits
    if 4 * bounds.vocab_size * returned > MAX_LOGIT_BYTES:
        raise invalid(
            f"the logits of {returned} tokens take {4 * bounds.vocab_size * returned >> 20} MiB and a "
            f"request may have {MAX_LOGIT_BYTES >> 20}; ask for those of fewer tokens"
        )
    _check_together(request, parameters, extras, bounds)
    return Admitted(parameters, max_tokens, blocks, extras)


def _check_phase(request: Request, kind: str, bounds: Bounds) -> None:
    """Refuses what cannot go from one worker to another."""
    if not bounds.hands_over:
        raise Refused(
            StatusCode.UNIMPLEMENTED,
            f"{REQUEST_TYPE} is `{kind}` and this worker hands nothing over; start it with the option "
            "`cache_transceiver_backend`",
        )
    sampling = request.sampling_config
    for name, value in (
        ("beam_width", sampling.beam_width),
        ("num_return_sequences", sampling.num_return_sequences),
    ):
        if value > 1:
            raise Refused(
                StatusCode.UNIMPLEMENTED,
                f"the reference executor does not implement `{name}` of `{value}` with the {REQUEST_TYPE} "
                f"`{kind}`; send one sequence",
            )
    if kind == CONTEXT_ONLY and any(request.generated):
        raise invalid(f"{REQUEST_TYPE} is `{kind}` of a request that has tokens already; send it whole")
    if request.max_tokens < 1:
        raise invalid(
            f"{REQUEST_TYPE} is `{kind}` and max_tokens is `{request.max_tokens}`; ask for 1 or more"
        )


def _tell_apart(extras: Extras, prompt: int, bounds: Bounds) -> Extras:
    """Checks a prompt table against the model and its extra ids against the prompt: as many are kept as that
    has tokens, or none where blocks are not shared."""
    tuning = extras.prompt_tuning
    if tuning is None:
        return extras
    if tuning.table.ndim != 2 or tuning.table.shape[1] != bounds.hidden_size:
        raise invalid(
            f"prompt_embedding_table has the shape `{list(tuning.table.shape)}`; it must be "
            f"[virtual tokens, {bounds.hidden_size}]"
        )
    if bounds.reuses_blocks and len(tuning.extra_ids) < prompt:
        raise invalid(
            f"prompt_table_extra_ids has `{len(tuning.extra_ids)}` values for {prompt} prompt tokens; the "
            "server has `enable_kv_cache_reuse` and needs one for each, 0 where a token is not virtual"
        )
    kept = tuning.extra_ids[:prompt] if bounds.reuses_blocks else ()
    return replace(extras, prompt_tuning=PromptTuning(tuning.table, kept))


def _check_together(request: Request, parameters: Parameters, extras: Extras, bounds: Bounds) -> None:
    """What can be asked one by one, but not together."""
    drafts = extras.drafts
    if drafts is not None:
        _check_ids("draft_input_ids", drafts.tokens, bounds.vocab_size)
        if drafts.logits is not None and drafts.logits.shape != (len(drafts.tokens), bounds.vocab_size):
            raise invalid(
                f"draft_logits has the shape `{list(drafts.logits.shape)}`; it must be "
                f"`{[len(drafts.tokens), bounds.vocab_size]}`"
            )
    output = request.output_config
    named = extras.log_prob_ids
    if named:
        _check_ids(LOG_PROB_IDS, named, bounds.vocab_size)
        if len(named) != output.num_top_log_probs:
            raise invalid(
                f"{LOG_PROB_IDS} has {len(named)} ids and inflight_num_top_log_probs is "
                f"`{output.num_top_log_probs}`; send the number of ids"
            )
    thinking = extras.thinking
    if thinking is not None:
        _check_ids(THINKING_END_IDS, thinking.start + thinking.end, bounds.vocab_size)
        if extras.guide is not None:
            raise Refused(
                StatusCode.UNIMPLEMENTED,
                f"the reference executor does not implement `{THINKING_BUDGET}` with a guide; send one of "
                "them",
            )
    if output.num_prompt_log_probs is not None and max(request.input_token_ids) >= bounds.vocab_size:
        raise Refused(
            StatusCode.UNIMPLEMENTED,
            "the reference executor does not implement `inflight_num_prompt_log_probs` of a prompt with "
            "virtual tokens, which have no probability; send the request without it",
        )
    if parameters.beams is not None:
        asked = {
            "draft_input_ids": drafts is not None,
            "guided_decoding_guide_type": extras.guide is not None,
            THINKING_BUDGET: thinking is not None,
            "return_generation_logits": output.return_generation_logits,
            "inflight_num_top_log_probs": output.num_top_log_probs > 0,
        }
        names = [name for name, is_asked in asked.items() if is_asked]
        if names:
            raise Refused(
                StatusCode.UNIMPLEMENTED,
                f"the reference executor does not implement `{', '.join(names)}` with several beams; "
                "send `beam_width` as 1",
            )


def _parameters(request: Request, bounds: Bounds) -> Parameters:
    sampling, vocab_size = request.sampling_config, bounds.vocab_size
    temperature = _number(sampling.temperature, "temperature", 1.0, 0.0, math.inf)
    top_k = _count(sampling.top_k, "top_k")
    top_p = sampling.top_p
    # The C++ backend reads a top_p of 0 or less as not set, and neither top_k nor top_p as greedy.
    if top_p is None or top_p <= 0:
        greedy = top_k in (0, 1)
        top_p = 1.0
    else:
        greedy = top_k == 1
        top_p = _number(top_p, "top_p", 1.0, 0.0, 1.0)
    repetition = _number(sampling.repetition_penalty, "repetition_penalty", 1.0, 0.0, math.inf)
    if repetition == 0.0:
        raise invalid("repetition_penalty is `0`; it must be more than 0")
    for name, words in (("bad_words", request.bad_words), ("stop_words", request.stop_words)):
        if len(words) > MAX_WORDS:
            raise invalid(f"{name} holds {len(words)} words; it may hold {MAX_WORDS}")
        for word in words:
            if not word:
                raise invalid(f"{name} holds an empty word; every word needs a token")
            _check_ids(name, word, vocab_size)
    ending = {word[0] for word in request.stop_words if len(word) == 1}
    if request.end_id is not None and 0 <= request.end_id < vocab_size:
        ending.add(request.end_id)
    seed = DEFAULT_SEED if sampling.seed is None else sampling.seed
    if not 0 <= seed < 2**64:
        raise invalid(f"seed is `{seed}`; it must fit 64 bits without a sign")
    bias_ids, bias_values = _bias(request, vocab_size)
    return Parameters(
        greedy=greedy or temperature < GREEDY_TEMPERATURE,
        temperature=temperature if temperature >= GREEDY_TEMPERATURE else 1.0,
        top_k=min(top_k, vocab_size),
        top_p=top_p,
        min_p=_number(sampling.min_p, "min_p", 0.0, 0.0, 1.0),
        seed=seed,
        min_tokens=_count(sampling.min_tokens, "min_tokens"),
        repetition_penalty=repetition,
        presence_penalty=_number(sampling.presence_penalty, "presence_penalty", 0.0),
        frequency_penalty=_number(sampling.frequency_penalty, "frequency_penalty", 0.0),
        bias_ids=bias_ids,
        bias_values=bias_values,
        ending_ids=tuple(sorted(ending)),
        bad_ids=tuple(word[0] for word in request.bad_words if len(word) == 1),
        bad_sequences=tuple(tuple(word) for word in request.bad_words if len(word) > 1),
        no_repeat_ngram_size=_count(sampling.no_repeat_ngram_size, "no_repeat_ngram_size"),
        top_p_decay=_decay(sampling.top_p_decay),
        top_p_min=_number(sampling.top_p_min, "top_p_min", DEFAULT_TOP_P_MIN, 0.0, 1.0),
        top_p_reset_id=-1 if sampling.top_p_reset_ids is None else sampling.top_p_reset_ids,
        beams=_beams(request, bounds),
    )


def _decay(value: float | None) -> float:
    decay = _number(value, "top_p_decay", 1.0, 0.0, 1.0)
    if decay == 0.0:
        raise invalid("top_p_decay is `0`; it must be more than 0")
    return decay


def _beams(request: Request, bounds: Bounds) -> BeamConfig | None:
    """The search of a request with several beams. None: it has one, and samples."""
    sampling = request.sampling_config
    width = sampling.beam_width
    if not 1 <= width <= bounds.max_beam_width:
        raise invalid(
            f"beam_width is `{width}`; it must be between 1 and {bounds.max_beam_width}, the server's "
            "`max_beam_width`"
        )
    if width == 1:
        return None
    if request.streaming:
        raise invalid(f"beam_width is `{width}` of a streaming request; send `streaming` as false")
    if sampling.num_return_sequences > width:
        raise invalid(
            f"num_return_sequences is `{sampling.num_return_sequences}` of {width} beams; ask for at most "
            "one for each beam"
        )
    return BeamConfig(
        width,
        _number(sampling.length_penalty, "length_penalty", 0.0),
        1 if sampling.early_stopping is None else sampling.early_stopping,
        _number(sampling.beam_search_diversity_rate, "beam_search_diversity_rate", 0.0, 0.0, math.inf),
    )


def _bias(request: Request, vocab_size: int) -> tuple[Int | None, Float32 | None]:
    """Dense and sparse bias as one sparse pair; values of the same token add up."""
    if not request.embedding_bias and not request.logit_bias:
        return None, None
    if not request.embedding_bias:
        return _sparse_bias(request, vocab_size)
    if len(request.embedding_bias) != 4 * vocab_size:
        raise invalid(
            f"embedding_bias has {len(request.embedding_bias)} bytes; it must hold {vocab_size} FP32 values"
        )
    total = np.frombuffer(request.embedding_bias, dtype="<f4").astype(np.float32)
    for token, value in request.logit_bias:
        if not 0 <= token < vocab_size:
            raise invalid(f"logit_bias names token `{token}`; ids are below {vocab_size}")
        total[token] += value
    _check_bias(total)
    ids = np.flatnonzero(total)
    return ids, total[ids]


def _sparse_bias(request: Request, vocab_size: int) -> tuple[Int, Float32]:
    """Without an array of the vocabulary, which would cost every such request more than all else of it."""
    sums: dict[int, float] = {}
    for token, value in request.logit_bias:
        if not 0 <= token < vocab_size:
            raise invalid(f"logit_bias names token `{token}`; ids are below {vocab_size}")
        sums[token] = sums.get(token, 0.0) + value
    ids = np.array(sorted(token for token, value in sums.items() if value), dtype=np.int64)
    with np.errstate(over="ignore"):
        values = np.array([sums[token] for token in ids.tolist()], dtype=np.float32)
    _check_bias(values)
    return ids, values


def _check_bias(values: Float32) -> None:
    # Minus infinity forbids a token; the other non-numbers would poison every probability.
    if bool(np.isnan(values).any()) or bool(np.isposinf(values).any()):
        raise invalid("the bias holds a value that is not a number or is infinite; send finite values")


def _check_supported(request: Request) -> None:
    """Defends against a caller that did not read ``info().capabilities``."""
    sampling = request.sampling_config
    if sampling.num_return_sequences < 1:
        raise invalid(f"num_return_sequences is `{sampling.num_return_sequences}`; it must be at least 1")


def _check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab_size:
        raise invalid(f"{name} holds token id `{low if low < 0 else high}`; ids are 0 to {vocab_size - 1}")


def _number(
    value: float | None, name: str, default: float, low: float = -math.inf, high: float = math.inf
) -> float:
    if value is None:
        return default
    if not math.isfinite(value) or not low <= value <= high:
        bounds = f"between {low:g} and {high:g}" if math.isfinite(high) else f"at least {low:g}"
        raise invalid(
            f"{name} is `{value}`; it must be {bounds if math.isfinite(low) else 'a finite number'}"
        )
    return float(value)


def _count(value: int | None, name: str) -> int:
    if value is None:
        return 0
    if value < 0:
        raise invalid(f"{name} is `{value}`; it must not be negative")
    return value
