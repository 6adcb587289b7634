#!/usr/bin/env python3
"""Runs the pieces where threads meet under Miri, which reports undefined behavior and races of data.

    tools/sanitize.py [CRATE ...]

Needs nightly Rust with the components `miri` and `rust-src`. Miri runs neither sockets nor processes, so only
some tests are run. docs/RELIABILITY.md lists what was found.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: The tests of each crate that run, by the beginnings of their names.
TESTS = {
    "upstream": ["inbox::", "handles::", "request_queue::", "mailbox::"],
    "worker": ["engine::queue::", "engine::wake::", "outbox::"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("crates", nargs="*", metavar="CRATE", help=f"of {', '.join(TESTS)}; all by default")
    options = parser.parse_args()
    if unknown := [crate for crate in options.crates if crate not in TESTS]:
        sys.exit(f"error: no tests of `{unknown[0]}` are run\nhint: choose from {', '.join(TESTS)}")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "sanitize-miri"
    # The clock and random numbers are the machine's; no test compares anything with them.
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(target),
        "CARGO_INCREMENTAL": "0",
        "MIRIFLAGS": "-Zmiri-disable-isolation",
    }
    failed = []
    for crate in options.crates or TESTS:
        words = ["cargo", "+nightly", "miri", "test", "--locked", "--quiet"]
        words += ["--package", f"inflight-{crate}", "--lib", "--", *TESTS[crate]]
        print("+", " ".join(words), flush=True)
        if subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode:
            failed.append(crate)
    if failed:
        sys.exit(f"error: Miri reports faults in {', '.join(failed)}, or their tests failed")


if __name__ == "__main__":
    main()
