"""The refusal of one request: an exception inside the engine, an errored row outside."""

from __future__ import annotations

from inflight.executors.base import StatusCode


class Refused(Exception):
    """One request cannot be served; never leaves the engine, which answers with an errored row."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def invalid(text: str) -> Refused:
    """A value that no executor of this kind could serve."""
    return Refused(StatusCode.INVALID_ARGUMENT, text)
