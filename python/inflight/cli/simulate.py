"""`inflight simulate`: hands its arguments to the Rust simulation, which owns its options and their help."""

from __future__ import annotations

import click


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def simulate(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Compare ways to choose a worker, over a trace in virtual time."""
    from inflight import _native

    ctx.exit(_native.simulate_main(["inflight simulate", *arguments]))
