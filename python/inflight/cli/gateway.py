"""`inflight gateway`: hands its arguments to the Rust gateway, which owns every option and its help."""

from __future__ import annotations

import click


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def gateway(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Run a gateway: the OpenAI API over one or more workers."""
    from inflight import _native

    ctx.exit(_native.gateway_main(["inflight gateway", *arguments]))
