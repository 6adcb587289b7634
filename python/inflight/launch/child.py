"""One child process: its state, and everything that is remembered of it.

Owns how a child goes from one state to the next. When it does, and what follows from its end, is the
supervisor's.

A child's states: waiting (for those before it) -> starting (runs, silent) -> probing (has announced its
address) -> ready -> gone. One that may be restarted and dies once all were ready goes from there through
resting (until its wait is over) back to starting.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from inflight.launch.plan import ProcessSpec, announced_address

NEVER = float("inf")
#: Characters of a dead child's last line that are repeated.
LAST_LINE_CHARACTERS = 200


class Process(Protocol):
    """A running process."""

    def terminate(self) -> None:
        """Asks it to end."""

    def finish(self) -> None:
        """Asks a gateway to end with its last request."""

    def kill(self) -> None:
        """Ends it."""


class State(Enum):
    """See the module's text."""

    WAITING = "waiting"
    STARTING = "starting"
    PROBING = "probing"
    READY = "ready"
    RESTING = "resting"
    GONE = "gone"


@dataclass(eq=False)
class Child:
    """What is known of one. Times are of the supervisor's clock."""

    spec: ProcessSpec
    state: State = State.WAITING
    process: Process | None = None
    #: Where it listened last; a restart listens there again.
    address: str | None = None
    #: The last that was not empty.
    line: str = ""
    ready_since: float | None = None
    #: When it is killed if it is not ready.
    give_up_at: float = NEVER
    #: When it is started again, while it rests.
    restart_at: float = NEVER
    restarts: int = 0
    #: When it is killed, once it was asked to end.
    kill_at: float | None = None
    #: Whether its end is not an accident.
    is_dispensable: bool = False

    @property
    def is_gateway(self) -> bool:
        """Whether it is one; workers announce that they are ready."""
        return self.spec.ready_path is not None

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self.state not in (State.WAITING, State.RESTING, State.GONE)

    @property
    def last_line(self) -> str:
        """Its last words, cut where they are long."""
        cut = self.line[:LAST_LINE_CHARACTERS]
        return self.line if cut == self.line else f"{cut}…"

    def start(self, process: Process, give_up_at: float = NEVER) -> None:
        """It runs as `process`."""
        self.process, self.state, self.give_up_at = process, State.STARTING, give_up_at

    def hear(self, text: str) -> None:
        """It wrote a line."""
        self.line = text.strip() or self.line
        address = announced_address(text)
        if address is not None and self.state is State.STARTING:
            self.address, self.state = address, State.PROBING

    def become_ready(self, now: float) -> None:
        """It listens."""
        self.state, self.ready_since, self.give_up_at = State.READY, now, NEVER

    def rest(self, until: float) -> None:
        """It is dead and will be started again."""
        self.state, self.ready_since, self.restart_at = State.RESTING, None, until
        self.restarts += 1

    def end(self) -> None:
        """It is gone."""
        self.state, self.kill_at, self.give_up_at = State.GONE, None, NEVER

    def terminate(self, now: float) -> None:
        """Asks it to end, and gives it its time."""
        self.kill_at, self.give_up_at = now + self.spec.stop_grace_s, NEVER
        if self.process is not None:
            self.process.terminate()

    def kill(self) -> None:
        """Ends it."""
        if self.process is not None:
            self.process.kill()

    def kill_if_late(self, now: float) -> None:
        """Kills it once if it had its time; what remains is to hear that it is gone."""
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = NEVER
            self.kill()
        if self.state in (State.STARTING, State.PROBING) and now >= self.give_up_at:
            self.give_up_at = NEVER
            self.kill()
