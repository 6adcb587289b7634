"""`preprocessing`: text to token ids. Stateless; owns the names of its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inflight.triton.models.python_backend import BadRequest, Config, Inputs, error, pb_utils, tensor
from inflight.triton.models.text import Text, pack_words, pad

_NO_IMAGES = ("IMAGE_BYTES", "IMAGE_URL", "VIDEO_BYTES")


class TritonPythonModel:
    """Triton's name for a model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._config = Config(args)
        self._config.refuse("multimodal_model_path", "max_num_images", "hf_model_path")
        self._text = Text(self._config.text("tokenizer_dir"))
        self._add_special_tokens = self._config.flag("add_special_tokens", True)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            inputs = Inputs(request, self._config.input_names)
            return pb_utils.InferenceResponse(self._outputs(inputs))
        except ValueError as problem:
            return pb_utils.InferenceResponse(error=error(str(problem)))

    def _outputs(self, inputs: Inputs) -> list[Any]:
        for name in _NO_IMAGES:
            if name in inputs:
                raise BadRequest(f"`{name}` is not supported: this model takes text")
        text = self._text
        rows = range(len(inputs.required("QUERY")))
        prompts = [self._encode(inputs, "QUERY", row) for row in rows]
        decoder = [self._encode(inputs, "DECODER_QUERY", row) or [max(text.pad_id, 0)] for row in rows]
        stops = []
        for row in rows:
            words = text.words(inputs.texts("STOP_WORDS_DICT", row))
            # The core model takes one end id; a model's others end a sequence as stop words.
            others = [] if "END_ID" in inputs else [[end] for end in text.ends[1:]]
            stops.append(words + others)
        bad = [text.words(inputs.texts("BAD_WORDS_DICT", row)) for row in rows]
        bias = [
            text.bias(inputs.texts("EMBEDDING_BIAS_WORDS", row), self._weights(inputs, row)) for row in rows
        ]
        if len({len(one) for one in bias}) > 1:
            raise BadRequest("all rows of a batch have embedding bias words, or none has")
        extra = [
            [inputs.scalar("PROMPT_TABLE_EXTRA_ID", row)] * len(prompts[row])
            if "PROMPT_TABLE_EXTRA_ID" in inputs
            else []
            for row in rows
        ]
        return [
            tensor("INPUT_ID", pad(prompts, max(text.pad_id, 0)), np.int32),
            tensor("REQUEST_INPUT_LEN", [[len(ids)] for ids in prompts], np.int32),
            tensor("DECODER_INPUT_ID", pad(decoder, max(text.pad_id, 0)), np.int32),
            tensor("REQUEST_DECODER_INPUT_LEN", [[len(ids)] for ids in decoder], np.int32),
            tensor("REQUEST_OUTPUT_LEN", inputs.required("REQUEST_OUTPUT_LEN"), np.int32),
            tensor("STOP_WORDS_IDS", pack_words(stops), np.int32),
            tensor("BAD_WORDS_IDS", pack_words(bad), np.int32),
            tensor("EMBEDDING_BIAS", bias, np.float32),
            tensor("OUT_END_ID", [[inputs.scalar("END_ID", row, text.end_id)] for row in rows], np.int32),
            tensor("OUT_PAD_ID", [[inputs.scalar("PAD_ID", row, text.pad_id)] for row in rows], np.int32),
            tensor("OUT_PROMPT_TABLE_EXTRA_IDS", pad(extra, 0), np.uint64),
        ]

    def _encode(self, inputs: Inputs, name: str, row: int) -> list[int]:
        return (
            self._text.tokenizer.encode("".join(inputs.texts(name, row)), self._add_special_tokens)
            if (name in inputs)
            else []
        )

    @staticmethod
    def _weights(inputs: Inputs, row: int) -> list[float]:
        values = inputs.row("EMBEDDING_BIAS_WEIGHTS", row)
        return [] if values is None else values.reshape(-1).tolist()
