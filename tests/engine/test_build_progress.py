"""How progress looks: the plain lines that logs keep, and the live ones."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from inflight.build.steps import Own, Step
from inflight.cli.progress import LiveReport, PlainReport

STEP = Step("weights", "widen the weights", Own("reference.write_weights", {}))


def tell(report: PlainReport | LiveReport) -> None:
    with report:
        report.skipped(Step("before", "what came before", STEP.action), 1, 2)
        report.started(STEP, 2, 2)
        report.output(STEP, "100% [bold]of[/bold] [/it]")
        report.finished(STEP, 1.25)


def test_plain_lines_name_the_step_and_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    tell(PlainReport(quiet=False))
    assert capsys.readouterr().err.splitlines() == [
        "[1/2] what came before: already done",
        "[2/2] widen the weights",
        "      weights: done in 1.2 s",
    ]
    tell(PlainReport(quiet=True))
    assert capsys.readouterr().err == ""


def test_live_lines_take_a_steps_output_as_text() -> None:
    screen = io.StringIO()
    tell(LiveReport(Console(file=screen, force_terminal=True, width=120)))
    shown = screen.getvalue()
    assert "what came before" in shown
    assert "already done" in shown
    assert "widen the weights" in shown
