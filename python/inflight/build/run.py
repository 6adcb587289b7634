"""Executes a plan: steps in order, logs to files, resumed where it stopped, whole or not at all.

Owns the staging directory next to the output: its lock, the record of steps done, the logs, the converted
checkpoint and the result that one rename publishes. Decides nothing about what the steps are.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from inflight.build.execute import Children, execute, log_of
from inflight.build.record import describe_result
from inflight.build.steps import LOGS, BuildPlan, Step
from inflight.errors import InflightError, UserMistake
from inflight.model import manifest
from inflight.model.files import write_json

STATE = "state.json"


class Report(Protocol):
    """Receives the progress of a build. Called from several threads when steps overlap."""

    def started(self, step: Step, number: int, total: int) -> None: ...
    def output(self, step: Step, line: str) -> None: ...
    def finished(self, step: Step, seconds: float) -> None: ...
    def skipped(self, step: Step, number: int, total: int) -> None: ...


def run_plan(
    plan: BuildPlan,
    inputs: Mapping[str, Any],
    version: str,
    report: Report,
    *,
    workers: int = 1,
    force: bool = False,
) -> dict[str, Any]:
    """Runs the plan and returns the manifest of what its output now contains.

    Raises `UserMistake` where the output or another build is in the way, `InflightError` where a step
    fails; the same call then resumes at that step.
    """
    output = Path(plan.layout.output)
    _require_replaceable(output, force=force)
    staging = Path(plan.layout.staging)
    try:
        staging.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserMistake(
            f"`{staging}` cannot be written: {error.strerror}", "choose another `--output`"
        ) from error
    with _locked(staging, output) as lock_descriptor:
        source = {
            "source": inputs["source"]["hash"],
            "versions": inputs["versions"],
            "named_files": inputs.get("named_files", {}),
        }
        children = Children(lock_descriptor)
        try:
            _run_steps(plan, staging, source, report, workers, children)
        except BaseException:
            children.stop()
            raise
        result = Path(plan.layout.result)
        _require_expected(plan, result)
        logs = staging / LOGS
        if logs.is_dir():
            shutil.copytree(logs, result / LOGS, dirs_exist_ok=True)
        described = describe_result(inputs, result, version)
        write_json(result / manifest.NAME, described)
        _publish(result, output, staging)
        shutil.rmtree(staging, ignore_errors=True)
    return described


def _require_replaceable(output: Path, *, force: bool) -> None:
    if not output.exists():
        return
    if not output.is_dir():
        raise UserMistake(f"`--output {output}` is a file", "choose a directory that does not exist")
    if not any(output.iterdir()):
        return
    if not (output / manifest.NAME).is_file():
        raise UserMistake(
            f"`--output {output}` exists and was not created by Inflight",
            "choose another directory, or remove it",
        )
    if not force:
        raise UserMistake(
            f"`--output {output}` contains a build of other inputs, or an incomplete one",
            "replace it with `--force`, or choose another directory",
        )


@contextmanager
def _locked(staging: Path, output: Path) -> Iterator[int]:
    """Holds the staging directory by a descriptor; the system lets go of it when its last holder ends."""
    descriptor = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserMistake(
                f"`{output}` is being built by another process", "wait until it finishes"
            ) from None
        except OSError as error:
            raise UserMistake(
                f"`{staging}` cannot be locked: {error.strerror}",
                "choose an `--output` on a local file system",
            ) from error
        yield descriptor
    finally:
        os.close(descriptor)


class _Record:
    """Which steps are done, by what they depended on. A step's key holds the keys of all stages before it."""

    def __init__(self, staging: Path) -> None:
        self._path = staging / STATE
        try:
            done = json.loads(self._path.read_text(encoding="utf-8"))["done"]
            self._done = {str(name): str(key) for name, key in done.items()}
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            self._done = {}

    def is_done(self, step: Step, key: str) -> bool:
        return self._done.get(step.name) == key and all(Path(path).exists() for path in step.outputs)

    def add(self, step: Step, key: str) -> None:
        self._done[step.name] = key
        # Replaced whole, so that a kill in the middle leaves the former one.
        fresh = self._path.with_suffix(".new")
        write_json(fresh, {"done": self._done})
        fresh.replace(self._path)


def _run_steps(
    plan: BuildPlan,
    staging: Path,
    source: Mapping[str, Any],
    report: Report,
    workers: int,
    children: Children,
) -> None:
    record = _Record(staging)
    numbers = {step.name: number for number, step in enumerate(plan.steps, 1)}
    total = len(plan.steps)
    chain = json.dumps(source, sort_keys=True)
    kept: list[str] = []
    cleared = False
    for _, group in groupby(plan.steps, key=lambda step: step.stage or step.name):
        stage = list(group)
        keys = {step.name: _digest(chain, step.key()) for step in stage}
        todo = []
        for step in stage:
            if not cleared and record.is_done(step, keys[step.name]):
                report.skipped(step, numbers[step.name], total)
                kept += step.outputs
            else:
                todo.append(step)
        if todo and not cleared:
            _clear(plan, kept)
            cleared = True

        def run(step: Step) -> None:
            report.started(step, numbers[step.name], total)
            began = time.monotonic()
            number = numbers[step.name]
            execute(step, staging, number, children, lambda line: report.output(step, line))
            missing = [path for path in step.outputs if not Path(path).exists()]
            if missing:
                raise InflightError(
                    f"the step `{step.name}` succeeded but did not write `{missing[0]}`",
                    f"see `{log_of(staging, numbers[step.name], step)}`",
                )
            report.finished(step, time.monotonic() - began)

        for step in _overlapping(todo, run, workers, children):
            record.add(step, keys[step.name])
        chain = _digest(chain, *sorted(keys.values()))


def _overlapping(
    steps: list[Step], run: Callable[[Step], None], workers: int, children: Children
) -> Iterator[Step]:
    """Runs `steps`, `workers` at once; yields each that ended well, then raises the first failure."""
    if workers == 1 or len(steps) < 2:
        for step in steps:
            run(step)
            yield step
        return
    failure: BaseException | None = None
    with ThreadPoolExecutor(max_workers=workers) as pool:
        futures = [(step, pool.submit(run, step)) for step in steps]
        for step, future in futures:
            try:
                future.result()
            except CancelledError:
                continue
            except BaseException as error:
                failure = failure or error
                for _, other in futures:
                    other.cancel()
                if not isinstance(error, Exception):
                    # Ctrl-C: those that run would keep the pool, and with it this process, waiting.
                    children.stop()
                    break
                continue
            yield step
    if failure is not None:
        raise failure


def _clear(plan: BuildPlan, kept: list[str]) -> None:
    """Removes what earlier runs left and no step that is kept has made."""
    for directory in (plan.layout.checkpoint, plan.layout.result):
        if not any(path.startswith(f"{directory}/") for path in kept):
            shutil.rmtree(directory, ignore_errors=True)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _require_expected(plan: BuildPlan, result: Path) -> None:
    for name in plan.expected:
        path = result / name
        if not path.is_file() or not path.stat().st_size:
            raise InflightError(
                f"the build finished, but `{name}` is missing or empty",
                f"see the logs in `{plan.layout.staging}`",
            )


def _publish(result: Path, output: Path, staging: Path) -> None:
    """One rename makes it visible; what was there is moved away first, and back if that rename fails."""
    replaced = staging / "replaced"
    # A build that was killed between the two renames leaves one.
    shutil.rmtree(replaced, ignore_errors=True)
    had = output.exists() and any(output.iterdir())
    try:
        if had:
            output.rename(replaced)
        result.rename(output)
    except OSError as error:
        if replaced.exists() and not output.exists():
            with suppress(OSError):
                replaced.rename(output)
        raise InflightError(
            f"`{output}` cannot be created: {error.strerror}",
            "fix this, then rerun the same command to resume",
        ) from error
