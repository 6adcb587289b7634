"""Requests that need work before the engine sees them: guides to compile, adapters to load, images to decode.

Owns one thread, the order of what waits for it, and who was cancelled meanwhile. Requests that need nothing
never come here, so a guide that takes a second delays only others that are prepared. Knows nothing of
engines.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inflight.executors.base import Request

from .core.adapters import Loaded
from .core.images import ImagePrompt
from .core.masks import Guide
from .core.refusal import Refused


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was made for a request."""

    guide: Guide | Refused | None
    adapter: Loaded | None
    #: The images of its prompt, and the request without their files.
    images: ImagePrompt | Refused | None = None
    request: Request | None = None


class Preparation:
    """Prepares one request after the other. Bounded by its caller: the worker limits open requests."""

    def __init__(
        self,
        prepare: Callable[[Request], Prepared],
        hand_over: Callable[[Request, float, Prepared | None], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._prepare, self._hand_over, self._fail = prepare, hand_over, fail
        self._changed = threading.Condition()
        #: Requests and when they arrived, on the caller's clock.
        self._waiting: deque[tuple[Request, float]] = deque()
        #: Client ids of requests that wait or are being prepared, and those of them that were cancelled.
        self._present: set[int] = set()
        self._cancelled: set[int] = set()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def put(self, requests: Sequence[Request], arrived_s: float) -> None:
        """Takes requests that arrived together."""
        if not requests:
            return
        with self._changed:
            self._waiting.extend((one, arrived_s) for one in requests)
            self._present.update(one.client_id for one in requests)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="reference-preparation", daemon=True)
                self._thread.start()
            self._changed.notify()

    def cancel(self, client_ids: Sequence[int]) -> list[int]:
        """Remembers which requests here are cancelled; returns the ids of those that are not here."""
        with self._changed:
            self._cancelled.update(one for one in client_ids if one in self._present)
            return [one for one in client_ids if one not in self._present]

    def leave(self, request: Request) -> bool:
        """Lets a request go to the engine. False: it was cancelled meanwhile."""
        with self._changed:
            self._present.discard(request.client_id)
            cancelled = request.client_id in self._cancelled
            self._cancelled.discard(request.client_id)
            return not cancelled

    def stop(self) -> None:
        """Hands over what waits without preparing it. Does not wait for what is being prepared."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def _run(self) -> None:
        try:
            while (one := self._next()) is not None:
                request, arrived_s = one
                self._hand_over(request, arrived_s, self._prepare_unless_cancelled(request))
        except BaseException as error:  # the worker must not wait for requests that nobody prepares
            self._fail(error)

    def _next(self) -> tuple[Request, float] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            return self._waiting.popleft() if self._waiting else None

    def _prepare_unless_cancelled(self, request: Request) -> Prepared | None:
        with self._changed:
            skip = self._stopping or request.client_id in self._cancelled
        return None if skip else self._prepare(request)
