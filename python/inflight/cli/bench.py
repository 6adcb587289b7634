"""`inflight bench`: `requests` is Python's; everything else is handed to the Rust load generator, which owns
its options and their help.
"""

from __future__ import annotations

import click

#: The subcommand that is Python's.
PYTHON = "requests"


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bench(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Measure a gateway or a worker under load."""
    if arguments and arguments[0] == PYTHON:
        from inflight.cli.bench_requests import requests
        from inflight.cli.layers import with_layers

        with_layers(requests)
        made = requests.make_context(f"inflight bench {PYTHON}", list(arguments[1:]))
        with made:
            ctx.exit(requests.invoke(made) or 0)
    from inflight import _native

    code = _native.bench_main(["inflight bench", *arguments])
    if arguments in (("--help",), ("-h",)):
        click.echo(f"\nAlso, with its own options:\n  {PYTHON}  {requests_help()}")
    ctx.exit(code)


def requests_help() -> str:
    """What `requests` does, in a line."""
    from inflight.cli.bench_requests import requests

    return requests.get_short_help_str(100)
