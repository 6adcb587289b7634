"""The bugs of `tests/planted` still apply to the code, and the page that lists them lists each."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from types import ModuleType

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


BEFORE = """\
const LIMIT: u32 = 1;

impl Places {
    fn take(
        &mut self,
    ) -> u32 {
        let free = |place: u32| {
            place < LIMIT
        };
        if free(
            self.taken,
        ) {
            self.taken += 1;
        }
        self.taken
    }
}
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planted_bugs", ROOT / "tools" / "planted_bugs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_file_has_every_bug_to_choose_from(tool: ModuleType) -> None:
    versions = {
        3: BEFORE.replace("self.taken += 1;", "self.taken += 2;"),
        5: BEFORE.replace("        self.taken\n", "        0\n"),
    }
    choices = tool.with_choices(BEFORE, versions)
    body = choices[choices.index("-> u32 {\n") + 9 : choices.index("\n/// Whether")]
    own = BEFORE[BEFORE.index("-> u32 {\n") + 9 : -len("    }\n}\n")]
    parts = re.split(r"(?m)^(?:if has_planted\((?:3|5)\) \{|\} else \{)\n", body)
    assert parts[1::2] == [own.replace("+= 1", "+= 2"), own.replace("self.taken\n", "0\n")]
    assert parts[4] == own + "}}\n    }\n}\n"


def test_what_is_outside_of_functions_cannot_be_chosen(tool: ModuleType) -> None:
    with pytest.raises(tool.NotPlanted, match="line 1 "):
        tool.with_choices(BEFORE, {1: BEFORE.replace("= 1;", "= 2;")})
    inner = BEFORE.replace("place < LIMIT", "place <= LIMIT")
    with pytest.raises(tool.NotPlanted, match="inside each other"):
        tool.with_choices(BEFORE, {1: inner, 2: BEFORE.replace("self.taken += 1", "self.taken -= 1")})
