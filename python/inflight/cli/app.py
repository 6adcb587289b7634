"""The command group. Owns which commands exist and how a failure is shown; imports none of them before
it is asked for, so that `inflight --help` stays quick.
"""

from __future__ import annotations

import errno
from importlib import import_module
from typing import Any

import click

from inflight.cli.familiar import unknown_command, unknown_option
from inflight.cli.layers import name_origin, with_layers
from inflight.cli.terminal import printable
from inflight.errors import InflightError, UserMistake

#: Command name -> module of `inflight.cli` that defines it under the same name. Listed in this order.
COMMANDS = {
    name: f"inflight.cli.{name}"
    for name in (
        "serve",
        "launch",
        "worker",
        "gateway",
        "chat",
        "client",
        "batch",
        "build",
        "inspect",
        "doctor",
        "top",
        "repository",
        "bench",
        "simulate",
        "conformance",
    )
}

#: 128 + SIGINT, as shells report it.
EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """Imports a command's module when that command, or the help of all, is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(import_module(module), cmd_name)
        return with_layers(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's; names near an unknown command are those of all commands, imported or not."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise unknown_command(args[0], COMMANDS, ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Prints an `InflightError` in two lines, and what the file system refuses as one; anything else is
        click's or a defect.
        """
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise unknown_option(error) from None
        except click.BadParameter as error:
            raise name_origin(error) from None
        except InflightError as error:
            _tell(ctx, error)
        except OSError as error:
            refused = _of_the_file_system(error)
            if refused is None:
                raise
            _tell(ctx, refused)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)


def _tell(ctx: click.Context, error: InflightError) -> None:
    # What files and peers said is part of it; the style is ours.
    click.echo(f"{click.style('error:', fg='red', bold=True)} {printable(error.what)}", err=True)
    if error.remedy:
        click.echo(f"{click.style('hint:', fg='cyan', bold=True)} {printable(error.remedy)}", err=True)
    ctx.exit(error.exit_code)


def _of_the_file_system(error: OSError) -> InflightError | None:
    """A path that is forbidden, too long or gone, or a full disk: any file may meet it at any time."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        # The system names no file for a write that it refuses.
        where = "" if error.filename is None else f" for `{error.filename}`"
        return InflightError(f"the disk has no space left{where}", "free some space, then rerun the command")
    if error.filename is None:
        return None
    return UserMistake(
        f"`{error.filename}` cannot be used: {error.strerror}", "check the path and its permissions"
    )


def print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    """Prints the version of the package; it is the Rust core's."""
    if not wanted or ctx.resilient_parsing:
        return
    from inflight._native import __version__

    click.echo(f"inflight {__version__}")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Print the version and exit",
)
def inflight() -> None:
    """Serve large language models through TensorRT-LLM behind the OpenAI API.

    `inflight serve` alone serves the embedded model on http://localhost:8000.
    """
