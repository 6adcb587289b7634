"""Becomes another program that ends with the supervisor: `python -m inflight.launch.guard mpirun …`.

Linux keeps the wish for a signal at the parent's death across exec, so a program that knows nothing of it
is bound as well. Owns that, and the message where the program is missing.
"""

from __future__ import annotations

import os
import sys

from inflight.errors import UserMistake
from inflight.launch.process import PARENT_VARIABLE, die_with_parent


def main(command: list[str]) -> int:
    """Does not return where the program can be started."""
    if PARENT_VARIABLE in os.environ:
        die_with_parent()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(
            f"`{command[0]}` cannot be started: {error.strerror}; install it or correct PATH", file=sys.stderr
        )
    return UserMistake.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
