"""A TensorRT-LLM that is not one: what stands in for the package in tests of executors and of builds.

Classes are generated from the recorded signatures of 1.2.1 and raise on any name that is not recorded
(`classes`). `behavior` is what those for serving do over the double's `engine`, `builder` what those for
building do, `torch` as much of PyTorch as tensors need. `package` writes all of it where processes import it.
"""

from support.double.behavior import FAST_LOGITS, HOT
from support.double.classes import BINDINGS, RECORD, SYMBOLS, Double, build, installed
from support.double.engine import (
    CACHED,
    CRASH,
    DEATH,
    ENGINES,
    ERROR,
    FAULT,
    REFUSE,
    REQUESTS,
    SILENCE,
    SLOTS,
    VOCAB,
    WIDTH,
)

__all__ = [
    "BINDINGS",
    "CACHED",
    "CRASH",
    "DEATH",
    "ENGINES",
    "ERROR",
    "FAST_LOGITS",
    "FAULT",
    "HOT",
    "RECORD",
    "REFUSE",
    "REQUESTS",
    "SILENCE",
    "SLOTS",
    "SYMBOLS",
    "VOCAB",
    "WIDTH",
    "Double",
    "build",
    "installed",
]
