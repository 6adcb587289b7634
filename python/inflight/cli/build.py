"""`inflight build`: from a checkpoint to something that a worker serves. Owns how a plan and its progress
look; `inflight.build.options` has the options, `inflight.build.pipeline` does the work.
"""

from __future__ import annotations

import json as json_module
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from inflight.build.options import OPTIONS
from inflight.build.options.declaration import BuildOption
from inflight.cli.declared import Option
from inflight.cli.options import Choice
from inflight.cli.terminal import echo

if TYPE_CHECKING:
    from inflight.build.pipeline import Built, Prepared


def _click_option(option: BuildOption) -> Option:
    kinds: dict[str, Any] = {
        "int": click.IntRange(min=option.minimum),
        "text": click.STRING,
        "texts": click.STRING,
        "choice": Choice(option.choices),
        "path": click.STRING,
    }
    names = [option.flag, *("--" + alias.replace("_", "-") for alias in option.aliases), option.name]
    text = option.meaning
    if option.kind == "texts" and not option.items:
        text += "; repeatable"
    if option.default is not None and option.default is not False:
        text = f"{text}  [default: {option.default}]"
    if option.kind == "bool":
        return Option(names, is_flag=True, default=None, help=text)
    optional: dict[str, Any] = {} if option.bare is None else {"is_flag": False, "flag_value": option.bare}
    return Option(
        names,
        type=Choice(option.items) if option.items else kinds[option.kind],
        **optional,
        multiple=option.kind == "texts",
        required=option.name == "output",
        help=text,
        metavar="NAME..." if option.items else {"path": "PATH"}.get(option.kind),
    )


#: The words that may follow an option together, by its names.
_LISTS = {
    name: frozenset(option.items)
    for option in OPTIONS
    if option.items
    for name in (option.flag, *("--" + alias.replace("_", "-") for alias in option.aliases))
}


def _repeated(arguments: Sequence[str]) -> list[str]:
    """The arguments with `--list a b` and `--list a,b`, as TensorRT-LLM and our executors have it, made
    `--list a --list b`. Only words of the list are taken with it: the next one may be MODEL_DIR.
    """
    made: list[str] = []
    rest = list(arguments)
    while rest:
        one = rest.pop(0)
        if one == "--":
            return [*made, one, *rest]
        name, equals, value = one.partition("=")
        flag = name.replace("_", "-")
        if flag not in _LISTS or (not equals and not rest):
            made.append(one)
            continue
        given = [value if equals else rest.pop(0)]
        while rest and all(word.replace("-", "_") in _LISTS[flag] for word in rest[0].split(",")):
            given.append(rest.pop(0))
        made += [f"{flag}={word.strip()}" for text in given for word in text.split(",")]
    return made


class BuildCommand(click.Command):
    """Shows its options by group, as they are declared."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; an option for a list may have all of it behind it."""
        return super().parse_args(ctx, _repeated(args))

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
        with formatter.section("A file of options"):
            formatter.write_dl([row for name, row in records.items() if name == "config" and row is not None])


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
    """Build a directory that a worker can serve, from a checkpoint.

    MODEL_DIR is a Hugging Face checkpoint directory, or a checkpoint's name on the Hub (ORG/NAME). The
    output is an engine for TensorRT-LLM, a serving configuration for its PyTorch runtime, or weights for the
    reference executor, with a manifest that the worker checks before it loads anything. A build that failed
    resumes where it stopped.
    """
    from inflight.build.arguments_file import read_values
    from inflight.build.pipeline import carry_out, prepare, require_possible
    from inflight.launch.hub import directory_of

    as_json = bool(given["json"])
    prepared = prepare(directory_of(model_dir, weights=not given["dry_run"]), read_values(given))
    if given["dry_run"]:
        _print_plan(prepared, as_json=as_json)
        return
    require_possible(prepared)
    if not as_json:
        echo(f"runtime {prepared.plan.runtime}: {prepared.plan.why}")
        for note in prepared.plan.notes:
            echo(f"note: {note}")
    # As for Ctrl-C: child processes are ended, and finished steps are kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _report(quiet=as_json) as report:
            built = carry_out(prepared, report)
    except KeyboardInterrupt:
        echo("stopped; rerun the same command to resume", err=True)
        raise
    _print_result(prepared, built, as_json=as_json)


def _print_result(prepared: Prepared, built: Built, *, as_json: bool) -> None:
    from inflight.build.pipeline import serve_command
    from inflight.model.memory import human_bytes

    plan, output = prepared.plan, prepared.output
    values: dict[str, Any] = {"output": str(output), "status": "built"}
    if built.was_up_to_date:
        text = f"`{output}` is up to date"
        values["status"] = "up to date"
    else:
        text = (
            f"built `{output}`: {built.files} files, {human_bytes(built.bytes)}\n"
            f"serve it with: {serve_command(plan)}"
        )
        values |= {"runtime": plan.runtime, "content_hash": built.content_hash}
    echo(json_module.dumps(values, sort_keys=True) if as_json else text)


def _print_plan(prepared: Prepared, *, as_json: bool) -> None:
    plan, checkpoint = prepared.plan, prepared.inputs.checkpoint
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
        echo(f"\nblocked by: {problem.what}; {problem.remedy}")


def _report(*, quiet: bool) -> Any:
    """Live lines on a terminal, plain ones elsewhere."""
    from inflight.cli.progress import LiveReport, PlainReport

    if quiet or not sys.stderr.isatty():
        return PlainReport(quiet=quiet)
    return LiveReport()
