#!/usr/bin/env python3
"""Plants the bugs of `tests/planted`, one at a time, and simulates fleets until an invariant breaks.

`make planted` plants all, `make planted PLANTED="3 17"` some. Each patch is applied to the last commit,
in a separate working tree. While one bug is simulated, the next one is built. docs/reference/planted-bugs.md
lists what was found. Exit code 1: a patch does not apply or does not compile.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "tests" / "planted"
PROGRAM = "inflight-simulated-fleet"
BROKEN = re.compile(r"^broken: make simulate SEED=(\d+)  # ([\w-]+)")


@dataclass(frozen=True)
class Outcome:
    """What became of one patch."""

    patch: str
    #: The seed that broke an invariant first.
    seed: int | None = None
    invariant: str = ""
    seconds: float = 0.0
    #: Seeds that were simulated.
    seeds: int = 0
    #: Why nothing was simulated.
    failure: str = ""

    def words(self) -> str:
        if self.failure:
            return self.failure
        if self.seed is None:
            return f"not found in {self.seeds} seeds, {self.seconds:.0f} s"
        return f"seed {self.seed}: `{self.invariant}`, {self.seconds:.0f} s"


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def git(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True)


def applies(patch: Path, tree: Path = ROOT) -> str:
    """Why the patch does not apply; empty if it does."""
    return git(tree, "apply", "--check", str(patch)).stderr


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


def build(tree: Path, target: Path, program: Path) -> str:
    """Builds the simulator of the tree and keeps it as `program`. Returns why not, if it failed."""
    command = ["cargo", "build", "--quiet", "--locked", "--package", PROGRAM]
    environment = os.environ | {"CARGO_TARGET_DIR": str(target)}
    built = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if built.returncode:
        errors = [line for line in built.stderr.splitlines() if line.startswith("error")]
        return f"does not build: {errors[0] if errors else built.stderr[-200:]}"
    shutil.copy2(target / "debug" / PROGRAM, program)
    return ""


def simulate(patch: str, program: Path, seeds: int, seconds: float, first: int) -> Outcome:
    """Simulates seed after seed until an invariant breaks, or the bound is reached."""
    began = time.monotonic()
    command = [str(program), f"--seed={first}", f"--seeds={seeds}", "--jobs=1", "--until-broken"]
    try:
        printed = subprocess.run(command, capture_output=True, timeout=seconds).stdout
    except subprocess.TimeoutExpired as expired:
        printed = expired.stdout or b""
    text = printed.decode(errors="replace")
    took = time.monotonic() - began
    program.unlink()
    counts = re.findall(r"^seeds=(\d+)", text, re.MULTILINE)
    simulated = int(counts[-1]) if counts else 0
    for line in text.splitlines():
        if found := BROKEN.match(line):
            say(f"{patch}: {line[:300]}")
            return Outcome(patch, int(found[1]), found[2], took, simulated)
    return Outcome(patch, seconds=took, seeds=simulated)


def plant(patches: list[Path], options: argparse.Namespace) -> list[Outcome]:
    """Builds one after another, and simulates what is built meanwhile."""
    target = options.target_dir.resolve()
    tree, programs = target / "planted-tree", target / "planted-programs"
    programs.mkdir(parents=True, exist_ok=True)
    prepare(tree)
    outcomes: list[Future[Outcome] | Outcome] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for place, patch in enumerate(patches):
            git(tree, "reset", "--hard", "--quiet")
            if why := applies(patch, tree):
                outcomes.append(Outcome(patch.stem, failure=f"does not apply: {why.strip()}"))
                continue
            git(tree, "apply", str(patch))
            program = programs / patch.stem
            began = time.monotonic()
            failure = build(tree, target, program)
            built = failure or f"built in {time.monotonic() - began:.0f} s"
            say(f"{place + 1}/{len(patches)} {patch.stem}: {built}")
            if failure:
                outcomes.append(Outcome(patch.stem, failure=failure))
                continue
            future = pool.submit(
                simulate, patch.stem, program, options.seeds, options.seconds, options.first_seed
            )
            future.add_done_callback(lambda done: say(f"{done.result().patch}: {done.result().words()}"))
            outcomes.append(future)
    git(tree, "reset", "--hard", "--quiet")
    return [each.result() if isinstance(each, Future) else each for each in outcomes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, help="numbers of patches; all by default")
    parser.add_argument("--seeds", type=int, default=60, help="seeds for each bug at most")
    parser.add_argument("--seconds", type=float, default=180, help="seconds for each bug at most")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="bugs that are simulated at once")
    parser.add_argument("--target-dir", type=Path, default=ROOT / "target" / "planted")
    options = parser.parse_args()
    patches = sorted(PATCHES.glob("*.patch"))
    if options.numbers:
        patches = [patch for patch in patches if int(patch.name.split("-")[0]) in options.numbers]
    outcomes = plant(patches, options)
    for outcome in outcomes:
        print(f"| {outcome.patch} | {outcome.words()} |")
    found = sum(outcome.seed is not None for outcome in outcomes)
    print(f"{found} of {len(outcomes)} found")
    sys.exit(any(outcome.failure for outcome in outcomes))


if __name__ == "__main__":
    main()
