"""What a model that hears may write next: a guide from `generation_config.json`, as transformers applies it.

Owns the order of timestamps and which tokens are held back; sources are OpenAI's `whisper/decoding.py` and
transformers' `WhisperTimeStampLogitsProcessor`. Knows nothing of text or of clips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from inflight.model.files import read_json

from .masks import Bits, Mask, RuleGuide, row_bytes

#: Of the first timestamp, where the file states none: one second, in steps of 0.02 s.
_FIRST_TIMESTAMP = 50


@dataclass(frozen=True, slots=True)
class Marks:
    """The tokens of a model that are not text; None: it has none such, or its files do not say."""

    #: Every id from this one on, as far as the vocabulary goes, is a time.
    first_time: int | None = None
    #: Of the first timestamp.
    last_first_time: int | None = None
    no_times: int | None = None
    end: int | None = None
    #: What begins a prompt; alone it asks for the language.
    start: int | None = None
    languages: tuple[int, ...] = ()
    #: Never written, and not written first.
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()


def load_marks(model_dir: Path, vocab_size: int) -> Marks:
    """Those that `generation_config.json` and `config.json` state. Raises `CheckpointError`."""
    values: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        if (model_dir / name).is_file():
            own = read_json(model_dir / name)
            values |= {key: value for key, value in own.items() if value is not None}
    return parse_marks(values, vocab_size)


def parse_marks(values: Mapping[str, Any], vocab_size: int) -> Marks:
    """The tokens in the objects of these files, joined; ids outside the vocabulary are left out."""

    def one(value: Any) -> int | None:
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, int) and 0 <= value < vocab_size else None

    def several(value: Any) -> tuple[int, ...]:
        listed = value if isinstance(value, list) else []
        return tuple(token for token in map(one, listed) if token is not None)

    languages = values.get("lang_to_id")
    no_times = one(values.get("no_timestamps_token_id"))
    first_time = None if no_times is None or no_times + 1 >= vocab_size else no_times + 1
    steps = values.get("max_initial_timestamp_index", _FIRST_TIMESTAMP)
    steps = steps if isinstance(steps, int) and steps >= 0 else _FIRST_TIMESTAMP
    return Marks(
        first_time=first_time,
        last_first_time=None if first_time is None else min(first_time + steps, vocab_size - 1),
        no_times=no_times,
        end=one(values.get("eos_token_id")),
        start=one(values.get("decoder_start_token_id")),
        languages=several(list(languages.values())) if isinstance(languages, dict) else (),
        suppressed=several(values.get("suppress_tokens")),
        suppressed_first=several(values.get("begin_suppress_tokens")),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """All that decides which tokens may come next."""

    asks_language: bool
    is_first: bool
    #: Whether times are ordered; and then, whether none may come, whether a part has ended, and the least
    #: that may come.
    orders_times: bool
    times_must_not_come: bool
    part_ended: bool
    lowest_time: int | None


class TranscriptRules(RuleGuide):
    """One sequence's place in its transcript."""

    def __init__(self, marks: Marks, prompt: Sequence[int], vocab_size: int) -> None:
        super().__init__(vocab_size)
        self._marks, self._prompt = marks, prompt
        self._asks_language = bool(marks.languages) and list(prompt) == [marks.start]
        self._times = (
            not self._asks_language and marks.first_time is not None and marks.no_times not in prompt
        )
        self._count = 0
        #: The last time, and whether the last tokens were times, the latest first.
        self._last_time: int | None = None
        self._were_times = (False, False)

    def copy(self) -> TranscriptRules:
        """Another sequence's, which has generated nothing."""
        return TranscriptRules(self._marks, self._prompt, self._vocab_size)

    def mask(self) -> Mask:
        return np.unpackbits(self.bits(), count=self._vocab_size, bitorder="little").view(np.bool_)

    def bits(self) -> Bits:
        """Shared with other sequences at such a place."""
        return _bits(self._marks, self._vocab_size, self._place())

    @property
    def outweighs(self) -> int | None:
        """A time must come where times together are likelier than every other token."""
        return self._marks.first_time if self._times and not self._times_must_not_come() else None

    def observe(self, token: int) -> None:
        first = self._marks.first_time
        is_time = first is not None and token >= first
        self._count += 1
        self._were_times = (is_time, self._were_times[0])
        if is_time:
            self._last_time = token

    def _times_must_not_come(self) -> bool:
        """After two times in a row, or one that is the first token."""
        latest, before = self._were_times
        return latest and (before or self._count == 1)

    def _place(self) -> _Place:
        (latest, before), is_first = self._were_times, self._count == 0
        if not self._times:
            return _Place(self._asks_language and is_first, is_first, False, False, False, None)
        opens = latest and not (before or self._count == 1)
        lowest = None if self._last_time is None else self._last_time + (0 if opens else 1)
        return _Place(False, is_first, True, self._times_must_not_come(), latest, lowest)


@lru_cache(maxsize=1024)
def _bits(marks: Marks, vocab_size: int, place: _Place) -> Bits:
    """The mask at a place. Few differ, and every sequence asks for one at every token."""
    if place.asks_language:
        mask: Mask = np.zeros(vocab_size, dtype=np.bool_)
        mask[list(marks.languages)] = True
    else:
        mask = np.ones(vocab_size, dtype=np.bool_)
        mask[list(marks.suppressed)] = False
        if place.is_first:
            mask[list(marks.suppressed_first)] = False
        if place.orders_times and marks.first_time is not None:
            _order_times(mask, marks, marks.first_time, place)
    packed = np.packbits(mask, bitorder="little")
    bits: Bits = np.zeros(row_bytes(vocab_size), dtype=np.uint8)
    bits[: len(packed)] = packed
    bits.flags.writeable = False
    return bits


def _order_times(mask: Mask, marks: Marks, first: int, place: _Place) -> None:
    """Times come in pairs, the end of one part and the beginning of the next, and never go back."""
    if marks.no_times is not None:
        mask[marks.no_times] = False
    if place.is_first:
        mask[:first] = False
        if marks.last_first_time is not None:
            mask[marks.last_first_time + 1 :] = False
        return
    if place.times_must_not_come:
        mask[first:] = False
    elif place.part_ended and marks.end is not None:
        # Another begins, or the transcript ends.
        mask[: marks.end] = False
    if place.lowest_time is not None:
        mask[first : place.lowest_time] = False
