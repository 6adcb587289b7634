"""Text to token ids and back for the core model: by a tokenizer on this machine, or by the server's own
`preprocessing` and `postprocessing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from inflight.client.kserve import Array, Connection, Request
from inflight.errors import InflightError, UserMistake

PREPROCESSING = "preprocessing"
POSTPROCESSING = "postprocessing"


class Text(Protocol):
    """Both directions."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of prompts."""

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of stop and bad words, without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer."""


class LocalText:
    """The `tokenizer.json` of a directory, or of a model on the Hugging Face Hub."""

    def __init__(self, directory: str) -> None:
        from inflight._native import Tokenizer
        from inflight.launch.model import find_model

        try:
            self._tokenizer = Tokenizer(find_model(directory, None, weights=False).assets())
        except ValueError as error:
            raise UserMistake(f"the tokenizer of `{directory}` cannot be used: {error}") from error

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Text`."""
        return [self._tokenizer.encode(text) for text in texts]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """See `Text`."""
        return [self._tokenizer.encode(word, add_special_tokens=False) for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        """See `Text`."""
        return self._tokenizer.decode(ids)


class ServerText:
    """The server's models."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Text`."""
        found = []
        for text in texts:
            made = self._ask(
                PREPROCESSING, {"QUERY": ("BYTES", _text(text)), "REQUEST_OUTPUT_LEN": ("INT32", _int(1))}
            )
            found.append([int(one) for one in made["INPUT_ID"].reshape(-1)])
        return found

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """See `Text`."""
        found = []
        for word in words:
            made = self._ask(
                PREPROCESSING,
                {
                    "QUERY": ("BYTES", _text(word)),
                    "REQUEST_OUTPUT_LEN": ("INT32", _int(1)),
                    "STOP_WORDS_DICT": ("BYTES", _text(word)),
                },
            )
            ids, ends = made["STOP_WORDS_IDS"].reshape(2, -1)
            found.append([int(one) for one in ids[: int(ends[0])]])
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """See `Text`."""
        if not ids:
            return ""
        made = self._ask(
            POSTPROCESSING,
            {
                "TOKENS_BATCH": ("INT32", np.array([[list(ids)]], np.int32)),
                "SEQUENCE_LENGTH": ("INT32", _int(len(ids))),
            },
        )
        text = made["OUTPUT"].reshape(-1)[0]
        return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)

    def _ask(self, model: str, tensors: dict[str, tuple[str, Array]]) -> dict[str, Array]:
        request = Request(
            model,
            {name: array for name, (_, array) in tensors.items()},
            {name: datatype for name, (datatype, _) in tensors.items()},
        )
        for response in self._connection.ask(request):
            return dict(response.tensors)
        raise InflightError(f"`{model}` did not answer", "pass `--tokenizer DIR`")


def _text(text: str) -> Array:
    return np.array([[text.encode()]], np.object_)


def _int(value: int) -> Array:
    return np.array([[value]], np.int32)
