#!/usr/bin/env python3
"""Changes one expression of the code at a time and runs its tests: what they do not notice is listed.

    tools/mutants.py [--changed REVISION] [AREA ...]

Owns which files belong to an area, and which tests are to notice. `cargo mutants` changes Rust and `mutmut`
Python, both in copies, and both show their progress. What is listed in tests/answered_mutants.json has its
reason there; anything else that no test notices ends the run with status 1. docs/RELIABILITY.md has the
counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ANSWERED = ROOT / "tests/answered_mutants.json"
#: Of Rust: some mutants never end, which counts as noticed.
TIMEOUT_S = 25
#: How mutmut ends the tests of a mutant that passed them, and of one that no test reaches.
PASSED = (0, 5, 33)

CORE = "python/inflight/executors/reference/core"
CORE_TESTS = "tests/reference"


#: Of `crates/upstream/src`: what has no sockets.
DELIVERY = (
    *("delivery", "holding", "survival", "survival/*", "expiry", "registry", "inbox", "handles"),
    *("request_queue", "shared_stream/mailbox", "dispatch", "stops", "transcript", "forward/said"),
    *("classify", "ending", "pulse", "placement/reports", "placement/trust", "placement/waiting"),
)


@dataclass(frozen=True)
class Area:
    """Files, as globs from the root, and the tests that are to notice: pytest's files, or, of the files of a
    crate, arguments of `cargo test`."""

    files: Sequence[str]
    tests: Sequence[str]
    crate: str | None = None
    #: Of the crate's tests, parts of the names of those that take long.
    skipped: Sequence[str] = ()


AREAS = {
    "text": Area(
        [f"crates/text/src/{name}" for name in ("stop.rs", "detokenizer.rs", "tokenizer.rs", "tokenizer/*")],
        ("--lib", "--test=stop_strings", "--test=tokens"),
        "text",
    ),
    "parsers": Area(
        ("crates/parsers/src/**",),
        ("--lib", "--test=parsers"),
        "parsers",
        ("properties", "nothing_that_repeats", "what_is_held"),
    ),
    "kserve": Area(
        [
            f"crates/kserve/src/{name}"
            for name in ("encoded.rs", "encoded/*", "streamed.rs", "streamed/*", "step/*")
        ],
        ("--lib",),
        "kserve",
    ),
    "delivery": Area([f"crates/upstream/src/{name}.rs" for name in DELIVERY], ("--lib",), "upstream"),
    "clients": Area(("crates/clients/src/**",), ("--lib",), "clients"),
    "routing": Area(
        ("crates/routing/src/**",),
        ("--lib", "--test=choices", "--test=expectations", "--test=index_model"),
        "routing",
    ),
    "blocks": Area(("crates/blocks/src/**",), ("--lib",), "blocks"),
    "worker-cache": Area(
        [
            f"crates/worker/src/cache/{name}.rs"
            for name in ("blocks", "changes", "contents", "waiting", "watch")
        ],
        ("--lib",),
        "worker",
    ),
    "scheduler": Area(
        (f"{CORE}/scheduler.py", f"{CORE}/pace.py", f"{CORE}/queue.py"),
        [f"{CORE_TESTS}/test_{name}.py" for name in ("scheduler", "pace", "queue")],
    ),
    "cache": Area(
        [f"{CORE}/{name}.py" for name in ("blocks", "eviction", "reuse", "cache_changes")],
        [f"{CORE_TESTS}/test_{name}.py" for name in ("reuse", "block_pool", "cache", "cache_changes")],
    ),
    "sampler": Area(
        [f"{CORE}/{name}.py" for name in ("sampler", "probabilities", "log_probs", "stop")],
        [f"{CORE_TESTS}/test_{name}.py" for name in ("sampler", "probabilities", "stop")],
    ),
}


@dataclass
class Found:
    """What the tests of an area did. A survivor is its file and the change."""

    noticed: int = 0
    survivors: list[tuple[str, str]] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; all by default")
    parser.add_argument("--changed", metavar="REVISION", help="only what was changed since")
    options = parser.parse_args()
    if unknown := [name for name in options.areas if name not in AREAS]:
        sys.exit(f"error: unknown area `{unknown[0]}`\nhint: choose from {', '.join(AREAS)}")
    known = ["git", "rev-parse", "--quiet", "--verify", f"{options.changed}^{{commit}}"]
    if options.changed and subprocess.run(known, cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        sys.exit(f"error: this clone has no revision `{options.changed}`\nhint: git fetch --unshallow")
    answers = {(group["file"], change) for group in answered() for change in group["changes"]}
    left: list[tuple[str, str]] = []
    rows = []
    for name in options.areas or AREAS:
        area = AREAS[name]
        files = changed_files(area, options.changed) if options.changed else list(area.files)
        if not files:
            continue
        print(f"==> {name}", flush=True)
        if area.crate and options.changed and shutil.which("cargo-mutants") is None:
            print("cargo-mutants is not installed: its mutants are not tried")
            continue
        found = rust(area, files, options.changed) if area.crate else python(area, files)
        unanswered = [one for one in found.survivors if one not in answers]
        left += unanswered
        count = found.noticed + len(found.survivors)
        share = f"{found.noticed / count:.0%}" if count else ""
        rows.append((name, count, found.noticed, share, len(found.survivors) - len(unanswered)))
    print(f"{'area':12}{'mutants':>9}{'noticed':>9}{'':>6}{'answered':>10}")
    for name, count, noticed, share, explained in rows:
        print(f"{name:12}{count:9}{noticed:9}{share:>6}{explained:10}")
    for file, change in left:
        print(f"\n{file}\n    {change}")
    if left:
        sys.exit(f"\nerror: {len(left)} changes are not noticed by any test and have no answer in {ANSWERED}")


def answered() -> list[dict[str, Any]]:
    """Changes that no test notices, as this program names them, by file; and why that is right."""
    groups: list[dict[str, Any]] = json.loads(ANSWERED.read_text(encoding="utf-8"))
    return groups


def changed_files(area: Area, revision: str) -> list[str]:
    """Those of an area that differ from ``revision``."""
    words = ["git", "diff", "--name-only", "--diff-filter=d", revision]
    names = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in names if any(fnmatch(name, pattern) for pattern in area.files)]


def rust(area: Area, files: Sequence[str], revision: str | None) -> Found:
    """Runs `cargo mutants`: on the lines that differ from ``revision``, if there is one."""
    with tempfile.TemporaryDirectory() as place:
        words = ["cargo", "mutants", "--package", f"inflight-{area.crate}", "--output", place]
        words += ["--timeout", str(TIMEOUT_S), "--no-shuffle", *(f"--file={name}" for name in files)]
        # Of building, too: a mutant would be compiled into every other test otherwise.
        words += [f"--cargo-arg={test}" for test in area.tests]
        if revision:
            difference = subprocess.run(
                ["git", "diff", revision], cwd=ROOT, check=True, capture_output=True
            ).stdout
            (Path(place) / "difference").write_bytes(difference)
            words.append(f"--in-diff={place}/difference")
        if area.skipped:
            words += ["--", "--", *(word for name in area.skipped for word in ("--skip", name))]
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "mutants"
        environment = os.environ | {"CARGO_TARGET_DIR": str(target), "CARGO_PROFILE_DEV_DEBUG": "0"}
        # Its status says whether any survived; what it could not run leaves no outcomes.
        subprocess.run(words, cwd=ROOT, env=environment, check=False)
        outcomes = Path(place) / "mutants.out/outcomes.json"
        if not outcomes.exists():
            sys.exit("error: `cargo mutants` did not run\nhint: cargo install --locked cargo-mutants")
        return of_outcomes(json.loads(outcomes.read_text())["outcomes"])


def of_outcomes(outcomes: Sequence[dict[str, Any]]) -> Found:
    """What `cargo mutants` writes of each mutant."""
    found = Found()
    for outcome in outcomes:
        if outcome["summary"] in ("CaughtMutant", "Timeout"):
            found.noticed += 1
        elif outcome["summary"] == "MissedMutant":
            # `FILE:LINE:COLUMN: CHANGE`; lines move, and would make an answer another one's.
            file, _, _, change = outcome["scenario"]["Mutant"]["name"].split(":", 3)
            found.survivors.append((file, change.strip()))
    return found


def python(area: Area, files: Sequence[str]) -> Found:
    """Runs `mutmut`, in a copy whose layout it knows: packages in `src`."""
    with copied(files, area.tests) as place:
        environment = os.environ | {"PYTHONPATH": str(place / "src")}
        mutmut = [sys.executable, "-m", "mutmut"]
        if subprocess.run([*mutmut, "run"], cwd=place, env=environment, check=False).returncode:
            sys.exit("error: `mutmut` did not run\nhint: pip install --group mutants")
        found = Found()
        for meta in sorted((place / "mutants").rglob("*.meta")):
            file = Path("python") / meta.relative_to(place / "mutants/src").with_suffix("")
            for mutant, status in json.loads(meta.read_text())["exit_code_by_key"].items():
                if status not in PASSED:
                    found.noticed += 1
                    continue
                words = [*mutmut, "show", mutant]
                shown = subprocess.run(
                    words, cwd=place, env=environment, check=True, capture_output=True, text=True
                )
                found.survivors.append((str(file), change(mutant, shown.stdout)))
        return found


def change(mutant: str, difference: str) -> str:
    """A mutant's change in one line: its function, and what became of which lines."""
    # `x_NAME__mutmut_3`; of a method `xǁCLASSǁNAME__mutmut_3`.
    marked = mutant.rpartition(".")[2].rpartition("__mutmut")[0].removeprefix("x")
    function = marked.strip("ǁ").replace("ǁ", ".") if "ǁ" in marked else marked.removeprefix("_")
    lines = [line for line in difference.splitlines() if not line.startswith(("---", "+++"))]
    old, new = ("; ".join(line[1:].strip() for line in lines if line[:1] == sign) for sign in "-+")
    return f"{function}: {old} -> {new}"


@contextmanager
def copied(files: Sequence[str], tests: Sequence[str]) -> Iterator[Path]:
    """A copy of the package and its tests in which mutmut changes ``files``."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        leave = shutil.ignore_patterns("__pycache__")
        for name, target in (("python", "src"), ("tests", "tests"), ("fuzz/corpus", "fuzz/corpus")):
            shutil.copytree(ROOT / name, place / target, ignore=leave)
        sources = [name.replace("python/", "src/", 1) for name in files]
        settings = {"source_paths": ["src"], "only_mutate": sources, "also_copy": ["fuzz"]}
        settings["pytest_add_cli_args_test_selection"] = list(tests)
        # What coverage warns of is not the tests'.
        settings["pytest_add_cli_args"] = ["-p", "no:cacheprovider", "-W", "default"]
        written = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        project = (ROOT / "pyproject.toml").read_text()
        (place / "pyproject.toml").write_text(f"{project}\n[tool.mutmut]\n{written}")
        yield place


if __name__ == "__main__":
    main()
