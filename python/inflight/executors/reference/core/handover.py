"""Prefill and decode apart, in the engine's terms: prompts that are computed for another worker, and prompts
that another one computed.

Owns what a context phase leaves behind, and how a request continues from it: as one that was resumed after
its first token, with blocks that come from elsewhere. Whatever fails of that is computed here instead. Knows
nothing of sockets: blocks are moved by a `fetches.Receiver` and by the reader of `holds.Holds`.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from inflight.executors.base import FinishReason, NamedTensor, Request

from . import reuse
from .block_store import BlockStore
from .blocks import BlockPool
from .context_phase import (
    CONTEXT_PHASE_PARAMS,
    GENERATION_ONLY,
    REQUEST_TYPE,
    ContextPhase,
    FirstToken,
    Offer,
    pack,
    unpack,
)
from .extras import read_extras
from .fetches import Fetch, Fetches, Receiver, Transfers
from .holds import Holds
from .refusal import invalid
from .rows import Row
from .sequence import RequestState, SequenceState

_LOG = logging.getLogger("inflight.reference")


@dataclass(frozen=True, slots=True)
class Identity:
    """What two workers must have alike to exchange blocks, and what both keep secret."""

    #: `ModelInfo.weights`.
    weights: str
    vocab_size: int
    #: Empty: only workers of this machine are followed.
    key: bytes = b""


class Handover:
    """Both ends of hand-overs. The engine's thread owns it."""

    def __init__(
        self,
        pool: BlockPool,
        store: BlockStore,
        holds: Holds,
        fetches: Fetches,
        transfers: Transfers,
        identity: Identity,
    ) -> None:
        self.holds, self.fetches, self.transfers = holds, fetches, transfers
        self._pool, self._store, self._identity = pool, store, identity
        self._receiver: Receiver | None = None
        self._addresses: Sequence[tuple[str, int]] = ()

    def connect(self, receiver: Receiver, addresses: Sequence[tuple[str, int]]) -> None:
        """Sets what receives, and where held blocks can be fetched."""
        self._receiver, self._addresses = receiver, addresses

    def on_change(self, wake: Callable[[], None]) -> None:
        """Calls ``wake``, from any thread, when an iteration has something to do here."""
        self.holds.on_change(wake)
        self.fetches.on_change(wake)

    def left_s(self) -> float | None:
        """Seconds until something is to be given back or up; None: nothing is."""
        left = [one for one in (self.holds.left_s(), self.fetches.left_s()) if one is not None]
        return min(left, default=None)

    @property
    def is_waiting(self) -> bool:
        """Whether something will happen without an iteration: blocks come, or are given back."""
        return bool(len(self.fetches) or len(self.holds))

    # The side that computes prompts.

    def leave(self, sequence: SequenceState, row: Row, reason: FinishReason) -> NamedTensor:
        """What the last row of a context phase carries. Its blocks stay, unless its request has ended."""
        record = row.record
        if record is None or not row.tokens:
            raise RuntimeError("a context phase ended without its token")
        first = FirstToken(
            row.tokens[-1],
            record.log_probs[-1],
            tuple(record.top_ids[-1].tolist()),
            tuple(record.top_log_probs[-1].tolist()),
        )
        reason = FinishReason.NOT_FINISHED if reason == FinishReason.LENGTH else reason
        offer = self._hold(sequence) if reason == FinishReason.NOT_FINISHED else None
        data = pack(ContextPhase(first, reason, offer), self._identity.key)
        return NamedTensor(CONTEXT_PHASE_PARAMS, "UINT8", (len(data),), data)

    def _hold(self, sequence: SequenceState) -> Offer | None:
        tokens, size = len(sequence.prompt), self._pool.tokens_per_block
        if sequence.table is None or tokens < size:
            return None  # computing less than a block is as quick as asking for it
        table = self._pool.keep(sequence.table, tokens)
        if table is None:
            return None
        return Offer(
            self.holds.add(table),
            tuple(self._addresses),
            self._identity.weights,
            self._store.layout,
            tokens,
            _content(sequence, size),
        )

    # The side that generates.

    def read(self, request: Request) -> tuple[Request, ContextPhase | None]:
        """The request as one that was begun elsewhere, and what its context phase left; None: it has none.
        Where that ended the request already, it stays as it came. Errors: `Refused`."""
        if not any(tensor.name == REQUEST_TYPE for tensor in request.tensors):
            return request, None
        asked = read_extras(request).phase
        if asked is None or asked.kind != GENERATION_ONLY:
            return request, None
        phase = unpack(asked.params, self._identity.key)
        highest = max(phase.first.token, *phase.first.top_ids, 0)
        if highest >= self._identity.vocab_size:
            raise invalid(
                f"`{CONTEXT_PHASE_PARAMS}` has the token id `{highest}`; ids are 0 to "
                f"{self._identity.vocab_size - 1}"
            )
        if any(request.generated) or phase.reason != FinishReason.NOT_FINISHED or request.max_tokens < 2:
            return request, phase
        return replace(request, generated=[[phase.first.token]]), phase

    def continues(self, state: RequestState, given: Request, phase: ContextPhase) -> FinishReason | None:
        """Gives a new request the first token, unless ``given``, as it came, had it already; returns why that
        token ends it. Errors: `Refused` where something of the token is asked for that is not there."""
        if any(given.generated):
            return None
        [sequence] = state.unfinished
        first = phase.first
        if sequence.record is not None:
            width = sequence.top_width
            if state.request.output_config.return_generation_logits:
                raise invalid(
                    f"`{CONTEXT_PHASE_PARAMS}` has no logits of the first token; send the request without "
                    "`return_generation_logits`"
                )
            if len(first.top_ids) < width:
                raise invalid(
                    f"`{CONTEXT_PHASE_PARAMS}` has {len(first.top_ids)} alternatives of the first token and "
                    f"inflight_num_top_log_probs is `{width}`; ask the context worker for as many"
                )
            sequence.record.append(
                first.log_prob,
                np.array(first.top_ids[:width], dtype=np.int32),
                np.array(first.top_log_probs[:width], dtype=np.float32),
            )
        sequence.unsent.append(first.token)
        if phase.reason != FinishReason.NOT_FINISHED:
            return phase.reason
        return FinishReason.LENGTH if state.admitted.max_tokens < 2 else None

    def expect(self, state: RequestState, phase: ContextPhase) -> Fetch | None:
        """The blocks of a request's prompt, to be fetched once there is room; None where that may not be."""
        [sequence] = state.unfinished
        offer = phase.offer
        if offer is None or sequence.tells_of_the_prompt:
            return None  # nothing is held, or every token must be computed here
        problem = self._problem(sequence, phase, offer)
        if problem is None:
            return Fetch(offer, state.request.client_id)
        self.transfers.fallbacks[problem] += 1
        _LOG.warning(
            "kv blocks not fetched reason=%s client_id=%d tokens=%d",
            problem,
            state.request.client_id,
            offer.tokens,
        )
        return None

    def _problem(self, sequence: SequenceState, phase: ContextPhase, offer: Offer) -> str | None:
        """Why blocks are not asked for."""
        if self._identity.key:
            if not phase.is_authentic:
                return "unauthenticated"
        elif not all(is_loopback(host) for host, _ in offer.addresses):
            # A client could make this worker connect anywhere.
            return "not_loopback"
        if (offer.weights, offer.layout) != (self._identity.weights, self._store.layout):
            return "other_model"
        if offer.tokens != len(sequence.prompt) or offer.content != _content(
            sequence, self._pool.tokens_per_block
        ):
            return "other_prompt"
        return None

    def begin(self, sequences: Sequence[SequenceState]) -> None:
        """Starts the transfers of sequences that have their blocks. What was launched before is done with
        these first."""
        receiver = self._receiver
        if not sequences or receiver is None:
            return
        after = self._store.fence()
        for sequence in sequences:
            if sequence.fetch is not None:
                sequence.fetch.after = after
                self.fetches.begin(receiver, sequence.fetch)

    def settle(self) -> list[Fetch]:
        """Gives back what is held no longer; returns the transfers that are over."""
        self.holds.sweep()
        over = self.fetches.take()
        for fetch in over:
            if fetch.problem is not None:
                _LOG.warning(
                    "kv blocks fetched in part reason=%s client_id=%d blocks=%d of=%d",
                    fetch.problem,
                    fetch.client_id,
                    fetch.arrived,
                    len(fetch.blocks),
                )
        return over


def is_loopback(host: str) -> bool:
    """Whether an address is one of this machine; names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _content(sequence: SequenceState, size: int) -> bytes:
    """The hash of a sequence's whole prompt, its last block included, as the cache's keys have it."""
    prompt = sequence.prompt
    full = len(prompt) // size
    parent = sequence.hashes[full - 1] if full else sequence.owner.cache_root
    tail = sequence.owner.cache_tokens(prompt)[full * size :]
    return reuse.chain(parent, tail, len(tail))[0] if tail else parent
