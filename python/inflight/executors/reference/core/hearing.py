"""A request with a clip: its samples, what its cached blocks are known as, and what is refused with it.

Owns the input's name and limits. How samples become a spectrogram is `model.log_mel`'s, what may be written
of them `transcript`'s. Knows nothing of queues.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inflight.executors.base import NamedTensor, Request, StatusCode
from inflight.executors.reference.model.array_types import Float32

from .refusal import Refused, invalid
from .reuse import with_extra_ids
from .transcript import Marks

#: The input with a request's samples, as Triton's Whisper model has it.
AUDIO = "WAV"
#: Samples beyond what files have, which their decoders may overshoot a little.
_LOUDEST = 16.0
_NAME_BYTES = 16


@dataclass(frozen=True, slots=True)
class Hearing:
    """What a model that hears takes of a clip, and what it writes."""

    samples: int
    rate: int
    marks: Marks


@dataclass(frozen=True, eq=False, slots=True)
class Clip:
    """The samples of one request ``[samples]``."""

    #: Made of them, and of what keeps the tenant apart.
    name: bytes
    samples: Float32

    def marked(self, tokens: Sequence[int], prompt: int) -> Sequence[int]:
        """The first tokens of a sequence as cached blocks know them, of which ``prompt`` are the client's:
        what was computed with one clip is nothing to another."""
        own = int.from_bytes(self.name, "little")
        return with_extra_ids(tokens, [own] * min(prompt, len(tokens)))


def read_clip(value: NamedTensor, salt: bytes, hearing: Hearing) -> Clip:
    """The clip of a request's tensor. Errors: `Refused`."""
    if value.datatype != "FP32" or len(value.data) % 4:
        raise invalid(f"{AUDIO} is of type {value.datatype}; it must hold FP32 samples of {hearing.rate} Hz")
    samples = np.frombuffer(value.data, dtype="<f4")
    if not 1 <= len(samples) <= hearing.samples:
        raise invalid(
            f"{AUDIO} has {len(samples)} samples; this model hears 1 to {hearing.samples} "
            f"({hearing.samples / hearing.rate:g} s at {hearing.rate} Hz)"
        )
    if not bool((np.abs(samples) <= _LOUDEST).all()):
        raise invalid(f"{AUDIO} holds a sample that is not between -{_LOUDEST:g} and {_LOUDEST:g}; scale it")
    digest = hashlib.blake2b(len(salt).to_bytes(8, "little") + salt, digest_size=_NAME_BYTES)
    digest.update(value.data)
    return Clip(digest.digest(), samples)


def check_together(request: Request, asked: Sequence[str]) -> None:
    """Refuses what cannot be asked of a model that hears; ``asked`` are names of the request's tensors."""
    output = request.output_config
    names = [*asked]
    if output.num_prompt_log_probs is not None:
        names.append("inflight_num_prompt_log_probs")
    if output.return_context_logits:
        names.append("return_context_logits")
    if names:
        raise Refused(
            StatusCode.UNIMPLEMENTED,
            f"the reference executor does not implement `{', '.join(names)}` with `{AUDIO}`; send the "
            "request without it",
        )


def not_taken() -> Refused:
    """Why a model without an encoder refuses clips."""
    return Refused(
        StatusCode.UNIMPLEMENTED, f"this model does not take `{AUDIO}`; send a prompt of text alone"
    )


def missing(hearing: Hearing) -> Refused:
    """Why a model that hears refuses a prompt alone."""
    return invalid(
        f"this model transcribes and needs `{AUDIO}`: FP32 samples of {hearing.rate} Hz, one channel; send "
        "it, or use a model that takes text"
    )
