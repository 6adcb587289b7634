"""A request as it arrives: what its sequences share, and what each of them begins with.

Owns which records are kept for whom, and how a sequence that was begun elsewhere continues from its tokens.
Knows nothing of queues, of the adapters' cache or of what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from inflight.executors.base import Request

from . import resume, reuse
from .admission import Admitted
from .beams import BeamSearch
from .context_phase import CONTEXT_ONLY
from .drafts import Drafts, LookupConfig
from .hearing import Clip
from .images import ImagePrompt
from .masks import Guide
from .metrics import SequenceMetrics
from .pooling import Pool
from .refusal import invalid
from .rows import PromptRecord, TokenRecord
from .sampler import SamplerState
from .sequence import RequestState, SequenceState


def arrive(
    request: Request,
    admitted: Admitted,
    guide: Guide | None,
    vocab_size: int,
    arrived_s: float,
    keys: Iterator[int],
    lookup: LookupConfig | None,
    *,
    guesses: bool,
    images: ImagePrompt | None = None,
    clip: Clip | None = None,
) -> RequestState:
    """A request with its sequences, each with the next of ``keys``; with ``guesses`` somebody guesses tokens
    for all requests, by ``lookup`` or otherwise. Errors: `Refused` where tokens and guide do not fit."""
    running = resume.sequences(request)
    samplers = _samplers(request, admitted, guide, vocab_size, running)
    output, prompt = request.output_config, request.input_token_ids
    state = RequestState(
        request,
        admitted,
        cache_root=reuse.root(admitted.extras.cache_salt),
        arrived_s=arrived_s,
        teller=running[0][0],
        images=images,
        clip=clip,
    )
    if output.num_prompt_log_probs is not None:
        state.prompt_record = PromptRecord.empty(len(prompt), output.num_prompt_log_probs)
    if admitted.extras.pooling is not None:
        state.pool = Pool()
    if output.return_context_logits:
        state.context_logits = np.zeros((len(prompt), vocab_size), dtype=np.float32)
    wants_record = output.return_log_probs or output.num_top_log_probs > 0 or output.return_generation_logits
    phase = admitted.extras.phase
    # The worker that continues reports the first token.
    wants_record = wants_record or (phase is not None and phase.kind == CONTEXT_ONLY)
    external, beams = admitted.extras.drafts, admitted.parameters.beams
    # Virtual tokens cannot be guessed, and a draft model has no embeddings for them, nor for images,
    # nor does it hear.
    guesses = guesses and not state.is_embedded
    for sampler, (index, tokens) in zip(samplers, running, strict=True):
        sequence = SequenceState(
            next(keys),
            state,
            index,
            sampler,
            [*prompt, *tokens] if tokens else prompt,
            launched=len(tokens),
            record=TokenRecord() if wants_record else None,
        )
        if beams is not None:
            sequence.beams = BeamSearch(beams, admitted.max_tokens)
        elif external is not None or guesses:
            sequence.drafts = Drafts(lookup if guesses else None, external)
            sequence.drafts.resume(tokens)
        if output.return_perf_metrics:
            sequence.metrics = SequenceMetrics(arrived_s)
        state.unfinished.append(sequence)
    return state


def _samplers(
    request: Request,
    admitted: Admitted,
    guide: Guide | None,
    vocab_size: int,
    running: Sequence[tuple[int, Sequence[int]]],
) -> list[SamplerState]:
    """One for each sequence, after its tokens so far. Errors: `Refused` where a guide does not allow them."""
    guides = [None if guide is None else guide.copy() for _ in running[1:]]
    samplers = []
    for own, (index, tokens) in zip([guide, *guides], running, strict=True):
        sampler = SamplerState(admitted.parameters, vocab_size, request.input_token_ids, index)
        sampler.guide = own
        sampler.resume(tokens)
        if own is not None and tokens:
            problem = "they end it" if tokens[-1] in own.eos_tokens else own.problem()
            if problem is not None:
                raise invalid(f"sequence {index} cannot continue after its generated tokens: {problem}")
        samplers.append(sampler)
    return samplers
