"""Prompts that no worker of a scenario has seen, with the keys of their blocks as another worker has them."""

from __future__ import annotations

import itertools
from types import TracebackType

import grpc
import tritonclient.grpc as triton

from support.cache_messages import cache_messages
from support.processes import START_S
from support.servers import Start, start_worker
from support.spoiling_worker import WATCH
from support.triton import MODEL, inputs

#: So that two oracles of one process have no prompt in common.
_FIRST = itertools.count(1)
#: Below the vocabulary of the embedded model.
_BASE = 200


class Oracle:
    """A worker that nobody else asks; enter it to run."""

    def __init__(self, start: Start, options: tuple[str, ...], tokens: int) -> None:
        self._tokens = tokens
        self._seen: set[int] = set()
        self._worker = start_worker(start, *options)
        self._client = triton.InferenceServerClient(self._worker.address("grpc"))
        self._worker.wait_until("it is ready", self._is_ready, START_S)
        self._channel = grpc.insecure_channel(self._worker.address("grpc"))

    def __enter__(self) -> Oracle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        self._client.close()
        self._worker.stop()

    def prompt(self) -> tuple[list[int], list[int]]:
        """A prompt of whole blocks and one token, and the blocks' keys in order."""
        number = next(_FIRST)
        digits = [_BASE + number // 100 % 100, _BASE + number % 100]
        prompt = [*digits, *[_BASE] * (self._tokens - 1)]
        self._client.infer(MODEL, inputs(prompt, 1))
        held = self._held()
        new = {after: key for key, after in held.items() if key not in self._seen}
        self._seen |= held.keys()
        keys: list[int] = []
        while (key := new.get(keys[-1] if keys else 0)) is not None:
            keys.append(key)
        return prompt, keys

    def _held(self) -> dict[int, int]:
        """What it holds now: each key, and the one before it."""
        messages = cache_messages()
        watch = self._channel.unary_stream(WATCH)
        updates = watch(messages.WatchCacheRequest(model=MODEL).SerializeToString(), timeout=START_S)
        held: dict[int, int] = {}
        for response in updates:
            update = messages.CacheUpdate.FromString(response)
            held |= dict(zip(update.device.stored, update.device.after, strict=True))
            if update.snapshot_end:
                break
        updates.cancel()
        return held

    def _is_ready(self) -> bool:
        try:
            return bool(self._client.is_server_ready())
        except triton.InferenceServerException:
            return False
