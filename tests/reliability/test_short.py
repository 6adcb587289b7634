"""The short form of every scenario: no promise breaks. `make soak` runs the long one."""

from __future__ import annotations

import pytest

from reliability.report import Report, Scale
from reliability.scenarios import SCENARIOS

#: Another than the long form's default, so that the two try different things.
SEED = 2


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_promise_is_kept(name: str) -> None:
    report = Report()
    SCENARIOS[name](Scale(SEED, is_short=True), report)
    # pytest shows it with the test that failed.
    print("\n".join(report.lines()))
    assert report.tried
    assert not report.broken
