"""How the steps of a build look while they run: one live line each on a terminal, plain lines elsewhere.

Implements `inflight.build.run.Report`. Owns no step and no log.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import click

from inflight.cli.terminal import printable

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from inflight.build.steps import Step

#: What fits behind a title on most terminals.
LINE_LENGTH = 80


class PlainReport:
    """A line when a step starts and one when it ends, to standard error."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def __enter__(self) -> PlainReport:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def _say(self, text: str) -> None:
        if not self._quiet:
            click.echo(text, err=True)

    def started(self, step: Step, number: int, total: int) -> None:
        """Its number and title."""
        self._say(f"[{number}/{total}] {step.title}")

    def output(self, step: Step, line: str) -> None:
        """In the log only."""

    def finished(self, step: Step, seconds: float) -> None:
        """How long it took."""
        self._say(f"      {step.name}: done in {seconds:.1f} s")

    def skipped(self, step: Step, number: int, total: int) -> None:
        """That an earlier run did it."""
        self._say(f"[{number}/{total}] {step.title}: already done")


class LiveReport:
    """A spinner, the elapsed time and the step's latest line, until it ends."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            # Titles begin with `[1/3]`, which is not markup.
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[line]}[/dim]", markup=True),
            # Standard output is the result's.
            console=console or Console(stderr=True),
        )
        self._tasks: dict[str, Any] = {}
        self._guard = threading.Lock()

    def __enter__(self) -> LiveReport:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def started(self, step: Step, number: int, total: int) -> None:
        """Adds its line."""
        with self._guard:
            self._tasks[step.name] = self._progress.add_task(
                f"[{number}/{total}] {step.title}", total=1, line=""
            )

    def output(self, step: Step, line: str) -> None:
        """Shows the latest line, as text and not as markup."""
        from rich.markup import escape

        self._progress.update(self._tasks[step.name], line=escape(printable(line)[:LINE_LENGTH]))

    def finished(self, step: Step, seconds: float) -> None:  # noqa: ARG002 -- the column counts
        """Marks it."""
        self._progress.update(self._tasks[step.name], completed=1, line="")

    def skipped(self, step: Step, number: int, total: int) -> None:
        """Marks it at once."""
        self._progress.add_task(f"[{number}/{total}] {step.title}", total=1, completed=1, line="already done")
