"""What `make mutants` runs exists, and its answers are about code that is still there."""

from __future__ import annotations

import fnmatch
import sys

import pytest

from test_documentation import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import mutants


@pytest.mark.parametrize("area", mutants.AREAS.values(), ids=mutants.AREAS)
def test_an_area_has_files_and_tests(area: mutants.Area) -> None:
    assert all(list(ROOT.glob(pattern)) for pattern in area.files)
    if area.crate is None:
        assert all((ROOT / test).is_file() for test in area.tests)
        return
    assert all(pattern.startswith(f"crates/{area.crate}/") for pattern in area.files)
    names = [test.removeprefix("--test=") for test in area.tests if test.startswith("--test=")]
    tests = ROOT / "crates" / area.crate / "tests"
    assert all((tests / f"{name}.rs").is_file() or (tests / name / "main.rs").is_file() for name in names)


def test_answers_are_about_code_that_is_there() -> None:
    patterns = [pattern for area in mutants.AREAS.values() for pattern in area.files]
    for group in mutants.answered():
        assert group["why"]
        assert any(fnmatch.fnmatch(group["file"], pattern) for pattern in patterns)
        code = (ROOT / group["file"]).read_text(encoding="utf-8")
        for change in group["changes"]:
            function, _, lines = change.partition(": ")
            if not lines:
                # `replace < with <= in spread`, `replace take -> u32 with 0`: as `cargo mutants` says it.
                whole = change.removeprefix("replace ").partition(" -> ")[0].partition(" with ")[0]
                function = change.rpartition(" in ")[2] if " in " in change else whole
            assert function.rpartition(".")[2].rpartition("::")[2] in code, change
            assert all(line in code for line in lines.partition(" -> ")[0].split("; ")), change


def test_a_line_of_python_is_named_by_its_function() -> None:
    difference = "--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n def take(self):\n-    return 1\n+    return 2\n"
    named = mutants.change("inflight.core.queue.x\u01c1_Queue\u01c1take__mutmut_3", difference)
    assert named == "_Queue.take: return 1 -> return 2"
    assert mutants.change("inflight.core.queue.x__rank__mutmut_1", difference).startswith("_rank: ")


def test_what_cargo_mutants_writes() -> None:
    def outcome(summary: str) -> dict[str, object]:
        name = "crates/blocks/src/lib.rs:12:8: replace < with <= in Blocks::take"
        return {"summary": summary, "scenario": {"Mutant": {"name": name}}}

    summaries = ["Success", "CaughtMutant", "Timeout", "Unviable", "MissedMutant"]
    found = mutants.of_outcomes([outcome(one) for one in summaries])
    assert found.noticed == 2
    assert found.survivors == [("crates/blocks/src/lib.rs", "replace < with <= in Blocks::take")]
