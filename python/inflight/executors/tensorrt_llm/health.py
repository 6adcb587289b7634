"""Why an executor is broken, in one line. Owns the judgment, not the consequence: the worker ends with
its own exit code on any exception, and its watchdog (`--progress-timeout-s`) on silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Asking costs a call into the engine; a dead one need not be known sooner.
CHECK_EVERY_S = 1.0


#: In the text of one request's error: what no request of the same process outlives. Both runtimes answer all
#: that run with such an error and continue, so that every later request would fail too.
_BROKEN = (
    "cuda error",
    "cuda runtime error",
    "cuda driver error",
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "nccl error",
)
#: The memory of one iteration is free again in the next.
_PASSING = "out of memory"


class EngineFailed(RuntimeError):
    """TensorRT-LLM cannot continue; the worker must end and be restarted."""


def describe(error: BaseException) -> str:
    """An exception in one line: its kind and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__


def fatal(doing: str, error: BaseException) -> EngineFailed:
    """The failure that an exception of TensorRT-LLM outside of one request means."""
    return EngineFailed(f"TensorRT-LLM failed while {doing}: {describe(error)}")


def check_error(text: str) -> None:
    """Raises `EngineFailed` where a request's error says that the engine is broken, not the request."""
    lowered = text.lower()
    if _PASSING not in lowered and any(words in lowered for words in _BROKEN):
        lines = text.strip().splitlines()
        raise EngineFailed(f"TensorRT-LLM failed while answering requests: {lines[0].strip()}")


class Liveness:
    """Asks now and then whether the engine still takes requests, while it gives no responses."""

    def __init__(self, is_alive: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_alive = is_alive
        self._clock = clock
        self._asked = clock()

    def check(self) -> None:
        """Raises `EngineFailed` where the engine is gone; costs nothing more often than once a second."""
        now = self._clock()
        if now - self._asked < CHECK_EVERY_S:
            return
        self._asked = now
        try:
            alive = self._is_alive()
        except Exception as error:
            raise fatal("being asked whether it is alive", error) from error
        if not alive:
            raise EngineFailed(
                "TensorRT-LLM no longer takes requests: its engine or one of its ranks has died; "
                "its own log says why"
            )
