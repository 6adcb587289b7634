"""A core model whose executor has every capability and answers at once, with every column of a batch.

Runs in Triton, in place of a created `model.py`. What reached it goes back as `context_phase_params`, in
JSON.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from inflight import executors
from inflight.executors.base import FinishReason, ModelInfo, NamedTensor, Request, ResponseBatch
from inflight.triton.models.core import TritonPythonModel
from inflight.triton.repository.tables import CORE

__all__ = ["TritonPythonModel"]

VOCAB_SIZE = 16
#: A prompt that breaks the executor.
POISON = [13]
CAPABILITIES = {one.capability for one in CORE.inputs if one.capability}
CAPABILITIES.update(one.capability for one in CORE.parameters)
TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
COUNTS = (
    "kv_cache_alloc_new_blocks",
    "kv_cache_reused_blocks",
    "kv_cache_alloc_total_blocks",
    "total_accepted_draft_tokens",
    "total_draft_tokens",
)


class FullExecutor:
    """Implements `inflight.executors.base.Executor`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: list[Request] = []

    def info(self) -> ModelInfo:
        return ModelInfo(
            executor="full",
            vocab_size=VOCAB_SIZE,
            max_seq_len=64,
            max_input_len=63,
            max_batch_size=8,
            max_num_tokens=64,
            max_beam_width=4,
            tokens_per_block=32,
            capabilities=tuple(CAPABILITIES),
        )

    def enqueue(self, requests: Sequence[Request]) -> None:
        with self._changed:
            self._requests.extend(requests)
            self._changed.notify()

    def cancel(self, client_ids: Sequence[int]) -> None:
        pass

    def stats(self) -> Sequence[Any]:
        return ()

    def shutdown(self) -> None:
        pass

    def await_responses(self, timeout_s: float) -> ResponseBatch:
        with self._changed:
            self._changed.wait_for(lambda: self._requests, timeout_s)
            if not self._requests:
                return ResponseBatch()
            request = self._requests.pop(0)
        if request.input_token_ids == POISON:
            raise RuntimeError("the device is gone")
        return answer(request)


def answer(request: Request) -> ResponseBatch:
    """Beam b has b + 1 tokens, each with the log probability -0.5; the last beam carries the rest."""
    beams = request.sampling_config.beam_width
    lengths = [beam + 1 for beam in range(beams)]
    prompt, last = len(request.input_token_ids), beams - 1
    tokens = [beam for beam in range(beams) for _ in range(lengths[beam])]
    width = request.output_config.num_top_log_probs
    told = request.output_config.num_prompt_log_probs
    context = np.arange(prompt * VOCAB_SIZE, dtype=np.float32).reshape(prompt, VOCAB_SIZE)
    generation = np.ones((beams, max(lengths), VOCAB_SIZE), np.float32)
    tensors = []
    if request.output_config.return_context_logits:
        tensors.append(_tensor("context_logits", "FP32", context))
    if request.output_config.return_generation_logits:
        tensors.append(_tensor("generation_logits", "FP32", generation))
    tensors += [
        _tensor("cum_log_probs", "FP32", np.full(beams, -7, np.float32)),
        _tensor("acceptance_rate", "FP32", np.array([0.25], np.float32)),
        *(_tensor(name, "INT64", np.array([place + 2**40], np.int64)) for place, name in enumerate(TIMES)),
        *(_tensor(name, "INT32", np.array([place + 1], np.int32)) for place, name in enumerate(COUNTS)),
    ]
    if prompt > 1:
        tensors.append(_tensor("context_phase_params", "UINT8", np.frombuffer(_described(request), np.uint8)))
    top = [(last, lengths[last])] if width and beams == 1 else []
    return ResponseBatch(
        client_ids=np.full(beams, request.client_id, np.uint64).tobytes(),
        sequence_index=np.arange(beams, dtype=np.int32).tobytes(),
        token_offsets=np.cumsum([0, *lengths]).astype(np.uint32).tobytes(),
        token_ids=np.array(tokens, np.int32).tobytes(),
        finish_reasons=np.full(beams, FinishReason.LENGTH, np.uint8).tobytes(),
        finals=bytes(beam == last for beam in range(beams)),
        log_prob_rows=np.arange(beams, dtype=np.uint32).tobytes(),
        log_probs=np.full(sum(lengths), -0.5, np.float32).tobytes(),
        top_log_prob_rows=np.array([row for row, _ in top], np.uint32).tobytes(),
        top_log_prob_widths=np.array([width for _ in top], np.uint32).tobytes(),
        top_log_prob_ids=np.arange(sum(count * width for _, count in top), dtype=np.int32).tobytes(),
        top_log_probs=np.full(sum(count * width for _, count in top), -1, np.float32).tobytes(),
        cached_tokens=[(last, 2)],
        prompt_log_probs=[(last, np.full(prompt, -2, np.float32).tobytes(), 0, b"", b"")]
        if told is not None
        else [],
        tensors=[(last, one) for one in tensors],
    )


def _tensor(name: str, datatype: str, values: np.ndarray[Any, Any]) -> NamedTensor:
    return NamedTensor(name, datatype, values.shape, values.tobytes())


def _described(request: Request) -> bytes:
    fields = asdict(request)
    fields["tensors"] = {one.name: [one.datatype, list(one.shape), one.data.hex()] for one in request.tensors}
    fields["embedding_bias"] = np.frombuffer(request.embedding_bias, np.float32).tolist()
    return json.dumps(fields).encode()


# The name is one that the core model lets pass; in this process it means the executor above.
executors._FACTORIES["scripted"] = lambda options: FullExecutor()  # noqa: ARG005
