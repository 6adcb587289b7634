"""The bugs of `tests/planted` still apply to the code, and the page that lists them lists each."""

from __future__ import annotations

import re
import subprocess

import pytest

from test_documentation import ROOT

PATCHES = sorted((ROOT / "tests" / "planted").glob("*.patch"))
PAGE = ROOT / "docs" / "reference" / "planted-bugs.md"


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_bug_can_be_planted(patch: object) -> None:
    checked = subprocess.run(
        ["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, f"{checked.stderr}\nAdapt the patch to the code that has changed."


def test_the_page_lists_every_bug() -> None:
    listed = re.findall(r"^\| (\d\d-[\w-]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [patch.stem for patch in PATCHES]
