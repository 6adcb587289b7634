#!/usr/bin/env python3
"""Runs a command with servers for the tests of the stores: `tools/with_stores.py cargo test …`.

The servers are a PostgreSQL, if it is installed, and an object store; both are empty, and end with the
command. Tests find them by the variables `INFLIGHT_TEST_POSTGRES` and `INFLIGHT_TEST_S3`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.object_store import BUCKET, object_store
from support.postgres import PASSWORD, binaries, postgres


def main(command: list[str]) -> int:
    """Runs the command; its exit status."""
    with ExitStack() as servers:
        environment = servers.enter_context(object_store()).environment()
        environment["INFLIGHT_TEST_S3"] = f"s3://{BUCKET}"
        if binaries() is not None:
            environment["INFLIGHT_TEST_POSTGRES"] = servers.enter_context(postgres()).url
            environment["PGPASSWORD"] = PASSWORD
        return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
