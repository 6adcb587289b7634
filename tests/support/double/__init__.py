"""A TensorRT-LLM that is not one: what stands in for the package in tests of executors and of builds.

Classes are generated from the recorded signatures of a line of releases, 1.2.1 or 1.3, and raise on any name
that is not recorded (`classes`). `behavior` is what those for serving do over the double's `engine`, `newer`
what is other in 1.3, `builder` what those for building do, `torch` and `grammar` as much of PyTorch and
xgrammar as is needed. `package` writes all of it where processes import it.
"""

from support.double.behavior import FAST_LOGITS, HOT
from support.double.classes import (
    BINDINGS,
    LINES,
    RECORD,
    SYMBOLS,
    Double,
    build,
    installed,
    line,
    version,
)
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
    "LINES",
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
    "line",
    "version",
]
