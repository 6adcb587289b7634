"""The help of every command calls values and bounds alike: docs/STYLE.md says how."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from inflight.cli.app import inflight
from inflight.cli.bench_requests import requests
from inflight.cli.declared import Option, bounds_of

#: Has the help of commands that are Rust's.
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
#: A unit or a kind in capitals, such as SECONDS or HOST:PORT, or the values, such as [text|json].
VALUE = re.compile(r"(https?://)?[A-Z\[][A-Z:=/,|\[\]]*(\.\.\.)?|\[\w+(\|\w+)+\]")
#: Of options of commands that are Rust's, as clap writes them.
CLAP = re.compile(r"^ +(?:-\w, )?(--[\w-]+) \[?<([^>]+)>", re.MULTILINE)
CLAP_VALUE = re.compile(r"(https?://)?[A-Z\[][A-Z:=/,|\[\]]*|[a-z0-9_]+(\|[a-z0-9_]+)+")


def commands(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[click.Context]:
    """The command and all below it, each with the context that its help has."""
    context = click.Context(command, info_name=name, parent=parent, help_option_names=["-h", "--help"])
    yield context
    if isinstance(command, click.Group):
        for one in command.list_commands(context):
            found = command.get_command(context, one)
            assert found is not None
            yield from commands(found, one, context)


ALL = [*commands(inflight, "inflight"), *commands(requests, "requests")]


@pytest.mark.parametrize("context", ALL, ids=lambda context: context.command_path)
def test_values_and_bounds_are_called_alike(context: click.Context) -> None:
    for one in context.command.get_params(context):
        if not isinstance(one, click.Option) or one.is_flag:
            continue
        assert isinstance(one, Option), f"{one.opts} is declared past `inflight.cli.declared`"
        assert VALUE.fullmatch(one.make_metavar(context)), (one.opts, one.make_metavar(context))
    shown = context.command.get_help(context)
    assert re.findall(r"RANGE|INTEGER|FLOAT|BOOLEAN|x[<>]=?|[<>]=?x|default: \(", shown) == []
    # One bracket has the variable, the default and the bounds.
    assert re.findall(r"\]\s+\[(?:default|env|at|above)[^\]]*\]", shown) == []


def test_commands_of_rust_call_values_alike() -> None:
    found = CLAP.findall(PAGE.read_text(encoding="utf-8"))
    assert len(found) > 100
    assert [one for one in found if not CLAP_VALUE.fullmatch(one[1])] == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (click.IntRange(1), "at least 1"),
        (click.IntRange(max=3), "at most 3"),
        (click.FloatRange(0, 2), "0 to 2"),
        (click.FloatRange(0, min_open=True), "above 0"),
        (click.FloatRange(0, 1, min_open=True), "above 0 and at most 1"),
        (click.IntRange(0, 65535), ""),
        (click.INT, ""),
    ],
)
def test_bounds_are_words(kind: click.ParamType[Any], words: str) -> None:
    assert bounds_of(kind) == words


def test_a_default_in_words_is_with_the_rest() -> None:
    length = Option(["--max-len"], help="Tokens  [default: the longest]", type=click.IntRange(1))
    context = click.Context(click.Command("x"))
    assert length.get_help_record(context) == (
        "--max-len TOKENS",
        "Tokens  [default: the longest; at least 1]",
    )
