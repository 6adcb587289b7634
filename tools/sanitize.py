#!/usr/bin/env python3
"""Runs the pieces where threads meet under Miri or ThreadSanitizer, which report races of data and more.

    tools/sanitize.py [--with miri|thread] [CRATE ...]

Needs nightly Rust with the component `rust-src`, and for Miri `miri`. Miri runs no sockets and no processes,
so only some tests are run. ThreadSanitizer sees real threads, and needs everything compiled for it, the
standard library too: a quarter of an hour the first time. docs/RELIABILITY.md lists what was found.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOST = "x86_64-unknown-linux-gnu"

#: How each sanitizer is called, and what it is to know.
SANITIZERS = {
    # The clock and random numbers are the machine's; no test compares anything with them.
    "miri": (["miri", "test"], {"MIRIFLAGS": "-Zmiri-disable-isolation"}),
    "thread": (["test", "-Zbuild-std", "--target", HOST], {"RUSTFLAGS": "-Zsanitizer=thread"}),
}
#: What runs of each crate: for Miri, tests by the beginnings of their names.
TESTS = {
    "miri": {
        "upstream": ["--lib", "--", "inbox::", "handles::", "registry::", "request_queue::", "mailbox::"],
        "worker": ["--lib", "--", "engine::queue::", "engine::wake::", "outbox::"],
    },
    "thread": {
        "upstream": ["--lib"],
        "worker": ["--lib", "--test", "worker"],
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "crates", nargs="*", metavar="CRATE", help=f"of {', '.join(TESTS['miri'])}; all by default"
    )
    parser.add_argument(
        "--with", dest="sanitizer", choices=SANITIZERS, default="miri", help="Miri by default"
    )
    options = parser.parse_args()
    tests = TESTS[options.sanitizer]
    if unknown := [crate for crate in options.crates if crate not in tests]:
        sys.exit(f"error: no tests of `{unknown[0]}` are run\nhint: choose from {', '.join(tests)}")
    call, settings = SANITIZERS[options.sanitizer]
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / f"sanitize-{options.sanitizer}"
    environment = os.environ | {"CARGO_TARGET_DIR": str(target), "CARGO_INCREMENTAL": "0"} | settings
    failed = []
    for crate in options.crates or tests:
        words = ["cargo", "+nightly", *call, "--locked", "--quiet"]
        words += ["--package", f"inflight-{crate}", *tests[crate]]
        print("+", " ".join(words), flush=True)
        if subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode:
            failed.append(crate)
    if failed:
        sys.exit(f"error: faults are reported in {', '.join(failed)}, or their tests failed")


if __name__ == "__main__":
    main()
