"""`inflight chat`: a conversation in the terminal, or one answer with `--message`. Owns the conversation
and its commands; HTTP is `inflight.client`'s.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from inflight.cli.declared import option
from inflight.cli.terminal import printable, printable_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from inflight.client.openai import OpenAIClient

COMMANDS = "`/reset` forgets the conversation, `/quit` ends it."


class Conversation:
    """The turns so far; an answer that was cut short is kept as far as it came."""

    def __init__(self, client: OpenAIClient, model: str, system: str | None, fields: dict[str, Any]) -> None:
        self._client = client
        self._model = model
        self._system = system
        self._fields = fields
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forgets everything but the system message."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def ask(self, text: str) -> Iterator[str]:
        """Streams the answer to `text` and remembers both."""
        self.messages.append({"role": "user", "content": text})
        answer: list[str] = []
        try:
            for piece in self._client.chat(self._model, self.messages, **self._fields):
                answer.append(piece)
                yield piece
        finally:
            if answer:
                self.messages.append({"role": "assistant", "content": "".join(answer)})
            else:
                # Nothing came: the next turn starts from what both sides know.
                self.messages.pop()


@click.command()
@option("--url", default="http://127.0.0.1:8000", show_default=True, help="The gateway")
@option("--model", metavar="NAME", help="The model's name  [default: the first one served]")
@option("--api-key", envvar="INFLIGHT_API_KEY", show_envvar=True, metavar="KEY", help="Its key")
@option("--system", metavar="TEXT", help="A system message to begin with")
@option("--message", "-m", metavar="TEXT", help="Ask once, print the answer and end")
@option("--max-tokens", type=click.IntRange(min=1), help="Longest answer, in tokens")
@option("--temperature", type=click.FloatRange(0, 2), help="Randomness of the answer")
def chat(
    url: str,
    model: str | None,
    api_key: str | None,
    system: str | None,
    message: str | None,
    max_tokens: int | None,
    temperature: float | None,
) -> None:
    """Chat with a model in the terminal.

    In a terminal, pasted lines are one turn, and Alt-Enter begins a new line.
    Input that is not a terminal is read line by line, one turn each.
    """
    from inflight.client.openai import OpenAIClient
    from inflight.errors import InflightError

    client = OpenAIClient(url, api_key)
    if model is None:
        models = client.models()
        if not models:
            raise InflightError(f"the server at `{url}` has no model", "wait until its worker is ready")
        model = models[0]
    given = {"max_tokens": max_tokens, "temperature": temperature}
    fields = {name: value for name, value in given.items() if value is not None}
    conversation = Conversation(client, model, system, fields)
    try:
        if message is not None:
            _print_plain(conversation.ask(message))
        elif sys.stdin.isatty():
            _talk(conversation, model)
        else:
            for line in sys.stdin:
                if line.strip():
                    _print_plain(conversation.ask(line.strip()))
    finally:
        client.close()


def _print_plain(pieces: Iterator[str]) -> None:
    # A file or another program gets the text as it is.
    shown = printable_text if sys.stdout.isatty() else str
    for piece in pieces:
        click.echo(shown(piece), nl=False)
    click.echo()


def _talk(conversation: Conversation, model: str) -> None:
    """Turn by turn until /quit, end of input, or Ctrl-C at the prompt; Ctrl-C in an answer ends that."""
    from rich.console import Console
    from rich.markup import escape

    from inflight.cli.prompt import Prompt

    console = Console(highlight=False)
    console.print(f"[bold]{escape(printable(model))}[/bold]  [dim]{COMMANDS}[/dim]")
    prompt = Prompt()
    unanswered = ""
    while True:
        try:
            text = prompt.ask(unanswered).strip()
        except (EOFError, KeyboardInterrupt):
            return
        unanswered = ""
        if text in ("/quit", "/exit"):
            return
        if text == "/reset":
            conversation.reset()
            console.print("[dim]forgotten[/dim]")
        elif text.startswith("/") and "\n" not in text:
            console.print(f"[dim]no such command. {COMMANDS}[/dim]")
        elif text and not _answer(conversation, model, text, console):
            # To be sent again, or changed.
            unanswered = text


def _answer(conversation: Conversation, model: str, text: str, console: Console) -> bool:
    """Prints the answer to `text` as it comes; false if nothing came."""
    from rich.cells import cell_len
    from rich.markup import escape

    from inflight.cli.wrap import WordWrap
    from inflight.errors import InflightError

    name = printable(model)
    console.print(f"[bold green]{escape(name)}[/bold green] ", end="")
    wrap = WordWrap(lambda: console.width, column=cell_len(name) + 1)
    has_come = False
    pieces = conversation.ask(text)
    try:
        for piece in pieces:
            has_come = True
            # Not markup: a model may write brackets. Nor Rich's own lines: it sees pieces of them only.
            print(wrap.feed(piece), end="", flush=True)
        print(wrap.finish())
    except KeyboardInterrupt:
        pieces.close()  # type: ignore[attr-defined]
        print(wrap.finish(), end="")
        console.print(" [dim](stopped)[/dim]")
    except InflightError as error:
        # The conversation continues: the server may come back.
        print(wrap.finish())
        console.print(f"[red]error:[/red] {escape(printable(error.what))}")
    return has_come
