"""Guided decoding: answers that fit a JSON schema, a regular expression, a grammar or structural tags.

Owns the compiling of guides with llguidance and the masks of tokens that may come next. Knows nothing of
sampling. Compiling is bounded in size and work, and happens with the first mask where requests come in, not
where streams wait. Later, guides only note their tokens; when the first mask is asked for, all guides take
their tokens and compute their masks at once, on all cores and without the interpreter's lock: by then the
model's work of the iteration is on the device. A guide that hits a limit fails its request: llguidance itself
would allow the end token alone, and the answer would be cut without a word.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from inflight._native import check_guide_bounds
from inflight.executors.base import StatusCode

from . import structural_tags
from .refusal import Refused, invalid

#: TensorRT-LLM's ``GuidedDecodingParams.GuideType``, as Triton's tensor has it.
GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar", "structural_tag")

#: A guide's text: what compiles within a fraction of a second.
MAX_GUIDE_BYTES = 64 * 1024

#: Symbols of a compiled grammar: those of a thousand optional properties, which take a quarter of a second.
_MAX_GRAMMAR_SIZE = 8_000

#: Families that are kept, those of the guides asked last. A copy takes microseconds, compiling milliseconds.
MAX_FAMILIES = 64

#: Copies that a family gives: what it has learned of its grammar counts against the limits of each.
_MAX_COPIES = 64

#: Threads that compute masks.
MAX_THREADS = 16

#: White space between the parts of JSON: a line break and an indent. Without a bound, a small model may write
#: nothing else until its answer is cut.
_WHITE_SPACE = {"whitespace_pattern": r"\n? {0,12}"}

Mask = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.uint8]


_NO_MASKS: Bits = np.zeros((0, 0), dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class GuideRequest:
    """``GuidedDecodingParams``: what a request asks to be held to."""

    guide_type: str
    guide: str


class Guide:
    """One sequence's place in its grammar. Made by `Guides.compile`."""

    def __init__(self, matcher: Any, masks: _Masks, family: int = 0) -> None:
        self.matcher, self._masks, self.family = matcher, masks, family
        #: The next mask; None until it is computed.
        self.next: Bits | None = None
        #: The masks that were computed together with the last one, and its place among them.
        self.table: Bits = _NO_MASKS
        self.place = 0
        #: The token that was observed and not taken yet.
        self.token: int | None = None
        #: Why the mask that was last computed cannot be trusted.
        self.error: str | None = None

    def copy(self) -> Guide:
        """The same place, for another sequence of the request."""
        bits = self.bits()
        other = Guide(self.matcher.deep_copy(), self._masks, self.family)
        other.next, other.error = bits, self.error
        return other

    @property
    def eos_tokens(self) -> frozenset[int]:
        """The tokens that end a grammar, whatever the request calls its end."""
        return self._masks.eos_tokens

    def mask(self) -> Mask:
        """Which tokens may come next ``[vocabulary]``."""
        return np.unpackbits(self.bits(), count=self._masks.vocab_size, bitorder="little").view(np.bool_)

    def bits(self) -> Bits:
        """The mask as it comes: at least ``vocabulary`` bits, the lowest of each byte first."""
        if self.next is None:
            self._masks.compute_stale()
        return cast(Bits, self.next)

    def observe(self, token: int) -> None:
        """Goes on by a token that the mask allows."""
        if self.token is not None:
            self._masks.compute_stale()
        self.token, self.next = token, None
        self._masks.stale.append(self)

    def problem(self) -> str | None:
        """Why the mask that was last computed cannot be trusted; None: it can. Waits for nothing."""
        return self.error


class _Masks:
    """Computes the masks of all guides of a tokenizer."""

    def __init__(self, executor: Any, vocab_size: int, eos_tokens: frozenset[int]) -> None:
        self._executor, self.vocab_size, self.eos_tokens = executor, vocab_size, eos_tokens
        self._words = (vocab_size + 31) // 32
        #: Families with a guide that hit a limit.
        self.failed: set[int] = set()
        #: Guides that noted a token and lack their next mask; of one thread, which observes.
        self.stale: list[Guide] = []

    def compute_stale(self) -> None:
        """Lets guides take the tokens that they noted, and computes every mask that is missing."""
        stale, self.stale = self.stale, []
        self._executor.consume_token_par(
            [(guide.matcher, guide.token) for guide in sorted(stale, key=_family)]
        )
        for guide in stale:
            guide.token = None
        self.compute(stale)

    def compute(self, guides: list[Guide]) -> None:
        """Computes the masks of guides that no other thread uses."""
        table = np.zeros((len(guides), self._words), dtype=np.uint32)
        # A family has one lock: side by side, its guides are one thread's.
        by_family = sorted(range(len(guides)), key=lambda row: guides[row].family)
        matchers = [(guides[row].matcher, row) for row in by_family]
        row_bytes = table.itemsize * self._words
        self._executor.unsafe_compute_mask_ptr(matchers, table.ctypes.data, row_bytes, len(guides))
        masks = table.view(np.uint8)
        for place, guide in enumerate(guides):
            guide.next, guide.table, guide.place = masks[place], masks, place
            if guide.matcher.is_error():
                guide.error = str(guide.matcher.get_error()).splitlines()[0]
                self.failed.add(guide.family)


def _family(guide: Guide) -> int:
    return guide.family


@dataclass(slots=True)
class _Family:
    """A guide at its beginning and its copies, which share what they learn of the grammar, and a lock."""

    first: Guide
    copies: int = 0


def stacked(guides: Sequence[Guide]) -> Bits:
    """The masks of several sequences as they come ``[guides, bytes]``."""
    rows = [guide.bits() for guide in guides]
    table = guides[0].table
    # Masks that were computed together are in order already: the usual case, and megabytes.
    if len(table) == len(guides) and all(
        one.table is table and one.place == place for place, one in enumerate(guides)
    ):
        return table
    return np.stack(rows)


class Guides:
    """Compiles guides for one tokenizer. Any thread may compile.

    Many requests bring the same guide, so that compiled ones are kept and copied. Copies cannot compute at
    once: a guide has a ``family`` of copies for each thread that computes masks.
    """

    def __init__(
        self, tokenizer_json: str, vocab_size: int, eos_tokens: list[int], families: int | None = None
    ) -> None:
        """``families`` of a guide; None: one for each thread."""
        import llguidance

        self._llguidance: Any = llguidance
        self._tokenizer = llguidance.LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=eos_tokens)
        added = json.loads(tokenizer_json).get("added_tokens") or ()
        special = {one["content"]: one["id"] for one in added if one["content"]}
        is_special = self._tokenizer.is_special_token
        self._special = {text: token for text, token in special.items() if is_special(token)}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self._limits = llguidance.LLParserLimits(max_grammar_size=_MAX_GRAMMAR_SIZE, verbose_errors=False)
        threads = max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) * 4 // 5))
        self._masks = _Masks(llguidance.LLExecutor(threads), vocab_size, frozenset(eos_tokens))
        self._families = families or threads
        #: By guide, latest asked last; the family that is asked next is first.
        self._compiled: dict[GuideRequest, list[_Family]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def compile(self, request: GuideRequest) -> Guide:
        """A guide at its beginning. Errors: `Refused` for one that is malformed, unknown or too large."""
        with self._lock:
            family = self._next_family(request)
        if family is None:
            family = _Family(self._compile(request))
            with self._lock:
                self._keep(request, family)
        return family.first.copy()

    def _next_family(self, request: GuideRequest) -> _Family | None:
        """The family that gives the next copy; None where another is to be compiled."""
        families = self._compiled.pop(request, [])
        gone = {one.first.family for one in families} & self._masks.failed
        families = [one for one in families if one.first.family not in gone]
        self._masks.failed -= gone
        if families:
            self._compiled[request] = families  # the latest asked is last
        if len(families) < self._families:
            return None
        family = families.pop(0)
        family.copies += 1
        if family.copies < _MAX_COPIES:
            families.append(family)
        return family

    def _keep(self, request: GuideRequest, family: _Family) -> None:
        """Keeps a new family, and forgets the guide that was not asked for longest."""
        self._compiled.setdefault(request, []).append(family)
        while sum(map(len, self._compiled.values())) > MAX_FAMILIES and len(self._compiled) > 1:
            del self._compiled[next(iter(self._compiled))]

    def _compile(self, request: GuideRequest) -> Guide:
        if len(request.guide.encode()) > MAX_GUIDE_BYTES:
            raise invalid(
                f"guided_decoding_guide has {len(request.guide.encode())} bytes; "
                f"it may have {MAX_GUIDE_BYTES}"
            )
        try:
            grammar = self._grammar(request)
            if request.guide_type == "json_schema":
                check_guide_bounds("json_schema", request.guide)
            check_guide_bounds("lark", _lark(grammar))
        except (ValueError, KeyError, TypeError, AssertionError, RecursionError) as error:
            reason = error or type(error).__name__
            raise invalid(f"guided_decoding_guide is not a valid `{request.guide_type}`: {reason}") from error
        matcher = self._llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            text = str(matcher.get_error()).splitlines()[0]
            raise invalid(f"guided_decoding_guide cannot be used: {text}{_place(request, text)}")
        guide = Guide(matcher, self._masks, next(self._numbers))
        self._masks.compute([guide])
        return guide

    def _grammar(self, request: GuideRequest) -> str:
        matcher, guide = self._llguidance.LLMatcher, request.guide
        if request.guide_type == "json":
            return cast(str, matcher.grammar_from_json_schema("{}", defaults=_WHITE_SPACE))
        if request.guide_type == "json_schema":
            # Read here first: what is no JSON is told by its line and column.
            schema = json.dumps(json.loads(guide))
            return cast(str, matcher.grammar_from_json_schema(schema, defaults=_WHITE_SPACE))
        if request.guide_type == "regex":
            return cast(str, matcher.grammar_from_regex(guide))
        if request.guide_type == "ebnf_grammar":
            return cast(str, self._llguidance.grammar_from("ebnf", guide))
        return self._structural_tags(json.loads(guide))

    def _structural_tags(self, guide: Any) -> str:
        """xgrammar's forms; see `structural_tags`."""
        text = structural_tags.lark(guide, _WHITE_SPACE, self._parts)
        return cast(str, self._llguidance.LLMatcher.grammar_from_lark(text))

    def _parts(self, text: str) -> list[tuple[str, int | None]]:
        """The special tokens in `text` and the texts between them."""
        parts = self._split.split(text) if self._special else [text]
        return [(part, self._special.get(part)) for part in parts if part]


def unavailable() -> Refused:
    """The refusal of a guided request where nothing can guide it."""
    return Refused(
        StatusCode.UNIMPLEMENTED,
        "`guided_decoding_guide_type` needs llguidance and a tokenizer.json beside the model; install "
        "`inflight-llm[guided]` on the server, or send the request without it",
    )


def _lark(grammar: str) -> str:
    """The grammar in Lark; empty where llguidance's JSON holds a schema or a regular expression."""
    if not grammar.startswith("{"):
        return grammar
    parts = json.loads(grammar).get("grammars", ())
    return "\n".join(part.get("lark_grammar") or "" for part in parts)


def _place(request: GuideRequest, text: str) -> str:
    """Where in a schema the keys are that an error names, which llguidance does not tell."""
    named = re.search(r'Unimplemented keys: \["([^"]+)"', text)
    if request.guide_type != "json_schema" or named is None:
        return ""
    pending: list[tuple[str, Any]] = [("", json.loads(request.guide))]
    while pending:
        pointer, value = pending.pop(0)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            if key == named[1]:
                return f", at `{pointer}/{key}`"
            if isinstance(inner, (dict, list)):
                pending.append((f"{pointer}/{key}", inner))
    return ""
