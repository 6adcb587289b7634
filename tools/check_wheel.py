"""Installs the newest wheel of a directory into a separate environment, away from the clone, asks for its
version and serves one completion with the embedded model. Usage: check_wheel.py DIRECTORY.

Owns no expectation about the answer's words: that is the tests' affair. This is about what the wheel holds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

#: Seconds for the server to say where it listens: it loads the embedded model.
START_TIMEOUT_S = 60
#: Seconds for one short completion on a CPU.
ANSWER_TIMEOUT_S = 60


def newest_wheel(directory: Path) -> Path:
    """Returns the wheel written last; ends the program if there is none."""
    wheels = sorted(directory.glob("*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    if not wheels:
        sys.exit(f"error: no wheel in `{directory}`; run `make wheel`")
    return wheels[-1]


def install(wheel: Path, environment: Path) -> Path:
    """Makes a virtual environment with nothing but the wheel and its dependencies; returns its `inflight`."""
    venv.create(environment, with_pip=True)
    subprocess.run(
        [environment / "bin" / "python", "-m", "pip", "install", "--quiet", wheel.resolve()], check=True
    )
    return environment / "bin" / "inflight"


def serve_one(command: Path, directory: Path) -> str:
    """Starts `inflight serve` on free ports, asks for one completion and returns its text."""
    log = directory / "serve.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [command, "serve", "--port=0", "--grpc-port=0", "--metrics-port=0"],
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        request = urllib.request.Request(
            f"{wait_for_address(server, log)}/v1/completions",
            json.dumps({"model": "inflight-demo", "prompt": "Inflight is", "max_tokens": 8}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as response:
            answer = json.load(response)
    finally:
        server.terminate()
        server.wait()
    text: str = answer["choices"][0]["text"]
    if not text:
        sys.exit(f"error: the completion is empty: {answer}")
    return text


def wait_for_address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Returns the URL that the server prints once it is ready; ends the program if it never does."""
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until and server.poll() is None:
        # The example to paste comes when the server is ready.
        found = re.search(r"curl (http://\S+?)/v1/", log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.1)
    sys.exit(f"error: the server did not become ready:\n{log.read_text(errors='replace')}")


def main() -> None:
    """Checks the newest wheel of the directory that the command line names."""
    wheel = newest_wheel(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="inflight-wheel-") as name:
        directory = Path(name)
        command = install(wheel, directory / "environment")
        version = subprocess.run([command, "--version"], check=True, capture_output=True, text=True)
        text = serve_one(command, directory)
    print(f"{wheel.name}: {version.stdout.strip()} answers {text!r}")


if __name__ == "__main__":
    main()
