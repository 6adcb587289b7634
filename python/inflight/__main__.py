"""The entry point of `inflight` and `python -m inflight`. Safe to import: only `main` does anything."""

from __future__ import annotations

import os


def main() -> None:
    """Runs the command line; ends the process with the command's exit code."""
    if "INFLIGHT_PARENT_PID" in os.environ:
        from inflight.launch.process import end_with_parent

        end_with_parent()
    from inflight.cli.app import inflight

    inflight(prog_name="inflight")


if __name__ == "__main__":
    main()
