"""`postprocessing`: token ids to text. Stateless, as the ensemble needs it.

Every response is decoded by itself, so a streamed character of several tokens shows as U+FFFD.
`tensorrt_llm_bls` keeps state and has no such gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inflight.triton.models.python_backend import Config, Inputs, error, pb_utils, texts
from inflight.triton.models.text import Text


class TritonPythonModel:
    """Triton's name for a model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._config = Config(args)
        self._text = Text(self._config.text("tokenizer_dir"))
        self._skip = self._config.flag("skip_special_tokens", True)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            inputs = Inputs(request, self._config.input_names)
            decoded = []
            for row, beams in enumerate(inputs.required("TOKENS_BATCH")):
                lengths = inputs.required("SEQUENCE_LENGTH")[row]
                decoded.append(
                    [
                        # Ids below 0 are padding of beams that ended earlier.
                        self._text.tokenizer.decode(
                            [id for id in beam[: max(int(length), 0)].tolist() if id >= 0], self._skip
                        )
                        for beam, length in zip(beams, lengths, strict=True)
                    ]
                )
            return pb_utils.InferenceResponse([texts("OUTPUT", decoded)])
        except ValueError as problem:
            return pb_utils.InferenceResponse(error=error(str(problem)))
