"""Runs the checks of an executor in separate processes, each in bounded time.

Owns the processes: one for each start of the executor, started again where a check broke it, so that one
failure does not end the rest. Does not know the checks.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.checklist.check import Check
from inflight.checklist.loads import Load, belongs
from inflight.checklist.outcome import AS_GIVEN, Outcome

#: How much longer than its limit a check gets before its process is ended.
GRACE_S = 15.0
#: How long a process gets to end the executor, and itself.
EXIT_S = 60.0
#: How often a start is repeated after checks that broke the executor.
MOST_RESTARTS = 3
NOT_LOADED = "the executor did not load"
_LOG_BYTES = 4096
_POLL_S = 0.2


@dataclass(frozen=True)
class Settings:
    """What is tried."""

    executor: str
    version: str
    model_dir: Path
    device: str
    vocab_size: int | None
    #: Where checks write, and the logs of the processes.
    folder: Path
    #: How long the executor may take to load.
    load_limit_s: float
    #: How long each check may take.
    check_limit_s: float


class Gone(Exception):
    """The process ended, or was ended because it took too long; the text says which."""


class Child:
    """The process of one start. Ended by `end`, at the latest."""

    def __init__(self, settings: Settings, load: Load, log: Path) -> None:
        self._log = log
        read_asked, self._asked = os.pipe()
        self._answers, write_answers = os.pipe()
        self._pending = b""
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "inflight.checklist.child", str(read_asked), str(write_answers)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(read_asked, write_answers),
                # The session by which whatever it starts is found.
                start_new_session=True,
            )
        os.close(read_asked)
        os.close(write_answers)
        self.ask(
            {
                "executor": settings.executor,
                "version": settings.version,
                "model_dir": str(settings.model_dir),
                "device": settings.device,
                "vocab_size": settings.vocab_size,
                "folder": str(settings.folder),
                "load": load.name,
                "options": dict(load.options),
            }
        )

    def ask(self, value: Any) -> None:
        """Sends a line; a process that is gone is noticed by `answer`."""
        with contextlib.suppress(OSError):
            os.write(self._asked, json.dumps(value).encode() + b"\n")

    def answer(self, limit_s: float) -> dict[str, Any]:
        """The next line. Errors: `Gone`."""
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], _POLL_S)
            if ready:
                data = os.read(self._answers, 65536)
                if data:
                    self._pending += data
                    continue
                raise Gone(self._how_it_ended())
            if self.process.poll() is not None:
                raise Gone(self._how_it_ended())
            if time.monotonic() > deadline:
                raise Gone(f"no answer within {limit_s:g} s")
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def last_lines(self) -> str:
        """The end of what the process wrote."""
        with self._log.open("rb") as file:
            file.seek(max(self._log.stat().st_size - _LOG_BYTES, 0))
            return file.read().decode("utf-8", "replace")

    def wait(self, limit_s: float) -> int | None:
        """The exit status; `None` where it does not end in time."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def members(self) -> list[int]:
        """Processes of its session, itself included."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with contextlib.suppress(OSError):
                # After the command in parentheses: state, parent, group, session.
                after = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(after[3]) == self.process.pid and after[0] != "Z":
                    found.append(int(entry.name))
        return found

    def memory_mib(self) -> int:
        """Resident memory of all of them."""
        pages = 0
        for process in self.members():
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20

    def end(self) -> None:
        """Ends what is left of it, and lets go of the pipes."""
        for process in self.members():
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()
        for descriptor in (self._asked, self._answers):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _how_it_ended(self) -> str:
        status = self.wait(_POLL_S * 5)
        return "the process closed its pipe" if status is None else f"the process ended with status {status}"


def run(
    settings: Settings, loads: Sequence[Load], left_out: Mapping[str, str], chosen: Sequence[Check]
) -> Iterator[Outcome]:
    """The outcome of each check, as it comes; those of starts and ends too.

    Where the executor does not load as it was given, nothing else is tried.
    """
    loads_as_given = True
    for load in loads:
        mine = [one for one in chosen if one.load not in left_out and belongs(one, loads) == load.name]
        if not loads_as_given:
            yield from (Outcome(one.name, "skipped", NOT_LOADED, load.name) for one in mine)
        elif mine:
            started = _Load(settings, load, mine)
            yield from started.run()
            loads_as_given = started.has_loaded or load.name != AS_GIVEN
    for one in chosen:
        if one.load in left_out:
            yield Outcome(one.name, "skipped", left_out[one.load], one.load)


class _Load:
    """The checks of one start."""

    def __init__(self, settings: Settings, load: Load, mine: Sequence[Check]) -> None:
        self._settings, self._load = settings, load
        self._waiting = list(mine)
        self._log = settings.folder / f"{load.name.replace(' ', '-')}.log"
        self.has_loaded = False

    def run(self) -> Iterator[Outcome]:
        for attempt in range(MOST_RESTARTS + 1):
            child = Child(self._settings, self._load, self._log)
            try:
                yield from self._use(child, is_first=attempt == 0)
            finally:
                child.end()
            if not self._waiting:
                return
        for one in self._waiting:
            yield self._outcome(one.name, "skipped", f"the executor broke {MOST_RESTARTS + 1} times before")

    def _use(self, child: Child, *, is_first: bool) -> Iterator[Outcome]:
        """One life of the process: takes checks off `_waiting`, at least one."""
        loaded = self._start(child, is_first=is_first)
        yield from loaded
        if loaded and loaded[-1].state in ("failed", "skipped"):
            yield from (self._outcome(one.name, "skipped", NOT_LOADED) for one in self._waiting)
            self._waiting = []
            return
        self.has_loaded = True
        while self._waiting:
            one, limit_s = self._waiting.pop(0), self._settings.check_limit_s
            child.ask(one.name)
            began = time.monotonic()
            try:
                answer = child.answer(limit_s + min(GRACE_S, limit_s))
            except Gone as gone:
                seconds = round(time.monotonic() - began, 2)
                yield self._outcome(one.name, "failed", str(gone), seconds=seconds, trace=child.last_lines())
                return
            yield Outcome(**answer["outcome"])
            if answer["broken"]:
                return
        yield self._shut_down(child)

    def _start(self, child: Child, *, is_first: bool) -> list[Outcome]:
        """The outcome of loading; none where it loads again as before."""
        began = time.monotonic()

        def outcome(state: Any, reason: str, **more: Any) -> list[Outcome]:
            return [self._outcome("load", state, reason, seconds=round(time.monotonic() - began, 2), **more)]

        try:
            answer = child.answer(self._settings.load_limit_s)
        except Gone as gone:
            return outcome("failed", str(gone), trace=child.last_lines())
        if "refused" in answer:
            hint = f"; {answer['remedy']}" if answer["remedy"] else ""
            # What was given must load; of what was added here, an executor may refuse some.
            state = "failed" if self._load.name == AS_GIVEN else "skipped"
            return outcome(state, f"{answer['refused']}{hint}")
        if "failed" in answer:
            return outcome("failed", answer["failed"], trace=answer["trace"] + child.last_lines())
        if not is_first:
            return []
        return outcome("held", "", facts={"memory_mib": child.memory_mib(), **answer["info"]})

    def _shut_down(self, child: Child) -> Outcome:
        """Ends the executor and its process, as a worker does."""
        began = time.monotonic()
        child.ask(None)
        memory = child.memory_mib()

        def outcome(state: Any, reason: str = "", trace: str = "") -> Outcome:
            seconds = round(time.monotonic() - began, 2)
            facts = {"memory_before_mib": memory}
            return self._outcome("shutdown", state, reason, seconds=seconds, facts=facts, trace=trace)

        try:
            answer = child.answer(EXIT_S)
        except Gone as gone:
            return outcome("failed", str(gone), child.last_lines())
        if "failed" in answer:
            return outcome("failed", answer["failed"], answer["trace"])
        status = child.wait(EXIT_S)
        if status != 0:
            how = f"did not end within {EXIT_S:g} s" if status is None else f"ended with status {status}"
            return outcome("failed", f"the process {how}", child.last_lines())
        left = child.members()
        if left:
            return outcome("failed", f"{len(left)} processes that it started are still there")
        return outcome("held")

    def _outcome(self, check: str, state: Any, reason: str, **more: Any) -> Outcome:
        return Outcome(check, state, reason, self._load.name, **more)
