"""`inflight bench`: hands its arguments to the Rust load generator, which owns every option and its help."""

from __future__ import annotations

import click


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bench(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Measure a gateway or a worker under load."""
    from inflight import _native

    ctx.exit(_native.bench_main(["inflight bench", *arguments]))
