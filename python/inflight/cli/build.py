"""`inflight build`: from a checkpoint to something a worker serves. Owns how a plan and its progress look;
the options are `inflight.build.options`', the plan and its execution `inflight.build`'s.
"""

from __future__ import annotations

import json as json_module
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inflight.build.options import OPTIONS
from inflight.build.options.declaration import DISABLE, ENABLE, Option
from inflight.cli.terminal import echo

if TYPE_CHECKING:
    from inflight.build.steps import BuildPlan
    from inflight.model.checkpoint import Checkpoint


def _click_option(option: Option) -> click.Option:
    kinds: dict[str, Any] = {
        "integer": click.IntRange(min=option.minimum),
        "text": click.STRING,
        "texts": click.STRING,
        "choice": click.Choice(option.choices),
        "switch": click.Choice([ENABLE, DISABLE]),
        "path": click.STRING,
    }
    names = [option.flag, *("--" + alias.replace("_", "-") for alias in option.aliases), option.name]
    text = option.reason
    if option.default is not None and option.default is not False:
        text = f"{text}  [default: {option.default}]"
    if option.kind == "flag":
        return click.Option(names, is_flag=True, default=None, help=text)
    optional: dict[str, Any] = {} if option.bare is None else {"is_flag": False, "flag_value": option.bare}
    return click.Option(
        names,
        type=kinds[option.kind],
        **optional,
        multiple=option.kind == "texts",
        required=option.name == "output",
        help=text,
        metavar={"texts": "TEXT, repeated"}.get(option.kind),
    )


class BuildCommand(click.Command):
    """Shows its options by group, as they are declared."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            parameter.name: parameter.get_help_record(ctx)
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
        }
        for group in dict.fromkeys(option.group for option in OPTIONS):
            rows = [records[option.name] for option in OPTIONS if option.group == group]
            with formatter.section(group):
                formatter.write_dl([row for row in rows if row is not None])


def _with_options(command: Callable[..., Any]) -> click.Command:
    built = click.command(
        cls=BuildCommand,
        # TensorRT-LLM spells its flags with underscores; both are taken.
        context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    )(click.argument("model_dir", metavar="MODEL_DIR", type=click.Path())(command))
    built.params += [_click_option(option) for option in OPTIONS]
    return built


@_with_options
def build(model_dir: str, **given: Any) -> None:
    """Build what a worker serves from a checkpoint.

    MODEL_DIR is a Hugging Face checkpoint directory. The output is an engine for TensorRT-LLM, a serving
    configuration for its PyTorch runtime, or weights for the reference executor, with a manifest that the
    worker checks before it loads anything. A build that failed goes on where it stopped.
    """
    from inflight.build.examples import find_examples
    from inflight.build.named_files import check_named_files, fingerprint_named_files
    from inflight.build.options import Values
    from inflight.build.plan import Inputs, make_plan
    from inflight.build.record import describe_inputs, is_up_to_date, source_record
    from inflight.build.run import build as run_build
    from inflight.build.runtimes.tensorrt import scripts_needed
    from inflight.errors import raise_problems
    from inflight.machine import find_installed
    from inflight.model.checkpoint import read_checkpoint
    from inflight.model.tokenizer import check_tokenizer

    values = Values(given)
    checkpoint = read_checkpoint(Path(model_dir))
    _require_apart(checkpoint.directory, Path(values["output"]))
    installed = find_installed(gpus=values["runtime"] != "reference")
    examples = None
    if values.is_given("examples_dir"):
        examples = find_examples(Path(values["examples_dir"]), scripts_needed(checkpoint, values))
    draft = None
    if values.is_given("speculative_model"):
        draft = read_checkpoint(Path(values["speculative_model"]))
    plan = make_plan(
        Inputs(
            checkpoint,
            values,
            installed,
            examples,
            draft,
            check_tokenizer(checkpoint.directory),
            tuple(check_named_files(values)),
            sys.executable,
        )
    )
    as_json = bool(values["json"])
    if values["dry_run"]:
        _print_plan(plan, checkpoint, as_json=as_json)
        return
    raise_problems(list(plan.blockers))
    if not as_json:
        echo(f"runtime {plan.runtime}: {plan.why}")
        for note in plan.notes:
            echo(f"note: {note}")
    inputs = describe_inputs(
        plan,
        checkpoint,
        values,
        installed,
        source_record(checkpoint),
        fingerprint_named_files(values),
    )
    output = Path(plan.layout.output)
    if not values["force"] and is_up_to_date(output, inputs):
        _say(as_json, {"output": str(output), "status": "up to date"}, f"`{output}` is up to date")
        return
    # As Ctrl-C: children are ended, and what is done is kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _report(quiet=as_json) as report:
            made = run_build(
                plan,
                inputs,
                installed.inflight,
                report,
                workers=values["workers"],
                force=bool(values["force"]),
            )
    except KeyboardInterrupt:
        echo("stopped: the same command goes on there", err=True)
        raise
    size = sum(entry["bytes"] for entry in made["files"].values())
    _say(
        as_json,
        {
            "output": str(output),
            "status": "built",
            "runtime": plan.runtime,
            "content_hash": made["content_hash"],
        },
        f"built `{output}`: {len(made['files'])} files, {_bytes(size)}\n"
        f"serve it with: inflight serve {shlex.quote(str(output))}{_executor_flags(plan)}",
    )


def _executor_flags(plan: BuildPlan) -> str:
    from inflight.model.runtimes import EXECUTORS, TENSORRT

    executor = EXECUTORS[plan.runtime]
    flags = "" if executor == "reference" else f" --executor {executor}"
    if plan.runtime == TENSORRT and plan.mapping.world_size > 1:
        # One process starts the ranks; without it, each has to be started by `mpirun`.
        flags += " --executor-option communication_mode=orchestrator"
    return flags


def _say(as_json: bool, values: dict[str, Any], text: str) -> None:
    echo(json_module.dumps(values, sort_keys=True) if as_json else text)


def _require_apart(source: Path, output: Path) -> None:
    from inflight.errors import UserMistake

    if output.name in ("", ".."):
        raise UserMistake(f"`--output {output}` is no name of a directory", "give one that is to be made")
    if output.is_symlink():
        # What is built takes its name by a rename, which would take the place of the link.
        raise UserMistake(f"`--output {output}` is a link", "give the directory that it should lie in")
    # Path.resolve raises where links go round.
    inside, outside = Path(os.path.realpath(output)), Path(os.path.realpath(source))
    if inside == outside or outside in inside.parents or inside in outside.parents:
        raise UserMistake(
            f"`--output {output}` and the checkpoint `{source}` lie in one another",
            "choose a directory beside it",
        )


def _bytes(size: int) -> str:
    from inflight.model.memory import human_bytes

    return human_bytes(size)


def _print_plan(plan: BuildPlan, checkpoint: Checkpoint, *, as_json: bool) -> None:
    facts = checkpoint.facts
    if as_json:
        values = {
            "runtime": plan.runtime,
            "why": plan.why,
            "architecture": facts.architecture,
            "output": plan.layout.output,
            "settings": dict(plan.settings),
            "notes": list(plan.notes),
            "blockers": [{"what": problem.what, "remedy": problem.remedy} for problem in plan.blockers],
            "steps": [step.data() for step in plan.steps],
            "expected": list(plan.expected),
        }
        echo(json_module.dumps(values, indent=2))
        return
    echo(f"{facts.architecture} from {checkpoint.directory}")
    echo(f"runtime {plan.runtime}: {plan.why}")
    echo("settings: " + ", ".join(f"{name} {value}" for name, value in plan.settings.items()))
    for number, step in enumerate(plan.steps, 1):
        echo(f"\n{number}. {step.title}  [{step.name}]")
        for line in step.action.lines():
            echo(f"   {line}")
    echo(f"\n{len(plan.steps) + 1}. write inflight.json, rename {plan.layout.result} to {plan.layout.output}")
    for note in plan.notes:
        echo(f"\nnote: {note}")
    for problem in plan.blockers:
        echo(f"\nwould stop: {problem.what}; {problem.remedy}")


def _report(*, quiet: bool) -> Any:
    """Live lines on a terminal, plain ones elsewhere."""
    from inflight.cli.progress import LiveReport, PlainReport

    if quiet or not sys.stderr.isatty():
        return PlainReport(quiet=quiet)
    return LiveReport()
