"""Takes requests in: checks each, and makes its state with the guide and the adapter that it asks for.

Owns why a request is refused when it comes and the keys of sequences. Knows nothing of iterations.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from inflight.executors.base import Request, StatusCode
from inflight.executors.reference.model.lora import Adapter

from . import resume, reuse
from .adapters import Adapters, Loaded, LoraRequest
from .admission import Admitted, Bounds, admit
from .arrival import arrive
from .drafts import LookupConfig
from .guides import unavailable
from .hearing import Clip, check_together, missing, read_clip
from .hearing import not_taken as audio_not_taken
from .images import ImagePrompt
from .masks import Guide
from .prompt_facts import PromptFacts
from .refusal import Refused
from .seeing import not_taken
from .sequence import RequestState
from .thinking import ThinkingBudget
from .transcript import TranscriptRules


class Intake:
    """What is the same for every request that comes."""

    def __init__(
        self, bounds: Bounds, lookup: LookupConfig | None, adapters: Adapters | None, *, guesses: bool
    ) -> None:
        self._bounds = bounds
        #: Prompt lookup for every request; None: only drafts that requests bring.
        self._lookup = lookup
        #: None: requests with LoRA are refused.
        self._adapters = adapters
        #: Whether tokens are guessed for every request.
        self._guesses = guesses
        self._keys = itertools.count()

    def receive(
        self,
        request: Request,
        guide: Guide | Refused | None,
        arrived_s: float,
        loaded: Loaded | None,
        num_waiting: int,
        images: ImagePrompt | Refused | None = None,
        facts: PromptFacts | None = None,
    ) -> RequestState:
        """The state of a request that is served, while ``num_waiting`` sequences wait; ``images`` are those
        that were taken out of it, ``facts`` what is known of its prompt. Errors: `Refused`."""
        if isinstance(images, Refused):
            raise images
        admitted = admit(request, self._bounds, 0 if images is None else images.tokens, facts)
        if admitted.extras.images is not None:
            raise not_taken()
        if images is not None:
            extras = admitted.extras
            admitted = replace(admitted, extras=replace(extras, retention=images.moved(extras.retention)))
        clip = self._clip(request, admitted)
        if isinstance(guide, Refused):
            raise guide
        if guide is None and admitted.extras.guide is not None:
            raise unavailable()
        if admitted.extras.thinking is not None:
            guide = ThinkingBudget(admitted.extras.thinking, self._bounds.vocab_size)
        if self._bounds.hearing is not None:
            marks = self._bounds.hearing.marks
            guide = TranscriptRules(marks, request.input_token_ids, self._bounds.vocab_size)
        if num_waiting + len(resume.sequences(request)) > self._bounds.max_queue_size:
            raise Refused(
                StatusCode.RESOURCE_EXHAUSTED,
                f"{num_waiting} sequences wait and the queue holds {self._bounds.max_queue_size}; "
                "try again later or ask for fewer sequences",
            )
        state = arrive(
            request,
            admitted,
            guide,
            self._bounds.vocab_size,
            arrived_s,
            self._keys,
            self._lookup,
            guesses=self._guesses,
            images=images,
            clip=clip,
        )
        state.facts = facts
        if admitted.extras.lora is not None:
            state.adapter = self._acquire(admitted.extras.lora, loaded)
            # What one adapter computed is nothing to another.
            state.cache_root = reuse.root(state.cache_root + state.adapter.fingerprint)
        return state

    def _clip(self, request: Request, admitted: Admitted) -> Clip | None:
        """What a request hears."""
        hearing, extras = self._bounds.hearing, admitted.extras
        if hearing is None:
            if extras.audio is not None:
                raise audio_not_taken()
            return None
        asked = {
            "lora_task_id": extras.lora,
            "prompt_embedding_table": extras.prompt_tuning,
            "guided_decoding_guide_type": extras.guide,
            "inflight_thinking_budget": extras.thinking,
            "inflight_pooling": extras.pooling,
            "draft_input_ids": extras.drafts,
        }
        check_together(request, [name for name, value in asked.items() if value is not None])
        if extras.audio is None:
            raise missing(hearing)
        return read_clip(extras.audio, extras.cache_salt, hearing)

    def _acquire(self, lora: LoraRequest, loaded: Loaded | None) -> Adapter:
        if self._adapters is None:
            raise Refused(
                StatusCode.UNIMPLEMENTED,
                "the reference executor does not implement `lora_task_id` over several ranks; send the "
                "request without it",
            )
        return self._adapters.acquire(lora, loaded)
