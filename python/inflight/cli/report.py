"""What people see while processes are supervised. Decides nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import click

from inflight.cli.output import Output

#: Colors of the log prefixes, by the first word of a process's name.
COLORS = {"worker": "green", "gateway": "blue"}


class TerminalReport:
    """Writes to standard output; implements `inflight.launch.events.Report`."""

    def __init__(
        self, output: Output, names: Sequence[str], model_name: str, *, key: bool, prefix: bool = True
    ) -> None:
        self._say = output.put
        self._prefix = prefix
        self._width = max(map(len, names))
        self._model_name = model_name
        self._key = key

    def line(self, name: str, text: str) -> None:
        """A child's line behind its name, or alone for whatever collects logs."""
        if not self._prefix:
            self._say(text)
            return
        color = COLORS.get(re.split(r"[-.]", name)[0])
        self._say(f"{click.style(f'{name:<{self._width}} |', fg=color)} {text}")

    def ready(self, addresses: Mapping[str, str]) -> None:
        """The first gateway's URL and a request to paste."""
        from inflight.launch.plan import example

        gateways = [address for name, address in addresses.items() if name.startswith("gateway")]
        self._say("")
        if gateways:
            self._say(example(gateways[0], self._model_name, key=self._key))
        else:
            workers = ", ".join(f"{name} at {address}" for name, address in addresses.items())
            self._say(f"Ready: {workers}\n\nPress Ctrl-C to stop.")
        self._say("")

    def stopping(self) -> None:
        """Says that the signal was heard, and what the next one does."""
        self._say("stopping: waiting for open requests; press Ctrl-C again to end them", err=True)

    def restarting(self, sentence: str) -> None:
        """One line."""
        self._say(f"{click.style('warning:', fg='yellow', bold=True)} {sentence}", err=True)

    def reloading(self, sentence: str) -> None:
        """One line."""
        self._say(f"reload: {sentence.removeprefix('reload ')}", err=True)

    def failed(self, sentence: str) -> None:
        """One sentence."""
        self._say(f"{click.style('error:', fg='red', bold=True)} {sentence}", err=True)
