"""Guided decoding: answers that fit a JSON schema, a regular expression, a grammar or structural tags.

Owns the compiling of guides with llguidance, which is bounded in size and work and happens with the first
mask where requests come in, not where streams wait; later masks are `masks`. A guide that hits a limit
fails its request: llguidance itself would allow the end token alone, and the answer would be cut without a
word.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import time
from dataclasses import dataclass
from typing import Any, cast

from inflight._native import check_guide_bounds
from inflight.executors.base import StatusCode

from . import structural_tags
from .masks import Guide, Masks
from .refusal import Refused, invalid
from .schemas import closed

#: TensorRT-LLM's ``GuidedDecodingParams.GuideType``, as Triton's tensor has it.
GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar", "structural_tag")

#: A guide's text: what compiles within a fraction of a second.
MAX_GUIDE_BYTES = 64 * 1024

#: Symbols of a compiled grammar: those of a thousand optional properties, which take a quarter of a second.
_MAX_GRAMMAR_SIZE = 8_000

#: Ways in which an answer may continue at one byte. Enough for any grammar of that size that is not more
#: ambiguous than a list of optional properties: a grammar that compiles must not fail in mid-answer.
_MAX_ITEMS_IN_ROW = 5_000

#: Families that are kept, those of the guides asked last. A copy takes microseconds, compiling milliseconds.
MAX_FAMILIES = 256

#: Families of a guide for each thread that computes masks: enough that threads seldom wait for each other.
#: Fewer, but at least one for each thread, if all of them would take more seconds than this to compile.
_FAMILIES_PER_THREAD, _COMPILING_S = 4, 0.25

#: Copies that a family gives: what it has learned of its grammar counts against the limits of each.
_MAX_COPIES = 64

#: Threads that compute masks: of a machine's cores half, since more of them cost more to wake than they save.
MAX_THREADS = 16

#: Sets of tokens whose masks are known beforehand: white space, and text of a string up to so many
#: characters. llguidance's own have 10 and 30 alone; near a string's longest it then looks at every token.
_STRING = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_STRING}{{1,{length}}}" for length in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30)),
    f"{_STRING}+",
]

#: White space between the parts of JSON: a line break and an indent. Without a bound, a small model may write
#: nothing else until its answer is cut.
_WHITE_SPACE = {"whitespace_pattern": r"\n? {0,12}"}


@dataclass(frozen=True, slots=True)
class GuideRequest:
    """``GuidedDecodingParams``: what a request asks to be held to."""

    guide_type: str
    guide: str


@dataclass(slots=True)
class _Family:
    """A guide at its beginning and its copies, which share what they learn of the grammar, and a lock."""

    first: Guide
    #: What compiling it took.
    compile_s: float
    copies: int = 0


class Guides:
    """Compiles guides for one tokenizer. Any thread may compile.

    Many requests bring the same guide, so that compiled ones are kept and copied. Copies of one cannot
    compute at once: a guide is compiled several times, and each time gives a ``family`` of copies.
    """

    def __init__(
        self, tokenizer_json: str, vocab_size: int, eos_tokens: list[int], families: int | None = None
    ) -> None:
        """``families`` of a guide; None: as many as its threads and the time to compile it suggest."""
        import llguidance

        self._llguidance: Any = llguidance
        self._tokenizer = llguidance.LLTokenizer(
            tokenizer_json, n_vocab=vocab_size, eos_token=eos_tokens, slices=_SLICES
        )
        added = json.loads(tokenizer_json).get("added_tokens") or ()
        special = {one["content"]: one["id"] for one in added if one["content"]}
        is_special = self._tokenizer.is_special_token
        self._special = {text: token for text, token in special.items() if is_special(token)}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self._limits = llguidance.LLParserLimits(
            max_grammar_size=_MAX_GRAMMAR_SIZE, max_items_in_row=_MAX_ITEMS_IN_ROW, verbose_errors=False
        )
        threads = max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) // 2))
        self._masks = Masks(llguidance.LLExecutor(threads), vocab_size, frozenset(eos_tokens))
        self._families, self._threads = families, threads
        #: By guide, latest asked last; the family that is asked next is first.
        self._compiled: dict[GuideRequest, list[_Family]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def compile(self, request: GuideRequest) -> Guide:
        """A guide at its beginning. Errors: `Refused` for one that is malformed, unknown or too large."""
        with self._lock:
            family = self._next_family(request)
        if family is None:
            started = time.perf_counter()
            first = self._compile(request)
            family = _Family(first, time.perf_counter() - started)
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
        if len(families) < self._wanted(families):
            return None
        family = families.pop(0)
        family.copies += 1
        if family.copies < _MAX_COPIES:
            families.append(family)
        return family

    def _wanted(self, families: list[_Family]) -> int:
        """How many families a guide is to have, of which some are compiled."""
        if self._families is not None or not families:
            return self._families or self._threads
        most = int(_COMPILING_S / min(one.compile_s for one in families))
        return min(max(most, self._threads), _FAMILIES_PER_THREAD * self._threads)

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
            check_guide_bounds("lark", _lark(grammar))
        except (ValueError, KeyError, TypeError, AssertionError, RecursionError) as error:
            reason = error or type(error).__name__
            raise invalid(f"guided_decoding_guide is not a valid `{request.guide_type}`: {reason}") from error
        matcher = self._llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            text = str(matcher.get_error()).splitlines()[0]
            raise invalid(f"guided_decoding_guide cannot be used: {text}{_place(request, text)}")
        guide = Guide(matcher, self._masks, next(self._numbers))
        self._masks.compute(guide)
        return guide

    def _grammar(self, request: GuideRequest) -> str:
        matcher, guide = self._llguidance.LLMatcher, request.guide
        if request.guide_type == "json":
            return cast(str, matcher.grammar_from_json_schema("{}", defaults=_WHITE_SPACE))
        if request.guide_type == "json_schema":
            # Parsed here first: its error for invalid JSON has the line and column.
            schema = json.dumps(closed(json.loads(guide)))
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
        "`guided_decoding_guide_type` needs llguidance and a tokenizer.json next to the model; install "
        "`inflight-llm[guided]` on the server, or send the request without it",
    )


def _lark(grammar: str) -> str:
    """The grammar in Lark; empty where llguidance's JSON holds a schema or a regular expression."""
    if not grammar.startswith("{"):
        return grammar
    parts = json.loads(grammar).get("grammars", ())
    return "\n".join(part.get("lark_grammar") or "" for part in parts)


def _place(request: GuideRequest, text: str) -> str:
    """Where in a schema the keys are that an error of llguidance names; it does not report the place."""
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
