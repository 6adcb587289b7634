"""`inflight build` from top to bottom: reads the checkpoint and the machine, makes a plan, and runs it.

The command line owns only how this looks. `prepare` writes nothing, so that a dry run stops after it.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from inflight.build.examples import find_examples
from inflight.build.named_files import check_named_files, fingerprint_named_files
from inflight.build.options import Values
from inflight.build.plan import Inputs, make_plan
from inflight.build.record import describe_inputs, is_up_to_date, source_record
from inflight.build.run import Report, run_plan
from inflight.build.runtimes.tensorrt import scripts_needed
from inflight.build.steps import BuildPlan
from inflight.errors import UserMistake, raise_problems
from inflight.machine import find_installed
from inflight.model.checkpoint import read_checkpoint
from inflight.model.runtimes import EXECUTORS, REFERENCE, TENSORRT
from inflight.model.tokenizer import check_tokenizer


@dataclass(frozen=True)
class Prepared:
    """A build that is planned and not started."""

    inputs: Inputs
    plan: BuildPlan

    @property
    def output(self) -> Path:
        return Path(self.plan.layout.output)


@dataclass(frozen=True)
class Built:
    """What a build left at its output."""

    was_up_to_date: bool
    content_hash: str = ""
    files: int = 0
    bytes: int = 0


def prepare(model_dir: Path, values: Values) -> Prepared:
    """Reads the checkpoint and the machine, and plans. Raises `UserMistake` where that cannot be built."""
    checkpoint = read_checkpoint(model_dir)
    _require_apart(checkpoint.directory, Path(values["output"]))
    examples, draft = values["examples_dir"], values["speculative_model"]
    inputs = Inputs(
        checkpoint=checkpoint,
        values=values,
        installed=find_installed(gpus=values["runtime"] != REFERENCE),
        examples=find_examples(Path(examples), scripts_needed(checkpoint, values)) if examples else None,
        draft=read_checkpoint(Path(draft)) if draft else None,
        tokenizer=check_tokenizer(checkpoint.directory),
        missing=tuple(check_named_files(values)),
        python=sys.executable,
    )
    return Prepared(inputs, make_plan(inputs))


def require_possible(prepared: Prepared) -> None:
    """Raises `UserMistake` with what this machine or the checkpoint lacks for a real run."""
    raise_problems(prepared.plan.blockers)


def carry_out(prepared: Prepared, report: Report) -> Built:
    """Runs the plan, unless the output already holds its result. Raises as `run_plan` does."""
    inputs, plan = prepared.inputs, prepared.plan
    force = bool(inputs.values["force"])
    described = describe_inputs(
        plan,
        inputs.checkpoint,
        inputs.values,
        inputs.installed,
        source_record(inputs.checkpoint),
        fingerprint_named_files(inputs.values),
    )
    if not force and is_up_to_date(prepared.output, described):
        return Built(was_up_to_date=True)
    manifest = run_plan(
        plan,
        described,
        inputs.installed.inflight,
        report,
        workers=inputs.values["workers"],
        force=force,
    )
    files = manifest["files"].values()
    return Built(False, manifest["content_hash"], len(files), sum(entry["bytes"] for entry in files))


def serve_command(plan: BuildPlan) -> str:
    """The command that serves what the plan builds."""
    executor = EXECUTORS[plan.runtime]
    flags = "" if executor == "reference" else f" --executor {executor}"
    if plan.runtime == TENSORRT and plan.mapping.world_size > 1:
        # One process starts the ranks; without it, `mpirun` has to start each of them.
        flags += " --executor-option communication_mode=orchestrator"
    return f"inflight serve {shlex.quote(plan.layout.output)}{flags}"


def _require_apart(source: Path, output: Path) -> None:
    if output.name in ("", ".."):
        raise UserMistake(f"`--output {output}` is not a valid directory name", "choose a new one")
    if output.is_symlink():
        # The result gets its name by a rename, which would replace the link.
        raise UserMistake(f"`--output {output}` is a symbolic link", "pass the directory that it points to")
    # Path.resolve raises for links that form a loop.
    inside, outside = Path(os.path.realpath(output)), Path(os.path.realpath(source))
    if inside == outside:
        what = f"`--output {output}` is the checkpoint `{source}` itself"
    elif outside in inside.parents:
        what = f"`--output {output}` is inside the checkpoint `{source}`"
    elif inside in outside.parents:
        what = f"`--output {output}` contains the checkpoint `{source}`"
    else:
        return
    raise UserMistake(what, "choose a directory outside it")
