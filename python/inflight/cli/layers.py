"""Options from the environment and from a file, for whatever a command line does not say: a flag wins over a
variable, a variable over the file, the file over the default.

Owns how the variables are called. Which options there are is each command's; how a file is read is the native
core's, as for `inflight gateway`, which does the same by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import click
from click.core import ParameterSource

from inflight.cli.declared import Option

#: Before an option's name in capitals.
PREFIX = "INFLIGHT_"
#: What a service's address looks like in the variables that Kubernetes sets for a Service called `inflight`.
SERVICE = ("tcp://", "udp://")
#: Commands that hand their arguments to Rust.
RUST = ("gateway", "bench", "simulate")
#: Variables that processes inherit from the command that starts them.
INHERITED = frozenset({"INFLIGHT_LOG", "INFLIGHT_LOG_FORMAT", "INFLIGHT_API_KEY"})
#: Of `click.Context.meta`: the variable or file that a parameter's value is from, by the parameter's name.
ORIGINS = "inflight.origins"
#: How alike a variable's name and an option's are where the one is a slip of the other: `PROT` and `PORT`.
ALIKE = 0.75
HELP = (
    "File of options in TOML, such as `max-connections = 100`. Flags win over it, and so do environment"
    " variables: `INFLIGHT_` and an option's name, such as `INFLIGHT_MAX_CONNECTIONS`, with commas between"
    " several values"
)


class ConfigOption(Option):
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


def name_origin(error: click.BadParameter) -> click.BadParameter:
    """The error with the variable or file that has the value, where the command line has not."""
    if error.ctx is None or error.param is None or error.param_hint is not None:
        return error
    origin = origin_of(error.ctx, str(error.param.name))
    if origin is not None:
        error.param_hint = f"{error.param.get_error_hint(error.ctx)} (from `{origin}`)"
    return error


def origin_of(ctx: click.Context, name: str) -> str | None:
    """The variable or file that the parameter's value is from; `None` for the command line and defaults."""
    if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP:
        return None
    origin: str | None = ctx.meta.get(ORIGINS, {}).get(name)
    return origin


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
    origins: dict[str, str] = ctx.meta.setdefault(ORIGINS, {})
    for name, texts in (_read(file, known) if file else {}).items():
        one = known[name]
        origins[str(one.name)] = str(file)
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
            origins[str(one.name)] = _variable(name)
    _warn_of_slips(known, ctx.find_root())
    ctx.default_map = {**(ctx.default_map or {}), **values}


def _warn_of_slips(known: Iterable[str], root: click.Context) -> None:
    """Warns of variables whose names are nearly those of options, and forgets them: the processes that a
    command starts need not warn again. Others may be of another program, such as Kubernetes.
    """
    variables = {_variable(name): name for name in (*known, "config")}
    for given, text in sorted(os.environ.items()):
        is_other = not given.startswith(PREFIX) or given in variables or given in INHERITED
        if is_other or "_SERVICE_" in given or text.startswith(SERVICE):
            continue
        bare = {name.removeprefix(PREFIX): name for name in variables}
        near = get_close_matches(given.removeprefix(PREFIX), list(bare), n=1, cutoff=ALIKE)
        if near and given not in _variables_of_all(root):
            warning = f"no option has the environment variable `{given}`; did you mean `{bare[near[0]]}`?"
            click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {warning}", err=True)
            del os.environ[given]


def _variables_of_all(root: click.Context) -> set[str]:
    """Of every command's options: one environment may serve several commands."""
    from inflight import _native

    names = {one.flag for one in _native.gateway_options()}
    commands = [root.command]
    while commands:
        command = commands.pop()
        # A command keeps the help option that it makes first, by the names that its context has.
        ctx = click.Context(command, parent=root)
        names |= _by_name(command.get_params(ctx)).keys()
        if isinstance(command, click.Group):
            found = (command.get_command(ctx, name) for name in command.list_commands(ctx))
            commands += [one for one in found if one is not None]
    return {_variable(name) for name in names}


def _is_list(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.multiple


def _read(file: str, known: dict[str, click.Parameter]) -> dict[str, list[str]]:
    from inflight import _native
    from inflight.errors import UserMistake

    try:
        return _native.read_option_file(file, list(known))
    except ValueError as error:
        raise UserMistake(str(error), "correct the file, or leave `--config` out") from error
