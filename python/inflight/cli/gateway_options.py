"""The gateway's options on a command that starts a gateway. Rust declares them; none is repeated here.

Owns which of them such a command does not take, and how given ones travel to the gateway: in the environment
where they can, because arguments are public on a machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from inflight.cli.declared import Option
from inflight.cli.layers import origin_of
from inflight.cli.options import PORT
from inflight.cli.otel import TracedCommand

#: Not for a command that starts the worker as well, and why.
NOT_TAKEN = {
    "grpc-port": "it is the worker's here, which speaks the same protocol",
    "worker": "the worker is the one that is started",
    "worker-file": "the same",
    "worker-dns": "the same",
    "endpoint": "nobody asks this gateway where to send a request: it has one worker",
    "endpoint-file": "the same",
    "endpoint-dns": "the same",
    "kv-events-port": "the same",
    "kv-events-replay-port": "the same",
    "kv-events-topic": "the same",
    "worker-service": "the same",
    "worker-etcd": "the same",
    "kubernetes-api": "the same",
    "kubernetes-credentials": "the same",
    "unlisted-worker-s": "the same",
    "tls-client-ca": "the command itself asks the gateway how it is, and has no certificate",
    "upstream-ca": "the worker is the one that is started, and speaks plain text on this machine",
    "upstream-certificate": "the same",
    "upstream-key": "the same",
    "upstream-server-name": "the same",
    "tokenizer": "for Triton servers; workers provide theirs",
    "max-seq-len": "for Triton servers; workers report theirs",
    "config": "every command has its own",
}


class GatewayOption(Option):
    """An option that the gateway declares and checks. Its value is text as given, or None."""

    def __init__(self, declared: Any) -> None:
        self.declared = declared
        kind: Any = str
        if declared.flag == "port":
            kind = PORT
        elif declared.choices:
            kind = click.Choice(declared.choices)
        super().__init__(
            ["--" + declared.flag],
            type=kind,
            # A switch alone means true, as in the gateway.
            flag_value="true" if declared.choices == ["true", "false"] else None,
            is_flag=False,
            multiple=declared.is_multiple,
            metavar=None if declared.choices else declared.value_name,
            envvar=declared.environment,
            show_envvar=True,
            help=declared.help,
        )

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Adds the default to what click shows in brackets."""
        extra = super().get_help_extra(ctx)
        if self.declared.default is not None:
            extra["default"] = self.declared.default
        return extra


class CommandWithGateway(TracedCommand):
    """A command that takes the gateway's options in addition to its own. They are read from the extension
    once the command runs or shows its own help, so that other help stays quick.
    """

    _added: list[GatewayOption] | None = None

    def gateway_options(self) -> list[GatewayOption]:
        """All that the command takes."""
        if self._added is None:
            from inflight import _native

            declared = _native.gateway_options()
            self._added = [GatewayOption(one) for one in declared if one.flag not in NOT_TAKEN]
        return self._added

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own, then the gateway's, then `--help`."""
        own = super().get_params(ctx)
        helps = [one for one in own if one is not None and one.name == "help"]
        return [*(one for one in own if one not in helps), *self.gateway_options(), *helps]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Two lists, since there are many."""
        added: list[click.Parameter] = [*self.gateway_options()]
        lists: tuple[tuple[str, Callable[[click.Parameter], bool]], ...] = (
            ("Options", lambda one: one not in added),
            ("Options of the gateway", lambda one: one in added),
        )
        for title, belongs in lists:
            shown = [one for one in self.get_params(ctx) if isinstance(one, click.Option) and belongs(one)]
            records = [one.get_help_record(ctx) for one in shown]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])


def pass_on(
    options: list[GatewayOption], values: Mapping[str, Any]
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """The given values as options (name and value) and as environment variables of a gateway.

    Raises `click.UsageError` with what the gateway would say to them.
    """
    from inflight import _native

    arguments: list[tuple[str, str]] = []
    environment: dict[str, str] = {}
    everything = ["inflight gateway", "--worker=127.0.0.1:1"]
    for option in options:
        value = values[str(option.name)]
        given = [] if value is None else list(value) if option.multiple else [value]
        everything += [f"--{option.declared.flag}={one}" for one in given]
        if option.declared.environment is None:
            arguments += [(option.declared.flag, str(one)) for one in given]
        elif given:
            environment[option.declared.environment] = str(given[-1])
    problem = _native.check_gateway_arguments(everything)
    if problem is not None:
        raise click.UsageError(problem + _origins(options, problem))
    return arguments, environment


def _origins(options: list[GatewayOption], problem: str) -> str:
    """Where the options that the problem names have their values from, where that is not the command line."""
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return ""
    named = [
        one
        for one in options
        if re.search(rf"--{re.escape(one.declared.flag)}(?![\w-])", problem) is not None
    ]
    found = {origin for one in named if (origin := origin_of(ctx, str(one.name))) is not None}
    return f" (from {', '.join(f'`{one}`' for one in sorted(found))})" if found else ""
