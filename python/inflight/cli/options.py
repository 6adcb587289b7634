"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from inflight.cli.declared import option
from inflight.executors import DEVICES

Command = TypeVar("Command", bound=Callable[..., Any])

#: 0 asks the system for a free port.
PORT = click.IntRange(0, 65535)


def together(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """One decorator of several, in the order of the help."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


class Choice(click.Choice[str]):
    """One of TensorRT-LLM's words, which have underscores; dashes are accepted as well. The words of `hidden`
    are accepted and shown to nobody.
    """

    def __init__(self, choices: Sequence[str], hidden: Sequence[str] = ()) -> None:
        super().__init__(choices)
        self._hidden = tuple(hidden)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word as it is declared."""
        spelled = {choice.replace("_", "-"): choice for choice in (*self.choices, *self._hidden)}
        found = spelled.get(str(value).replace("_", "-"))
        if found is None:
            self.fail(f"{value!r} is not one of {', '.join(map(repr, self.choices))}.", param, ctx)
        return found


class Finite(click.FloatRange):
    """A number of a range; `nan` compares with nothing, and `inf` is never meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As `FloatRange`, and neither `nan` nor `inf`."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


#: MODEL, the executor and what they need; the same for `serve` and `worker`.
model_options = together(
    click.argument("model", required=False, type=click.Path()),
    option(
        "--served-model-name",
        metavar="NAME",
        help="The name clients use  [default: the directory's name; `inflight-demo` without MODEL]",
    ),
    option(
        "--device",
        type=click.Choice(DEVICES),
        default="auto",
        show_default=True,
        help="Where the reference executor computes",
    ),
    option(
        "--executor-option",
        "executor_options",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option by TensorRT-LLM's or Triton's name; `docs/reference/tensorrt-llm.md` lists them"
        "  (tensorrt_llm, reference)",
    ),
)


#: A KServe server and how to reach it; the same for `client` and `bench requests`.
connection_options = together(
    option(
        "-u",
        "--url",
        metavar="HOST:PORT",
        help="Address of the server  [default: localhost, port 8001 for grpc, 8000 for http]",
    ),
    option(
        "-i",
        "--protocol",
        type=click.Choice(["grpc", "http"]),
        default="grpc",
        show_default=True,
        help="Protocol to use; grpc needs `inflight-llm[client]`",
    ),
    option("--api-key", metavar="KEY", envvar="INFLIGHT_API_KEY", show_envvar=True, help="Key of a gateway"),
)


def named_options(executor: str, given: tuple[str, ...]) -> dict[str, str]:
    """The values of `--executor-option`; the executor knows their names and types.

    Raises `UserMistake` for one that is not NAME=VALUE, or that the executor would ignore.
    """
    from inflight.errors import UserMistake

    if given and executor not in ("tensorrt_llm", "reference"):
        raise UserMistake(
            f"`--executor-option` has no effect with the executor `{executor}`",
            "leave it out, or use `--executor tensorrt_llm` or `reference`",
        )
    options = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserMistake(
                f"`--executor-option` must be NAME=VALUE, got `{text}`", "pass it as NAME=VALUE"
            )
        options[name] = value
    return options
