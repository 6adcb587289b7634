"""Inflight serves large language models through TensorRT-LLM behind the OpenAI API.

The package is a control plane over a Rust core (`inflight._native`); importing it loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    # The version has one owner, the Rust workspace; asking it loads the extension, so only on demand.
    if name == "__version__":
        from inflight._native import __version__

        return __version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
