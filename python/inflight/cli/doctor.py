"""`inflight doctor`: what is looked at is `inflight.launch.doctor`'s, what is tried `inflight.checklist`'s;
this owns how both are shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inflight.cli.declared import option

if TYPE_CHECKING:
    from inflight.checklist.outcome import Outcome

MARKS = {
    "ok": ("ok", "green"),
    "note": ("note", "cyan"),
    "warning": ("warn", "yellow"),
    "problem": ("FAIL", "red"),
    "held": ("ok", "green"),
    "skipped": ("skip", "cyan"),
    "failed": ("FAIL", "red"),
}


@click.command()
@click.argument("model", required=False, type=click.Path(path_type=Path))
@option(
    "--tensorrt-llm",
    "executor",
    flag_value="tensorrt_llm",
    help="Try TensorRT-LLM with MODEL: each feature once, in a separate process",
)
@option(
    "--reference",
    "executor",
    flag_value="reference",
    help="Try the reference executor in the same way",
)
@option(
    "--executor-option",
    "executor_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the executor that is tried, as `inflight worker` takes it",
)
@option("--only", metavar="TEXT", default="", help="Try only features whose name contains this text")
@option(
    "--load-timeout-s",
    type=click.FloatRange(min=1),
    default=900.0,
    show_default=True,
    help="Seconds that the executor may take to load, each of several times",
)
@option(
    "--check-timeout-s",
    type=click.FloatRange(min=0.1),
    default=120.0,
    show_default=True,
    help="Seconds that each feature may take; above those of a slow answer, 60",
)
@option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to attach to a report: versions, GPUs, options, outcomes, tracebacks; JSON if it ends in"
    " `.json`, otherwise Markdown",
)
@option("--json", "as_json", is_flag=True, help="Print it as JSON")
@click.pass_context
def doctor(
    ctx: click.Context,
    model: Path | None,
    executor: str | None,
    executor_options: tuple[str, ...],
    only: str,
    load_timeout_s: float,
    check_timeout_s: float,
    report: Path | None,
    as_json: bool,
) -> None:
    """Say whether this machine can serve, and what to do.

    Looks at packages, GPUs, driver, MPI, limits, ports and disk; with MODEL, also at whether its engine fits
    the installed versions. Exit status 1 if something prevents serving.

    With --tensorrt-llm, uses each feature of TensorRT-LLM once instead, with MODEL (a small checkpoint or an
    engine; the embedded model without it), and reports what worked, what did not, and what was not tried.
    Exit status 1 if something did not work.
    """
    from inflight.errors import UserMistake

    if executor is None:
        for name, value in {"executor-option": executor_options, "only": only, "report": report}.items():
            if value:
                raise UserMistake(
                    f"`--{name}` has no effect without `--tensorrt-llm` or `--reference`",
                    "pass one of them, or leave it out",
                )
        ctx.exit(_look(model, as_json))
    limits = load_timeout_s, check_timeout_s
    ctx.exit(_try(executor, model, executor_options, only, limits, report, as_json))


def _look(model: Path | None, as_json: bool) -> int:
    import json

    from inflight.cli.terminal import printable
    from inflight.launch.doctor import as_json as to_json
    from inflight.launch.doctor import examine

    findings = examine(model)
    if as_json:
        click.echo(json.dumps(to_json(findings), indent=2))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            mark, color = MARKS[finding.state]
            remedy = "" if finding.remedy is None else f"; {finding.remedy}"
            line = printable(f"{finding.name:<{width}}  {finding.what}{remedy}")
            click.echo(f"{click.style(f'{mark:<4}', fg=color)}  {line}")
    return 1 if any(finding.state == "problem" for finding in findings) else 0


def _try(
    executor: str,
    model: Path | None,
    executor_options: tuple[str, ...],
    only: str,
    limits_s: tuple[float, float],
    report: Path | None,
    as_json: bool,
) -> int:
    import json
    import tempfile

    from inflight import executors, machine
    from inflight.checklist import loads, page
    from inflight.checklist.check import checks
    from inflight.checklist.run import Settings, run
    from inflight.cli.options import named_options
    from inflight.errors import UserMistake
    from inflight.launch.model import find_model
    from inflight.model.config import text_values
    from inflight.model.files import load_json

    options = named_options(executor, executor_options)
    executors.require(executor)
    chosen = [one for one in checks() if only.casefold() in f"{one.load}: {one.name}".casefold()]
    if not chosen:
        raise UserMistake(f"no check's name contains `{only}`", "leave out `--only` to see all of them")
    found = find_model(None if model is None else str(model), None, weights=True, executor=executor)
    options = {name: str(value) for name, value in found.executor_options(options).items()}
    version = machine.package_version("tensorrt_llm") or "" if executor == "tensorrt_llm" else ""
    config = found.directory / "config.json"
    about = text_values(load_json(config)) if config.is_file() else {}
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="inflight-doctor-") as name:
        folder = Path(name)
        starts, left_out = loads.plan(_runtime(executor, found.directory), options, folder)
        settings = Settings(executor, version, found.directory, "auto", found.vocab_size(), folder, *limits_s)
        for outcome in run(settings, starts, left_out, chosen):
            outcomes.append(outcome)
            _show(outcome, err=as_json)
    if model is None and outcomes[0].state == "failed":
        click.echo("hint: pass a small checkpoint, such as `Qwen/Qwen3-0.6B`, as MODEL", err=True)
    made = page.as_report(executor, page.describe_model(found.name_for_clients, about), options, outcomes)
    if report is not None:
        page.write(report, made)
    if as_json:
        click.echo(json.dumps(made, indent=2))
    click.echo(page.counts(outcomes), err=as_json)
    return 1 if any(outcome.state == "failed" for outcome in outcomes) else 0


def _runtime(executor: str, directory: Path) -> str:
    """What runs the model, as `checklist.loads` names it."""
    if executor != "tensorrt_llm":
        return executor
    from inflight.executors.tensorrt_llm import find_runtime

    return find_runtime(directory)


def _show(outcome: Outcome, *, err: bool) -> None:
    from inflight.cli.terminal import printable

    mark, color = MARKS[outcome.state]
    said: Any = outcome.reason
    if not said and outcome.check not in ("load", "greedy") and outcome.facts:
        said = ", ".join(f"{name} {value}" for name, value in outcome.facts.items())[:120]
    text = printable(f"{outcome.load:<9}  {outcome.check:<26}  {outcome.seconds:>6.1f} s  {said}".rstrip())
    click.echo(f"{click.style(f'{mark:<4}', fg=color)}  {text}", err=err)
