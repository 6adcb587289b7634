"""What Python does for itself while streams wait, kept short.

Owns two settings of the process. Knows nothing of who waits.
"""

from __future__ import annotations

import gc
import sys

#: How long a thread that needs the interpreter waits before another one must let go of it. Python's 5 ms are
#: several iterations of a small model.
_SWITCH_S = 0.0005


def settle() -> None:
    """Keeps the collector from what a loaded model and its libraries consist of: to look through all of it
    takes 0.1 s, every few thousand requests."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)


def unsettle() -> None:
    """Leaves what was loaded to the collector again."""
    gc.unfreeze()
