"""A bound on how long a sequence thinks, as a logits processor of the PyTorch runtime.

Owns which of a sequence's tokens TensorRT-LLM shows a processor, and what it may choose next. Imports neither
torch nor TensorRT-LLM: requests carry the processor, pickled, to TensorRT-LLM's own processes. Its
`ThinkingBudgetLogitsProcessor` (1.3) is not used: it needs the tag that opens the reasoning, which may be the
prompt's, and repeats a closing tag that the model began by itself (issue 18616).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inflight.executors.reasoning import Marks, Reasoning
from inflight.executors.tensorrt_llm.convert import Refused

BUDGET, START_IDS, END_IDS = (f"inflight_thinking_{name}" for name in ("budget", "start_ids", "end_ids"))
#: Tokens of a mark.
_MAX_MARK = 32
#: Decisions that force no token: any may come; any but those of the end.
_ANY, _NOT_END = -1, -2


@dataclass
class _Place:
    """One sequence: what is known of it, and what was decided last."""

    #: Tokens before its answer.
    prompt: int
    reasoning: Reasoning
    #: Tokens of its answer that were read.
    read: int = 0
    #: The place in its answer that is decided next.
    next: int = 0
    #: A token that was forced, or `_ANY` or `_NOT_END`.
    last: int = _ANY


@dataclass
class ThinkingBudget:
    """Lets a sequence think so many tokens; then the end of its reasoning comes next.

    Is called as `tensorrt_llm.sampling_params.LogitsProcessor` is, before each token is chosen. Under the
    overlap scheduler it does not see the token before (pull request 16785), which may be the end by itself.
    So the place before the last is kept from beginning an end, after which nothing is uncertain. With prompts
    in chunks it is called for each of them, and the first two places look alike: then, and where the model
    opens its reasoning, a budget below 2 counts as 2.
    """

    budget: int
    marks: Marks
    #: Tokens of the prompt; None: as many as there are at first.
    prompt: int | None
    #: Whether the last token may not be shown.
    lags: bool
    _places: dict[int, _Place] = field(default_factory=dict, compare=False, repr=False)

    def __call__(
        self,
        req_id: int,
        logits: Any,
        token_ids: Sequence[Sequence[int]],
        stream_ptr: int | None,  # noqa: ARG002 -- None for this runtime, which calls on its own stream
        client_id: int | None,  # noqa: ARG002
    ) -> None:
        """Edits `logits` `[1, 1, vocabulary]` of the sequence `req_id`. `token_ids`: prompt and answer."""
        decision = self.decide(req_id, token_ids[0])
        if decision == _NOT_END:
            for token in self.marks.end:
                logits[..., token] = float("-inf")
        elif decision != _ANY:
            logits[:] = float("-inf")
            logits[..., decision] = 0.0

    def decide(self, sequence: int, tokens: Sequence[int]) -> int:
        """What may come next: a token that must, or `_ANY` or `_NOT_END`."""
        place = self._places.get(sequence)
        if place is None:
            prompt = len(tokens) if self.prompt is None else self.prompt
            place = _Place(prompt, Reasoning(self.marks, thinks=not self.marks.start))
            self._places[sequence] = place
        shown = len(tokens) - place.prompt
        known = place.reasoning
        while place.read < shown:
            known.observe(tokens[place.prompt + place.read])
            place.read += 1
        here = min(max(place.next, shown), shown + self.lags)
        place.next = here + 1
        is_unseen = here > shown
        if is_unseen and place.last >= 0:
            known = replace(known)
            known.observe(place.last)
        place.last = self._choose(known, is_unseen, place.last)
        return place.last

    def _choose(self, known: Reasoning, is_unseen: bool, last: int) -> int:
        """`known`: up to the last token but, if that is not seen and was not forced, without it."""
        if known.over or not known.thinks:
            return _ANY
        left = self.budget - known.thought - (is_unseen and last < 0)
        # What was free to be anything may be the end.
        is_certain = not (is_unseen and last == _ANY)
        if left <= 0 and is_certain:
            # An end that the model began is continued; what could not begin one did not.
            return self.marks.end[0 if last == _NOT_END and is_unseen else known.matched]
        return _NOT_END if self.lags and left <= 1 else _ANY


def read_thinking(
    given: Mapping[str, Any], vocab_size: int, *, prompt: int | None, lags: bool, in_chunks: bool
) -> ThinkingBudget | None:
    """The processor that a request's inputs ask for; None: they ask for none.

    `given`: inputs by their names, as `fields` converts them. `in_chunks`: prompts may be computed in
    chunks. Errors: `Refused`.
    """
    named = sorted({BUDGET, START_IDS, END_IDS} & given.keys())
    if not named:
        return None
    if not {BUDGET, END_IDS} <= given.keys():
        raise Refused(f"`{'` and `'.join(named)}` came without `{BUDGET}` and `{END_IDS}`; send both")
    budget = given[BUDGET]
    marks = Marks(tuple(given.get(START_IDS, ())), tuple(given[END_IDS]))
    if budget < 0:
        raise Refused(f"`{BUDGET}` is `{budget}`; it must be at least 0")
    if not 1 <= len(marks.end) <= _MAX_MARK or len(marks.start) > _MAX_MARK:
        raise Refused(
            f"`{START_IDS}` and `{END_IDS}` have {len(marks.start)} and {len(marks.end)} tokens; each may "
            f"have {_MAX_MARK}, and the end must have one"
        )
    for token in (*marks.start, *marks.end):
        if not 0 <= token < vocab_size:
            raise Refused(f"a mark of the reasoning has the token `{token}`; tokens are below {vocab_size}")
    return ThinkingBudget(max(budget, 2) if lags and in_chunks else budget, marks, prompt, lags)
