#!/usr/bin/env python3
"""Plants the bugs of `tests/planted` and simulates fleets until an invariant breaks.

`make planted` simulates each, `make planted PLANTED="3 17"` some. One program has them all: in a separate
working tree of the last commit, each function, closure or block that a patch changes is written as it is and
as it would be, and an environment variable chooses. First, no bug is chosen: nothing may break.
docs/reference/planted-bugs.md lists what was found. Exit code 1: a patch does not apply or changes more than
such bodies, the program does not compile, or it breaks an invariant without a bug.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "tests" / "planted"
PROGRAM = "inflight-simulated-fleet"
#: The number of the bug that the program has.
VARIABLE = "INFLIGHT_PLANTED"
BROKEN = re.compile(r"^broken: make simulate SEED=(\d+)  # ([\w-]+)")

FUNCTION = re.compile(r"\s*(pub(\([\w:]+\))? )?(const )?(async )?(unsafe )?fn \w")
CLOSURE = re.compile(r"(\|[^|]*\| (async (move )?)?|\basync (move )?)\{$")
#: Ends each file that a patch changes.
CHOICE = f"""
/// Whether the program is to have this bug.
fn has_planted(bug: u32) -> bool {{
    static CHOSEN: std::sync::LazyLock<Option<u32>> =
        std::sync::LazyLock::new(|| std::env::var("{VARIABLE}").ok()?.parse().ok());
    *CHOSEN == Some(bug)
}}
"""


class NotPlanted(Exception):
    """A patch that cannot be chosen when the program runs."""


@dataclass(frozen=True)
class Outcome:
    """What became of one bug."""

    patch: str
    #: The seed that broke an invariant first.
    seed: int | None
    invariant: str
    seconds: float
    #: Seeds that were simulated.
    seeds: int

    def words(self) -> str:
        if self.seed is None:
            return f"nothing broke in {self.seeds} seeds, {self.seconds:.0f} s"
        return f"seed {self.seed}: `{self.invariant}`, {self.seconds:.0f} s"


@dataclass(frozen=True, order=True)
class Body:
    """The lines between the braces of a function, a closure or a block, from the first up to the last."""

    first: int
    last: int


def number(patch: Path) -> int:
    return int(patch.name.split("-")[0])


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def opens_body(lines: list[str], at: int) -> bool:
    """Whether the line ends with the brace of a function, a closure or an async block, as rustfmt has it."""
    line = lines[at]
    if not line.endswith("{"):
        return False
    if FUNCTION.match(line) or CLOSURE.search(line):
        return True
    if line.strip() != "{" and not line.lstrip().startswith(")"):
        return False
    # Signatures of several lines end so, and so do conditions.
    above = (other for other in reversed(lines[:at]) if other.strip() and indent(other) <= indent(line))
    head = next((other for other in above if other.strip() != "where" and other.lstrip()[0] != ")"), "")
    return bool(FUNCTION.match(head))


def body_around(lines: list[str], first: int, last: int) -> Body | None:
    """The smallest body that has all lines from `first` up to `last`."""
    for above in range(first - 1, -1, -1):
        if not opens_body(lines, above):
            continue
        below = (at for at in range(above + 1, len(lines)) if lines[at].strip())
        end = next((at for at in below if indent(lines[at]) <= indent(lines[above])), 0)
        if end >= last:
            return Body(above + 1, end)
    return None


def changed_bodies(before: list[str], after: list[str]) -> Iterator[tuple[Body, list[str]]]:
    """The bodies of a file that a patch changes, each with the lines that it has then."""
    changes: dict[Body, list[tuple[int, int, list[str]]]] = defaultdict(list)
    for what, first, last, new_first, new_last in difflib.SequenceMatcher(
        None, before, after, autojunk=False
    ).get_opcodes():
        if what == "equal":
            continue
        body = body_around(before, first, last)
        if body is None:
            raise NotPlanted(f"line {first + 1} is not in the body of a function")
        changes[body].append((first, last, after[new_first:new_last]))
    for body, replaced in changes.items():
        lines = before[body.first : body.last]
        for first, last, new in reversed(replaced):
            lines[first - body.first : last - body.first] = new
        yield body, lines


def with_choices(text: str, versions: dict[int, str]) -> str:
    """A file that behaves as one of its versions, by the number of a bug, or as `text`."""
    before = text.splitlines()
    bodies: dict[Body, list[tuple[int, list[str]]]] = defaultdict(list)
    for bug, version in versions.items():
        for body, lines in changed_bodies(before, version.splitlines()):
            bodies[body].append((bug, lines))
    ordered = sorted(bodies)
    if any(body.first < other.last for other, body in pairwise(ordered)):
        raise NotPlanted(f"the bugs {sorted(versions)} change bodies inside each other")
    for body in reversed(ordered):
        chosen = []
        for bug, lines in bodies[body]:
            chosen += [f"if has_planted({bug}) {{", *lines, "} else {"]
        lines = before[body.first : body.last]
        before[body.first : body.last] = [*chosen, *lines, "}" * len(bodies[body])]
    return "\n".join(before) + "\n" + CHOICE


def git(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True, check=False)


def prepare(tree: Path) -> None:
    """Makes the scratch tree that of the last commit."""
    commit = git(ROOT, "rev-parse", "HEAD").stdout.strip()
    if (tree / ".git").exists():
        git(tree, "reset", "--hard", "--quiet")
        moved = git(tree, "checkout", "--quiet", "--detach", commit)
    else:
        git(ROOT, "worktree", "prune")
        moved = git(ROOT, "worktree", "add", "--quiet", "--detach", str(tree), commit)
    if moved.returncode:
        sys.exit(f"error: the working tree `{tree}` was not made\nhint: {moved.stderr.strip()}")


def plant(tree: Path, patches: list[Path]) -> None:
    """Writes the sources that have every bug to choose from."""
    files: dict[str, dict[int, str]] = defaultdict(dict)
    for patch in patches:
        applied = git(tree, "apply", str(patch))
        if applied.returncode:
            sys.exit(f"error: `{patch.name}` does not apply\nhint: {applied.stderr.strip()}")
        for file in git(tree, "diff", "--name-only").stdout.splitlines():
            files[file][number(patch)] = (tree / file).read_text(encoding="utf-8")
        git(tree, "reset", "--hard", "--quiet")
    for file, versions in files.items():
        path = tree / file
        try:
            text = with_choices(path.read_text(encoding="utf-8"), versions)
        except NotPlanted as error:
            sys.exit(f"error: `{file}` cannot have the bugs {sorted(versions)}: {error}")
        path.write_text(text, encoding="utf-8")


def build(tree: Path, target: Path, profile: str) -> Path:
    """Builds the simulator of the tree."""
    command = ["cargo", "build", "--quiet", "--locked", "--package", PROGRAM, "--profile", profile]
    environment = os.environ | {"CARGO_TARGET_DIR": str(target)}
    if subprocess.run(command, cwd=tree, env=environment, check=False).returncode:
        sys.exit("error: the program with the bugs does not build")
    program = target / "planted"
    shutil.copy2(target / ("debug" if profile == "dev" else profile) / PROGRAM, program)
    return program


def simulate(name: str, bug: int | None, program: Path, options: argparse.Namespace) -> Outcome:
    """Simulates seed after seed until an invariant breaks, or the bound is reached."""
    began = time.monotonic()
    command = [str(program), f"--seed={options.first_seed}", f"--seeds={options.seeds}", "--jobs=1"]
    environment = os.environ | ({} if bug is None else {VARIABLE: str(bug)})
    try:
        printed = subprocess.run(
            [*command, "--until-broken"],
            capture_output=True,
            timeout=options.seconds,
            env=environment,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as expired:
        printed = expired.stdout or b""
    text = printed.decode(errors="replace")
    took = time.monotonic() - began
    counts = re.findall(r"^seeds=(\d+)", text, re.MULTILINE)
    simulated = int(counts[-1]) if counts else 0
    found = next((found for line in text.splitlines() if (found := BROKEN.match(line))), None)
    seed, invariant = (int(found[1]), found[2]) if found else (None, "")
    outcome = Outcome(name, seed, invariant, took, simulated)
    print(time.strftime("%H:%M:%S"), f"{name}: {outcome.words()}", flush=True)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, help="numbers of patches; all by default")
    parser.add_argument("--seeds", type=int, default=500, help="seeds for each bug at most")
    parser.add_argument("--seconds", type=float, default=180, help="seconds for each bug at most")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="bugs at once")
    parser.add_argument("--profile", default="simulated", help="cargo's; `dev` compiles sooner, runs slower")
    parser.add_argument("--target-dir", type=Path, default=ROOT / "target" / "planted")
    options = parser.parse_args()
    patches = sorted(PATCHES.glob("*.patch"))
    if options.numbers:
        patches = [patch for patch in patches if number(patch) in options.numbers]
    target = options.target_dir.resolve()
    target.mkdir(parents=True, exist_ok=True)
    tree = target / "planted-tree"
    prepare(tree)
    plant(tree, patches)
    program = build(tree, target, options.profile)
    began = time.monotonic()
    without = simulate("no bug", None, program, options)
    with ThreadPoolExecutor(options.jobs) as pool:
        tasks = [pool.submit(simulate, patch.stem, number(patch), program, options) for patch in patches]
    outcomes = [task.result() for task in tasks]
    for outcome in outcomes:
        print(f"| {outcome.patch} | {outcome.words()} |")
    found = sum(outcome.seed is not None for outcome in outcomes)
    print(f"{found} of {len(outcomes)} found in {time.monotonic() - began:.0f} s")
    sys.exit(without.seed is not None)


if __name__ == "__main__":
    main()
