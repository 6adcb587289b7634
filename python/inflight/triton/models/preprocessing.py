"""`preprocessing`: text to token ids, as the worker makes them. Stateless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inflight.triton.models import text
from inflight.triton.models.python_backend import Config
from inflight.triton.repository.parameters import REFUSED


class TritonPythonModel:
    """Triton's name for a model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._config = Config(args)
        self._config.refuse(*REFUSED["preprocessing"])
        self._models = text.load(
            self._config, add_special_tokens=self._config.flag("add_special_tokens", True)
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [text.answer(self._models.preprocess, request, self._config) for request in requests]
