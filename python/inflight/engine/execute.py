"""Executes one step: a command, calls of TensorRT-LLM in a child, or a function of this package.

Owns child processes and step logs. No shell: an argv is passed as it is. Children are in a group of their
own and end with this process's step.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TextIO

from inflight.engine.installed import beside_python
from inflight.engine.manifest import LOGS
from inflight.engine.steps import ApiCalls, Command, Own, Step
from inflight.errors import InflightError, UserMistake

#: A child that was asked to end gets this long before it is killed.
STOP_S = 10.0
#: Lines of a failed step that a person is shown.
TAIL = 3


def log_of(staging: Path, number: int, step: Step) -> Path:
    """Where a step's log lies."""
    return staging / LOGS / f"{number:02}-{step.name}.log"


def execute(step: Step, staging: Path, number: int, output: Callable[[str], None]) -> None:
    """Runs `step`; every line it writes goes to its log and to `output`. Raises where it fails."""
    log_path = log_of(staging, number, step)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("w", encoding="utf-8") as log:
        for line in step.action.lines():
            log.write(f"$ {line}\n")
        log.flush()
        action = step.action
        if isinstance(action, Own):
            module, _, function = action.function.rpartition(".")
            getattr(import_module(f"inflight.engine.{module}"), function)(**action.kwargs)
        elif isinstance(action, ApiCalls):
            written = staging / f"{step.name}.json"
            written.write_text(json.dumps(action.data(), indent=2), encoding="utf-8")
            _run(
                (sys.executable, "-m", "inflight.engine.api_call", str(written)), step, log, log_path, output
            )
        elif isinstance(action, Command):
            program, *arguments = action.argv
            _run((beside_python(program), *arguments), step, log, log_path, output)


def _run(
    argv: tuple[str, ...], step: Step, log: TextIO, log_path: Path, output: Callable[[str], None]
) -> None:
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Undecodable bytes of a foreign program must not end the build.
            encoding="utf-8",
            errors="replace",
            # Its own group: what it started ends with it.
            start_new_session=True,
        )
    except OSError as error:
        raise UserMistake(
            f"the step `{step.name}` cannot start `{argv[0]}`: {error.strerror}",
            "check that TensorRT-LLM is installed whole, in this environment",
        ) from error
    tail: deque[str] = deque(maxlen=TAIL)
    try:
        assert child.stdout is not None
        for line in child.stdout:
            log.write(line)
            log.flush()
            if text := line.strip():
                tail.append(text)
                output(text)
        code = child.wait()
    finally:
        _end(child)
    if code != 0:
        said = f": {' | '.join(tail)}" if tail else ""
        ended = f"was killed by signal {-code}" if code < 0 else f"failed with exit status {code}"
        raise InflightError(
            f"the step `{step.name}` {ended}{said}",
            f"see `{log_path}`; the same command goes on at this step",
        )


def _end(child: subprocess.Popen[str]) -> None:
    """Ends a child that is still there, and its group."""
    if child.stdout is not None:
        child.stdout.close()
    if child.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(STOP_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return
