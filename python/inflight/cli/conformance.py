"""`inflight conformance`: which checks are asked and how they are shown; `inflight.conformance` owns them."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import click

from inflight.cli.declared import option

MARKS = {"passed": ("ok", "green"), "absent": ("none", "cyan"), "failed": ("FAIL", "red")}


@click.command()
@click.argument("url", default="http://127.0.0.1:8000")
@option("--model", metavar="NAME", help="Model to ask; the server's first if not given")
@option("--api-key", metavar="KEY", envvar="OPENAI_API_KEY", help="Key of a server that asks for one")
@option("--only", metavar="TEXT", default="", help="Run only checks whose topic or name contains this text")
@option(
    "--node",
    metavar="DIRECTORY",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Also ask through the SDKs for Node that are installed in this folder",
)
@option("--json", "as_json", is_flag=True, help="Print JSON when all is done")
@option("--markdown", "as_markdown", is_flag=True, help="Print a page when all is done")
@click.pass_context
def conformance(
    ctx: click.Context,
    url: str,
    model: str | None,
    api_key: str | None,
    only: str,
    node: Path | None,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Check a server against the OpenAI and Anthropic APIs.

    Asks the server at URL through the SDKs that people use, and reports for each behavior whether it
    works, is refused clearly, or is wrong. Works with any server. Exit status 1 if something is wrong,
    2 if no check could run.
    """
    import json

    from inflight.cli.terminal import printable
    from inflight.conformance import page
    from inflight.conformance.check import checks, run
    from inflight.conformance.node import run_node
    from inflight.conformance.target import Target
    from inflight.errors import UserMistake

    chosen = checks(only)
    if not chosen:
        raise UserMistake(f"no check's name contains `{only}`", "leave out `--only` to see all of them")
    target = Target(url, model, api_key)
    target.require()
    results = []
    # Progress goes to the error stream where standard output is for a program or a page.
    is_quiet = as_json or as_markdown
    try:
        for result in chain(run(target, chosen), () if node is None else run_node(target, node)):
            results.append(result)
            mark, color = MARKS[result.state]
            reason = f": {result.reason}" if result.reason else ""
            text = printable(f"{result.topic}: {result.name}{reason}")
            click.echo(f"{click.style(f'{mark:<4}', fg=color)}  {text}", err=is_quiet)
    finally:
        target.close()
    if as_json:
        click.echo(json.dumps(page.as_json(results), indent=2))
    elif as_markdown:
        click.echo(page.markdown(results))
    click.echo(page.counts(results), err=is_quiet)
    ctx.exit(1 if any(result.state == "failed" for result in results) else 0)
