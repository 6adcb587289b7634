"""`inflight doctor`: what is looked at is `inflight.launch.doctor`'s; this owns how it is shown."""

from __future__ import annotations

from pathlib import Path

import click

MARKS = {
    "ok": ("ok", "green"),
    "note": ("note", "cyan"),
    "warning": ("warn", "yellow"),
    "problem": ("FAIL", "red"),
}


@click.command()
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON")
@click.pass_context
def doctor(ctx: click.Context, model: Path | None, as_json: bool) -> None:
    """Say whether this machine can serve, and what to do.

    Looks at packages, GPUs, driver, MPI, limits, ports and disk; with MODEL, also at whether its engine fits
    the installed versions. Exit status 1 if something prevents serving.
    """
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
    ctx.exit(1 if any(finding.state == "problem" for finding in findings) else 0)
