"""A worker whose models write what their prompts dictate.

    python -m compare_text.dictated MODELS.json

A prompt dictates an answer in the form of `dictate`. The last one in it counts, so that every turn of a
conversation can have its answer. Owns the executor and the process that serves it; does not know what prompts
and answers mean. MODELS.json has the chat template of each model by its name; the tokenizer is the embedded
model's.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from compare_text.conversations import SPECIAL_TOKENS
from inflight import _native
from inflight.executors.base import (
    Executor,
    FinishReason,
    IterationStats,
    ModelInfo,
    Request,
    ResponseBatch,
)
from inflight.executors.columns import Columns
from inflight.launch.model import find_model

#: Longer than every template's prompt with the dictated answer in it.
MAX_SEQ_LEN = 1 << 17
#: The worker's own first request dictates nothing.
UNDICTATED = "Nothing was dictated."
_DICTATED = re.compile(r"@@((?:[0-9a-f]{2})*)@@")


def dictate(answer: str) -> str:
    """What a prompt holds for `answer` to follow. Hexadecimal: no template or tokenizer changes it."""
    return f"@@{answer.encode().hex()}@@"


class DictatedExecutor:
    """Implements `inflight.executors.base.Executor`: each sequence gains a token in each step."""

    def __init__(self, tokenizer: _native.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._changed = threading.Condition()
        #: Request id -> tokens to come; the end is near where there are none.
        self._rest: dict[int, list[int]] = {}
        self._closed = False

    def info(self) -> ModelInfo:
        return ModelInfo(
            executor="dictated",
            vocab_size=self._tokenizer.vocab_size,
            max_seq_len=MAX_SEQ_LEN,
            max_input_len=MAX_SEQ_LEN - 1,
            max_batch_size=64,
            max_num_tokens=MAX_SEQ_LEN,
            max_beam_width=1,
            tokens_per_block=32,
        )

    def enqueue(self, requests: Sequence[Request]) -> None:
        for request in requests:
            prompt = self._tokenizer.decode(request.input_token_ids, skip_special_tokens=False)
            found = _DICTATED.findall(prompt)
            text = bytes.fromhex(found[-1]).decode() if found else UNDICTATED
            with self._changed:
                self._rest[request.client_id] = self._tokenizer.encode(text, add_special_tokens=False)
                self._changed.notify_all()

    def cancel(self, client_ids: Sequence[int]) -> None:
        with self._changed:
            for client_id in client_ids:
                if client_id in self._rest:
                    self._rest[client_id] = []
            self._changed.notify_all()

    def await_responses(self, timeout_s: float) -> ResponseBatch:
        columns = Columns()
        with self._changed:
            self._changed.wait_for(lambda: self._rest or self._closed, timeout_s)
            for client_id, rest in list(self._rest.items()):
                if rest:
                    columns.add(client_id, [rest.pop(0)])
                else:
                    del self._rest[client_id]
                    columns.add(client_id, [], FinishReason.END_ID, final=True)
        return columns.pack()

    def stats(self) -> Sequence[IterationStats]:
        return ()

    def shutdown(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def main() -> int:
    templates: dict[str, str] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    tokenizer_json = find_model(None, None, weights=False, executor="simulated").assets()["tokenizer.json"]
    tokenizer = _native.Tokenizer({"tokenizer.json": tokenizer_json})
    # Templates write these, and their models' own files name them.
    named = json.dumps(SPECIAL_TOKENS).encode()
    files = {"tokenizer.json": tokenizer_json, "tokenizer_config.json": named}
    models: list[tuple[str, Executor, dict[str, bytes]]] = [
        (
            name,
            DictatedExecutor(tokenizer),
            {**files, "chat_template.jinja": template.encode()},
        )
        for name, template in templates.items()
    ]
    (name, executor, assets), *others = models
    options = _native.WorkerOptions(served_model_name=name, assets=assets, grpc_port=0, metrics_port=0)
    return _native.serve_worker(executor, options, None, others)


if __name__ == "__main__":
    sys.exit(main())
