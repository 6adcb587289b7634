"""Executes one step: a command, calls of TensorRT-LLM in a child, or a function of this package.

Owns child processes and step logs. No shell: an argv is passed as it is. Children are in a separate
group, end with the step, and hold the build's lock, so that one that outlives a killed build keeps the next
one out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TextIO

from inflight.build.steps import LOGS, ApiCalls, Command, Own, Step
from inflight.errors import InflightError, UserMistake
from inflight.machine import beside_python

#: A child that was asked to end gets this long before it is killed.
STOP_S = 10.0
#: Lines of a failed step that a person is shown.
TAIL = 3


def log_of(staging: Path, number: int, step: Step) -> Path:
    """The path of a step's log."""
    return staging / LOGS / f"{number:02}-{step.name}.log"


class Children:
    """The child processes of a build that run now; steps may run in several threads."""

    def __init__(self, lock_descriptor: int) -> None:
        self.lock_descriptor = lock_descriptor
        self._running: set[subprocess.Popen[str]] = set()
        self._guard = threading.Lock()
        self._stopped = False

    def start(self, argv: tuple[str, ...]) -> subprocess.Popen[str]:
        """Starts `argv`. Raises `OSError` where it cannot, `InflightError` once stopped."""
        with self._guard:
            if self._stopped:
                raise InflightError("the build was stopped", "rerun the same command to resume")
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
                pass_fds=(self.lock_descriptor,),
            )
            self._running.add(child)
            return child

    def end(self, child: subprocess.Popen[str]) -> None:
        """Ends a child that is still there, and its group."""
        with self._guard:
            self._running.discard(child)
        if child.stdout is not None:
            child.stdout.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if child.poll() is not None:
                return
            _signal(child, number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_S)

    def stop(self) -> None:
        """Asks all of them to end, and starts no more; their steps fail and end them for certain."""
        with self._guard:
            self._stopped = True
            for child in self._running:
                _signal(child, signal.SIGTERM)


def _signal(child: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def execute(
    step: Step, staging: Path, number: int, children: Children, output: Callable[[str], None]
) -> None:
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
            try:
                getattr(import_module(f"inflight.build.{module}"), function)(**action.kwargs)
            except OSError as error:
                raise InflightError(
                    f"the step `{step.name}` failed: {error}",
                    "check space and permissions, then rerun the same command to resume at this step",
                ) from error
        elif isinstance(action, ApiCalls):
            written = staging / f"{step.name}.json"
            written.write_text(json.dumps(action.data(), indent=2), encoding="utf-8")
            argv = (sys.executable, "-m", "inflight.build.api_call", str(written))
            _run(argv, step, log, log_path, children, output)
        elif isinstance(action, Command):
            program, *arguments = action.argv
            _run((beside_python(program), *arguments), step, log, log_path, children, output)


def _run(
    argv: tuple[str, ...],
    step: Step,
    log: TextIO,
    log_path: Path,
    children: Children,
    output: Callable[[str], None],
) -> None:
    try:
        child = children.start(argv)
    except OSError as error:
        raise UserMistake(
            f"the step `{step.name}` cannot start `{argv[0]}`: {error.strerror}",
            "check that TensorRT-LLM is fully installed in this environment",
        ) from error
    tail: deque[str] = deque(maxlen=TAIL)
    try:
        for line in child.stdout or ():
            log.write(line)
            log.flush()
            if text := line.strip():
                tail.append(text)
                output(text)
        code = child.wait()
    finally:
        children.end(child)
    if code != 0:
        said = f": {' | '.join(tail)}" if tail else ""
        ended = f"was killed by signal {-code}" if code < 0 else f"failed with exit status {code}"
        raise InflightError(
            f"the step `{step.name}` {ended}{said}",
            f"see `{log_path}`; rerun the same command to resume at this step",
        )
