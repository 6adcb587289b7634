"""OpenTelemetry's variables, as its specification has them: a value that cannot be used is a warning, and the
default applies. What can be used, the extension says.
"""

from __future__ import annotations

import os
from typing import Any

import click

#: Those that are options here.
VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_SAMPLER_ARG")


class TracedCommand(click.Command):
    """A command with options for traces, whose variables stop nothing."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Reads the variables before the options do."""
        take_variables()
        return super().make_context(*args, **kwargs)


def take_variables() -> None:
    """Replaces what cannot be used, for this process and those that it starts, and warns of it."""
    for name in VARIABLES:
        given = os.environ.get(name)
        if not given:
            continue
        from inflight import _native

        replaced = _native.trace_variable(name, given)
        if replaced is not None:
            os.environ[name], warning = replaced
            click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {warning}", err=True)
