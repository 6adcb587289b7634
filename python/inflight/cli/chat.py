"""`inflight chat`: a conversation in the terminal, or one answer with `--message`. Owns the conversation
and its commands; HTTP is `inflight.client`'s.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

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
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The gateway")
@click.option("--model", metavar="NAME", help="The model's name  [default: the first one served]")
@click.option("--api-key", envvar="INFLIGHT_API_KEY", show_envvar=True, metavar="KEY", help="Its key")
@click.option("--system", metavar="TEXT", help="A system message to begin with")
@click.option("--message", "-m", metavar="TEXT", help="Ask once, print the answer and end")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longest answer, in tokens")
@click.option("--temperature", type=click.FloatRange(0, 2), help="Randomness of the answer")
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
    for piece in pieces:
        click.echo(piece, nl=False)
    click.echo()


def _talk(conversation: Conversation, model: str) -> None:
    """Turn by turn until /quit, end of input, or Ctrl-C at the prompt; Ctrl-C in an answer ends that."""
    # readline gives `input` editing and history by being imported.
    import readline  # noqa: F401

    from rich.console import Console

    from inflight.errors import InflightError

    console = Console(highlight=False)
    console.print(f"[bold]{model}[/bold]  [dim]{COMMANDS}[/dim]")
    while True:
        try:
            text = console.input("\n[bold cyan]you[/bold cyan] ").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if text in ("/quit", "/exit"):
            return
        if text == "/reset":
            conversation.reset()
            console.print("[dim]forgotten[/dim]")
            continue
        if not text:
            continue
        if text.startswith("/"):
            console.print(f"[dim]no such command. {COMMANDS}[/dim]")
            continue
        console.print(f"[bold green]{model}[/bold green] ", end="")
        pieces = conversation.ask(text)
        try:
            for piece in pieces:
                # Not markup: a model may write brackets.
                console.out(piece, end="", highlight=False)
            console.print()
        except KeyboardInterrupt:
            pieces.close()  # type: ignore[attr-defined]
            console.print(" [dim](stopped)[/dim]")
        except InflightError as error:
            # The conversation continues: the server may come back.
            console.print(f"\n[red]error:[/red] {error.what}", highlight=False)
