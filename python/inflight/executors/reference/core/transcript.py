"""What a model that hears may write next: a guide from `generation_config.json`, as transformers applies it.

Owns the order of timestamps and which tokens are held back; sources are OpenAI's `whisper/decoding.py` and
transformers' `WhisperTimeStampLogitsProcessor`. Knows nothing of text or of clips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inflight.model.files import read_json

from .masks import Bits, Mask, RuleGuide

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
        marks = self._marks
        if self._asks_language and self._count == 0:
            mask = np.zeros(self._vocab_size, dtype=np.bool_)
            mask[list(marks.languages)] = True
            return mask
        mask = np.ones(self._vocab_size, dtype=np.bool_)
        mask[list(marks.suppressed)] = False
        if self._count == 0:
            mask[list(marks.suppressed_first)] = False
        if self._times and marks.first_time is not None:
            self._order_times(mask, marks.first_time)
        return mask

    def bits(self) -> Bits:
        packed = np.packbits(self.mask(), bitorder="little")
        bits: Bits = np.zeros(4 * ((self._vocab_size + 31) // 32), dtype=np.uint8)
        bits[: len(packed)] = packed
        return bits

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

    def _order_times(self, mask: Mask, first: int) -> None:
        """Times come in pairs, the end of one part and the beginning of the next, and never go back."""
        marks, (latest, before) = self._marks, self._were_times
        if marks.no_times is not None:
            mask[marks.no_times] = False
        if self._count == 0:
            mask[:first] = False
            if marks.last_first_time is not None:
                mask[marks.last_first_time + 1 :] = False
            return
        if self._times_must_not_come():
            mask[first:] = False
        elif latest and marks.end is not None:
            # A part has ended: another begins, or the transcript ends.
            mask[: marks.end] = False
        if self._last_time is not None:
            opens = latest and not (before or self._count == 1)
            mask[first : self._last_time + (0 if opens else 1)] = False
