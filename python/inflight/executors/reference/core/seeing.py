"""Requests with images before the engine sees them: their files become pixels, and their prompts longer.

Owns what is refused of them and how much memory the pixels of all requests take. Knows nothing of queues.
"""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakSet

from inflight.executors.base import NamedTensor, Request, StatusCode
from inflight.executors.images import IMAGES
from inflight.executors.reference.model.processor import Processor

from .extras import Extras
from .image_cache import ImageCache
from .images import ImagePrompt, Picture, expand, read_pictures
from .refusal import Refused

#: Pixels of files that come again, as those of a conversation do.
KEPT_BYTES = 128 << 20
#: Pixels of all requests that run or wait; one has 48 MiB at most. They stay until it ends, since it may have
#: to be computed again.
MAX_BYTES = 1 << 31


class Seeing:
    """Prepares images for one model."""

    def __init__(self, processor: Processor, max_bytes: int = MAX_BYTES) -> None:
        self._processor = processor
        self._max_bytes = max_bytes
        self._in_use: WeakSet[ImagePrompt] = WeakSet()
        self._known: ImageCache[Picture] = ImageCache(KEPT_BYTES)

    @property
    def identity(self) -> str:
        """What decides into what tokens an image is made."""
        return repr(self._processor)

    def prepare(self, request: Request, extras: Extras, value: NamedTensor) -> tuple[Request, ImagePrompt]:
        """The request as the engine takes it: without the files of ``value``, and with a placeholder for each
        token. Errors: `Refused`."""
        _check_together(request, extras)
        held = sum(prompt.memory_bytes for prompt in self._in_use)
        if held >= self._max_bytes:
            raise Refused(
                StatusCode.RESOURCE_EXHAUSTED,
                f"the images of all requests take {held >> 20} MiB and may take {self._max_bytes >> 20}; "
                "try again later",
            )
        pictures = read_pictures(value, self._processor, extras.cache_salt, self._known)
        tokens, prompt = expand(request.input_token_ids, pictures, self._processor)
        self._in_use.add(prompt)
        others = [tensor for tensor in request.tensors if tensor.name != IMAGES]
        return replace(request, input_token_ids=tokens, tensors=others), prompt


def _check_together(request: Request, extras: Extras) -> None:
    """What cannot be asked together with images."""
    output = request.output_config
    asked = {
        "lora_task_id": extras.lora is not None,
        "prompt_embedding_table": extras.prompt_tuning is not None,
        "inflight_num_prompt_log_probs": output.num_prompt_log_probs is not None,
        "return_context_logits": output.return_context_logits,
    }
    names = [name for name, is_asked in asked.items() if is_asked]
    if names:
        raise Refused(
            StatusCode.UNIMPLEMENTED,
            f"the reference executor does not implement `{', '.join(names)}` with images; send the request "
            "without it",
        )


def not_taken() -> Refused:
    """Why a model without a tower refuses images."""
    return Refused(
        StatusCode.UNIMPLEMENTED, f"this model does not take `{IMAGES}`; send a prompt of text alone"
    )
