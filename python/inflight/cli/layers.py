"""Options from the environment and from a file, for whatever a command line does not say: a flag wins over a
variable, a variable over the file, the file over the default.

Owns how the variables are called. Which options there are is each command's; how a file is read is the native
core's, as for `inflight gateway`, which does the same by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import click

#: Before an option's name in capitals.
PREFIX = "INFLIGHT_"
#: What a service's address looks like in the variables that Kubernetes sets for a Service called `inflight`.
SERVICE = ("tcp://", "udp://")
#: Commands that hand their arguments to Rust.
RUST = ("gateway", "bench")
#: Variables that processes inherit from the command that starts them.
INHERITED = frozenset({"INFLIGHT_LOG", "INFLIGHT_LOG_FORMAT", "INFLIGHT_API_KEY"})
HELP = (
    "File of options in TOML, such as `max-connections = 100`. Flags win over it, and so do environment"
    " variables: `INFLIGHT_` and an option's name, such as `INFLIGHT_MAX_CONNECTIONS`, with commas between"
    " several values"
)


class ConfigOption(click.Option):
    """`--config`. Read before the other options, whose defaults it replaces."""

    def __init__(self) -> None:
        super().__init__(
            ["--config"],
            metavar="FILE",
            is_eager=True,
            expose_value=False,
            callback=_apply,
            help=HELP,
        )


def with_layers(command: click.Command) -> click.Command:
    """The command, or every command of the group, with `--config` and variables for all its options."""
    if isinstance(command, click.Group):
        for one in command.commands.values():
            with_layers(one)
    elif command.name not in RUST and not any(isinstance(one, ConfigOption) for one in command.params):
        command.params.append(ConfigOption())
    return command


def forget_variables(names: Iterable[str]) -> None:
    """Removes the variables of options from the environment, so that processes which a command starts get
    their options from that command alone.
    """
    for name in names:
        variable = _variable(name)
        if variable not in INHERITED:
            os.environ.pop(variable, None)
    os.environ.pop(f"{PREFIX}CONFIG", None)


def option_names(parameters: Iterable[click.Parameter]) -> list[str]:
    """As people type them, without the dashes."""
    return list(_by_name(parameters))


def _variable(name: str) -> str:
    return PREFIX + name.upper().replace("-", "_")


def _by_name(parameters: Iterable[click.Parameter]) -> dict[str, click.Parameter]:
    found: dict[str, click.Parameter] = {}
    for one in parameters:
        if isinstance(one, ConfigOption) or "--help" in one.opts:
            continue
        if isinstance(one, click.Option):
            spelled = [text for text in one.opts if text.startswith("--")]
            if spelled:
                found[spelled[0].removeprefix("--")] = one
        elif one.nargs == 1:
            found[str(one.name).replace("_", "-")] = one
    return found


def _apply(ctx: click.Context, _parameter: click.Parameter, given: str | None) -> None:
    if ctx.resilient_parsing:
        return
    known = _by_name(ctx.command.get_params(ctx))
    file = given or os.environ.get(f"{PREFIX}CONFIG")
    values: dict[str, Any] = {}
    for name, texts in (_read(file, known) if file else {}).items():
        one = known[name]
        if _is_list(one):
            values[str(one.name)] = texts
        elif len(texts) == 1:
            values[str(one.name)] = texts[0]
        else:
            raise click.UsageError(f"`{name}` must have one value, in the file `{file}`", ctx)
    for name, one in known.items():
        text = os.environ.get(_variable(name), "")
        if text and not text.startswith(SERVICE):
            values[str(one.name)] = [part.strip() for part in text.split(",")] if _is_list(one) else text
    ctx.default_map = {**(ctx.default_map or {}), **values}


def _is_list(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.multiple


def _read(file: str, known: dict[str, click.Parameter]) -> dict[str, list[str]]:
    from inflight import _native
    from inflight.errors import UserMistake

    try:
        return _native.read_option_file(file, list(known))
    except ValueError as error:
        raise UserMistake(str(error), "correct the file, or leave `--config` out") from error
