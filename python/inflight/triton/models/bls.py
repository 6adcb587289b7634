"""`tensorrt_llm_bls`: text in, text out, around the core model. Owns each sequence's text as it grows.

Text is made here, by the code that the gateway has, and not by the two neighbours: a stream's pieces put
together are the whole text, and stop words are found wherever tokens begin and end.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from inflight._native import Detokenizer, StopMatcher
from inflight.triton.models.python_backend import (
    BadRequest,
    Config,
    Inputs,
    Reply,
    error,
    pb_utils,
    tensor,
    texts,
)
from inflight.triton.models.text import Text, pack_words, pad
from inflight.triton.repository.tables import FORWARDED

_ABSENT = [
    "decoder_text_input",
    "image_input",
    "image_bytes_input",
    "image_url_input",
    "video_bytes_input",
    "num_draft_tokens",
    "use_draft_logits",
    "prompt_table_extra_id",
]
#: Requests at once; each waits in a thread of its own.
_THREADS = 64
#: Requests that wait for a thread at most; the core model has a queue of its own.
_WAITING = 4096
#: How often clients that left are looked for: as often as the core model does.
_WATCH_S = 0.1


class CoreError(Exception):
    """The core model's refusal, which is this model's."""

    def __init__(self, found: Any) -> None:
        super().__init__(found.message())
        self.error = found


class Sequence_:
    """One sequence's text."""

    def __init__(self, text: Text, skip: bool, stops: list[str], before: str) -> None:
        self._detokenizer = Detokenizer(text.tokenizer, skip)
        self._matcher = StopMatcher(stops)
        self._stops = bool(stops)
        #: Ids so far, without those behind a stop word.
        self.taken = 0
        self.all = before

    @property
    def stopped(self) -> bool:
        return self._matcher.hit is not None

    def push(self, ids: list[int]) -> str:
        """The text that these ids make certain."""
        if not self._stops:
            self.taken += len(ids)
            return self._matcher.push(self._detokenizer.push(ids))
        # One at a time: which of them completes a stop word counts.
        certain = ""
        for id in ids:
            if self.stopped:
                break
            certain += self._matcher.push(self._detokenizer.push([id]))
            self.taken += 1
        return certain

    def finish(self) -> str:
        """The rest."""
        return self._matcher.push(self._detokenizer.finish()) + self._matcher.finish()


class TritonPythonModel:
    """Triton's name for a model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._config = Config(args)
        self._config.refuse("tensorrt_llm_draft_model_name", "multimodal_encoders_name")
        self._text = Text(self._config.text("tokenizer_dir"))
        self._core = self._config.text("tensorrt_llm_model_name", "tensorrt_llm")
        self._accumulate = self._config.flag("accumulate_tokens", False)
        self._exclude_input = self._config.flag("exclude_input_in_output", False)
        self._skip = self._config.flag("skip_special_tokens", True)
        self._outputs = [name for name in self._config.outputs if name != "text_output"]
        self._pool = ThreadPoolExecutor(_THREADS, "bls")
        self._places = threading.BoundedSemaphore(_THREADS + _WAITING)
        #: What runs, by the id that the core model knows it by.
        self._replies: dict[str, Reply] = {}
        #: Those of them whose client left.
        self._left: set[str] = set()
        self._changed = threading.Condition()
        self._stopping = False
        self._watcher = threading.Thread(target=self._watch, name="bls-watch", daemon=True)
        self._watcher.start()

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        if self._config.decoupled:
            for request in requests:
                reply = Reply(request, True)
                if self._places.acquire(blocking=False):
                    self._pool.submit(self._serve, request, reply)
                else:
                    refusal = BadRequest(f"{_WAITING} requests wait already; try again later", 14)
                    reply.end(self._failed(refusal))
            return None
        return [self._single(request) for request in requests]

    def finalize(self) -> None:
        self._pool.shutdown()
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._watcher.join()

    def _serve(self, request: Any, reply: Reply) -> None:
        core_id, request_id = str(uuid.uuid4()), request.request_id()
        with self._changed:
            self._replies[core_id] = reply
            self._changed.notify()
        try:
            for response in self._answers(request, core_id):
                reply.send(response)
            reply.end()
        except Exception as problem:
            reply.end(self._failed(problem))
        with self._changed:
            self._replies.pop(core_id)
            left = core_id in self._left
            self._left.discard(core_id)
        self._places.release()
        if left:
            pb_utils.Logger.log_info(f"request `{request_id}` is cancelled: its client left")

    def _single(self, request: Any) -> Any:
        try:
            answers = list(self._answers(request, str(uuid.uuid4())))
            if len(answers) != 1:
                raise BadRequest("several responses need `decoupled_mode` to be true")
        except Exception as problem:
            return self._failed(problem)
        return answers[0]

    @staticmethod
    def _failed(problem: Exception) -> Any:
        if isinstance(problem, CoreError):
            return pb_utils.InferenceResponse(error=problem.error)
        if isinstance(problem, ValueError):
            status = problem.status if isinstance(problem, BadRequest) else 3
            return pb_utils.InferenceResponse(error=error(str(problem), status))
        pb_utils.Logger.log_error(f"a request failed: {problem!r}")
        return pb_utils.InferenceResponse(error=error(str(problem), 13))

    def _watch(self) -> None:
        """Ends in the core model what nobody waits for any more."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._replies or self._stopping)
                self._changed.wait_for(lambda: self._stopping, _WATCH_S)
                if self._stopping:
                    return
                replies = list(self._replies.items())
            for core_id, reply in replies:
                if core_id in self._left or reply.is_abandoned():
                    with self._changed:
                        if core_id in self._replies:
                            self._left.add(core_id)
                    # Until it has ended: the core model may not have it yet.
                    self._stop(core_id)

    def _answers(self, request: Any, core_id: str) -> Iterable[Any]:
        inputs = Inputs(request, self._config.input_names)
        for name in _ABSENT:
            if name in inputs:
                raise BadRequest(f"`{name}` is not supported by this model; send the request without it")
        stream = bool(inputs.scalar("stream", default=False))
        rows = len(inputs.required("text_input"))
        inputs.required("max_tokens")
        exclude = stream or bool(inputs.scalar("exclude_input_in_output", default=self._exclude_input))
        before = ["" if exclude else "".join(inputs.texts("text_input", row)) for row in range(rows)]
        stops = [inputs.texts("stop_words", row) for row in range(rows)]
        wanted = frozenset(request.requested_output_names())
        sequences: dict[tuple[int, int, int], Sequence_] = {}
        stopped = False
        for response in self._ask(inputs, rows, wanted, core_id, request.parameters()):
            if response.has_error():
                raise CoreError(response.error())
            outputs = {each.name(): each.as_numpy() for each in response.output_tensors()}
            if "output_ids" not in outputs:
                continue
            batch_index = int(outputs.get("batch_index", np.zeros(1)).reshape(-1)[0])
            sequence_index = int(outputs.get("sequence_index", np.zeros(1)).reshape(-1)[0])
            shown, fresh, taken = [], False, 0
            for beam, ids in enumerate(outputs["output_ids"][0]):
                key = (batch_index, sequence_index, beam)
                if key not in sequences:
                    sequences[key] = Sequence_(
                        self._text, self._skip, stops[batch_index], before[batch_index]
                    )
                sequence = sequences[key]
                fresh |= not sequence.stopped
                length = int(outputs["sequence_length"][0][beam])
                taken -= sequence.taken
                new = sequence.push([id for id in ids[:length].tolist() if id >= 0])
                taken += sequence.taken
                if not stream:
                    new += sequence.finish()
                sequence.all += new
                shown.append(sequence.all if self._accumulate or not stream else new)
            if "num_output_tokens" in outputs:
                outputs["num_output_tokens"] = np.full((1, 1), taken, np.int32)
            if fresh:
                yield self._response(shown, outputs, wanted)
            expected = rows * int(inputs.scalar("num_return_sequences", default=1))
            ended = len(sequences) >= expected and all(one.stopped for one in sequences.values())
            if stream and ended and not stopped:
                stopped = True
                self._stop(core_id)
        if stream:
            yield from self._rest(sequences, wanted)

    def _rest(
        self, sequences: dict[tuple[int, int, int], Sequence_], wanted: frozenset[str]
    ) -> Iterable[Any]:
        """What detokenizers and stop words held back; only a stream's end shows that it is text."""
        for (batch_index, sequence_index, _), sequence in sequences.items():
            rest = sequence.finish()
            if rest:
                sequence.all += rest
                indices = {
                    "batch_index": np.full((1, 1), batch_index, np.int32),
                    "sequence_index": np.full((1, 1), sequence_index, np.int32),
                }
                yield self._response([sequence.all if self._accumulate else rest], indices, wanted)

    def _response(self, shown: list[str], outputs: Mapping[str, Any], wanted: frozenset[str]) -> Any:
        made = [texts("text_output", [shown])] if "text_output" in wanted else []
        for name in self._outputs:
            if name in wanted and name in outputs:
                made.append(pb_utils.Tensor(name, outputs[name]))
        return pb_utils.InferenceResponse(made)

    def _ask(self, inputs: Inputs, rows: int, wanted: frozenset[str], core_id: str, parameters: str) -> Any:
        text = self._text
        prompts = [text.tokenizer.encode("".join(inputs.texts("text_input", row))) for row in range(rows)]
        made = [
            tensor("input_ids", pad(prompts, max(text.pad_id, 0)), np.int32),
            tensor("input_lengths", [[len(ids)] for ids in prompts], np.int32),
            # The prompt's text is put before the answer here, so that stop words never match in it.
            tensor("exclude_input_in_output", np.ones((rows, 1)), np.bool_),
        ]
        if "end_id" in inputs:
            made.append(tensor("end_id", inputs.arrays["end_id"], np.int32))
        elif text.ends:
            made.append(tensor("end_id", np.full((rows, 1), text.end_id), np.int32))
            if text.ends[1:]:
                others = [[[end] for end in text.ends[1:]]] * rows
                made.append(tensor("stop_words_list", pack_words(others), np.int32))
        pads = inputs.arrays.get("pad_id", np.full((rows, 1), text.pad_id))
        made.append(tensor("pad_id", pads, np.int32))
        if "bad_words" in inputs:
            bad = [text.words(inputs.texts("bad_words", row)) for row in range(rows)]
            made.append(tensor("bad_words_list", pack_words(bad), np.int32))
        if "embedding_bias_words" in inputs:
            bias = []
            for row in range(rows):
                weights = inputs.row("embedding_bias_weights", row)
                values = [] if weights is None else weights.reshape(-1).tolist()
                bias.append(text.bias(inputs.texts("embedding_bias_words", row), values))
            made.append(tensor("embedding_bias", bias, np.float32))
        for ours, theirs in {"max_tokens": "request_output_len", **FORWARDED}.items():
            if ours in inputs:
                value = inputs.arrays[ours]
                made.append(pb_utils.Tensor(theirs, value if value.ndim > 1 else value.reshape(rows, 1)))
        outputs = {"output_ids", "sequence_length", "batch_index", "sequence_index"}
        names = [*outputs, *(wanted & set(self._outputs) - outputs)]
        asked = pb_utils.InferenceRequest(
            request_id=core_id,
            model_name=self._core,
            requested_output_names=names,
            inputs=made,
            parameters=json.loads(parameters or "{}"),
        )
        if self._config.decoupled:
            return asked.exec(decoupled=True)
        return [asked.exec()]

    def _stop(self, core_id: str) -> None:
        """Ends the core model's request, if it has it; its answer comes through the responses as usual."""
        dummies = [
            tensor(name, [[0]], np.int32) for name in ("input_ids", "input_lengths", "request_output_len")
        ]
        asked = pb_utils.InferenceRequest(
            request_id=core_id,
            model_name=self._core,
            requested_output_names=["output_ids"],
            inputs=[*dummies, tensor("stop", [[True]], np.bool_)],
        )
        try:
            for _ in asked.exec(decoupled=True):
                pass
        except Exception as problem:
            pb_utils.Logger.log_error(f"a request could not be stopped: {problem!r}")
