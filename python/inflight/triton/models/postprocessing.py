"""`postprocessing`: token ids to text, as the worker makes it. Stateless, as the ensemble needs it.

Every response is decoded by itself, so a streamed character of several tokens shows as U+FFFD.
`tensorrt_llm_bls` keeps state and has no such gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inflight.triton.models import text
from inflight.triton.models.python_backend import Config


class TritonPythonModel:
    """Triton's name for a model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._config = Config(args)
        self._models = text.load(
            self._config, skip_special_tokens=self._config.flag("skip_special_tokens", True)
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [text.answer(self._models.postprocess, request, self._config) for request in requests]
