"""The runtimes that a model is built for, and the executor that serves each."""

from __future__ import annotations

from collections.abc import Mapping

TENSORRT = "tensorrt"
PYTORCH = "pytorch"
REFERENCE = "reference"
RUNTIMES = (TENSORRT, PYTORCH, REFERENCE)

#: Runtime -> the `--executor` that serves it.
EXECUTORS: Mapping[str, str] = {TENSORRT: "tensorrt_llm", PYTORCH: "tensorrt_llm", REFERENCE: "reference"}
