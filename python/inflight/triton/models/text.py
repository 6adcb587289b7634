"""Text for the models in Triton: the gateway's own code (`inflight._native`), on the files of a directory.

Owns how word lists are packed into tensors; the rest is the tokenizer's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inflight._native import Tokenizer
from inflight.launch.model import Model, find_model


class Text:
    """A model's text: its tokenizer, and the ids that end a sequence."""

    def __init__(self, directory: str) -> None:
        if not directory:
            raise ValueError(
                "the parameter `tokenizer_dir` is not set; set it to the directory of tokenizer.json"
            )
        found: Model = find_model(directory, None, weights=False)
        self.tokenizer = Tokenizer(found.assets())
        #: As the model pads it, where the checkpoint says; a bias has a value for each.
        self.vocab_size = found.vocab_size() or self.tokenizer.vocab_size
        self.ends = self.tokenizer.eos_token_ids

    @property
    def end_id(self) -> int:
        """The id that ends a sequence; -1 where the model names none."""
        return self.ends[0] if self.ends else -1

    @property
    def pad_id(self) -> int:
        """The padding id; the end id where the model names none."""
        pad = self.tokenizer.pad_token_id
        return self.end_id if pad is None else pad

    def words(self, texts: Sequence[str]) -> list[list[int]]:
        """Each word's ids, without special tokens."""
        return [ids for ids in (self.tokenizer.encode(text, False) for text in texts) if ids]

    def bias(self, words: Sequence[str], weights: Sequence[float]) -> np.ndarray[Any, Any]:
        """float32 ``[vocab_size]`` with each word's weight at its ids; empty without words."""
        if len(words) != len(weights):
            raise ValueError(f"there are `{len(words)}` embedding bias words and `{len(weights)}` weights")
        if not words:
            return np.zeros(0, np.float32)
        bias = np.zeros(self.vocab_size, np.float32)
        for word, weight in zip(words, weights, strict=True):
            bias[self.tokenizer.encode(word, False)] += weight
        return bias


def pack_words(rows: Sequence[Sequence[Sequence[int]]]) -> np.ndarray[Any, Any]:
    """int32 ``[rows, 2, n]``: all ids end to end above, each word's end offset below, then -1."""
    width = max((sum(len(word) for word in words) for words in rows), default=0)
    packed = np.zeros((len(rows), 2, width), np.int32)
    packed[:, 1] = -1
    for row, words in enumerate(rows):
        end = 0
        for place, word in enumerate(words):
            packed[row, 0, end : end + len(word)] = word
            end += len(word)
            packed[row, 1, place] = end
    return packed


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> np.ndarray[Any, Any]:
    """int32 ``[rows, longest]``, padded on the right."""
    padded = np.full((len(rows), max((len(row) for row in rows), default=0)), pad_id, np.int32)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded
