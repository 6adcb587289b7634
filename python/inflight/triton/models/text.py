"""Text for the models in Triton, on the files of a directory. What they answer is the worker's own code
(`inflight._native.TextModels`); this only finds the files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inflight._native import Refusal, TextModels, Tokenizer
from inflight.launch.model import Model, find_model
from inflight.triton.models.python_backend import Config, Inputs, error, pb_utils
from inflight.triton.models.tensors import pack, unpack_all

#: `TextModels.preprocess` or `.postprocess`.
Call = Callable[[Sequence[Any], Sequence[str]], Any]


def _find(directory: str) -> Model:
    if not directory:
        raise ValueError(
            "the parameter `tokenizer_dir` is not set; set it to the directory of tokenizer.json"
        )
    return find_model(directory, None, weights=False)


def load(config: Config, **options: Any) -> TextModels:
    """The text models of a config's `tokenizer_dir`; `options` are those of `TextModels`."""
    found = _find(config.text("tokenizer_dir"))
    return TextModels(
        found.assets(),
        vocab_size=found.vocab_size(),
        max_batch_size=config.max_batch_size,
        **options,
    )


def vocab_size(directory: str) -> int | None:
    """How many ids the model of this directory has, as it pads them."""
    found = _find(directory)
    return found.vocab_size() or Tokenizer(found.assets()).vocab_size


def answer(call: Call, request: Any, config: Config) -> Any:
    """The response to a request that needs no other model."""
    try:
        inputs = Inputs(request, config.input_names)
        made = call(
            [pack(name, array) for name, array in inputs.arrays.items()],
            sorted(request.requested_output_names()),
        )
    except ValueError as problem:
        return pb_utils.InferenceResponse(error=error(str(problem)))
    if isinstance(made, Refusal):
        return pb_utils.InferenceResponse(error=error(made.text, made.status))
    return pb_utils.InferenceResponse(unpack_all(made))
