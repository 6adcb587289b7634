"""How many threads matrix products use. Owns the decision and its timing; must not import NumPy itself.

OpenBLAS reads its thread count once, when NumPy is first imported, and splits even small products over all
cores. For a small model that costs several times what it gains (64 streams of a 3-million-parameter model
on two busy cores: 430 tokens a second with two threads, 2,650 with one).
"""

from __future__ import annotations

import os
import sys

#: Models narrower than this are faster on one thread.
_WIDE_ENOUGH = 1024

_VARIABLE = "OPENBLAS_NUM_THREADS"


def import_numpy_for(hidden_size: int) -> None:
    """Imports NumPy with one thread for small models; a count that the user has set stays.

    Without effect when NumPy is already imported. The environment is as before afterwards, so that no
    child process inherits the choice.
    """
    if hidden_size >= _WIDE_ENOUGH or "numpy" in sys.modules or _VARIABLE in os.environ:
        return
    os.environ[_VARIABLE] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[_VARIABLE]
