"""`inflight batch`: runs a file of requests and writes the results. Owns what is shown, and how an earlier
run is found; the batch itself is `inflight.client.batches`'.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inflight.cli.declared import option
from inflight.cli.options import together
from inflight.errors import InflightError, UserMistake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inflight.client.batches import Batch, Batches

    Command = Callable[..., Any]

#: Between two looks at the batch.
LOOK_S = 1.0
#: A server that restarts is back within this.
PATIENCE_S = 120.0
#: Between two lines of progress where standard error is a file or a pipe.
LINE_S = 10.0
#: Some lines have no answer; 1 is for what failed as a whole.
EXIT_LINES = 3
#: Errors of a file that are shown.
SHOWN = 20


def _server_options(command: Command) -> Command:
    options = (
        option("--url", default="http://127.0.0.1:8000", show_default=True, help="The gateway"),
        option("--api-key", envvar="INFLIGHT_API_KEY", show_envvar=True, metavar="KEY", help="Its key"),
    )
    return together(*options)(command)


@click.group()
def batch() -> None:
    """Run files of requests in the time that clients leave."""


@batch.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_server_options
@option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where results go  [default: FILE with `.results.jsonl`]",
)
@option(
    "--window", default="24h", show_default=True, metavar="HOURS", help="Requests that are left then expire"
)
@option("--new", "is_new", is_flag=True, help="Start over instead of resuming an earlier run of FILE")
def run(file: Path, url: str, api_key: str | None, output: Path | None, window: str, is_new: bool) -> None:
    """Run the requests of FILE and write their results.

    FILE has a request a line, as for OpenAI's batches: `custom_id`, `method`, `url` and `body`. The server
    runs them when no client waits, also when this command has ended: run it again to find the batch. Failed
    requests go to a second file with `.errors.jsonl`. Exit status 3 if there are any.
    """
    from inflight.client.batches import Batches, endpoint_of
    from inflight.client.openai import OpenAIClient

    output = output or file.with_name(file.stem + ".results.jsonl")
    failures = output.with_name(output.name.removesuffix(".jsonl").removesuffix(".results") + ".errors.jsonl")
    left = Left(output.with_name(output.name + ".batch"), url, file)
    client = OpenAIClient(url, api_key)
    batches = Batches(client)
    try:
        name = None if is_new else left.read()
        if name is None:
            endpoint = endpoint_of(file)
            name = batches.create(batches.upload(file), endpoint, window).id
            left.write(name)
            click.echo(f"batch `{name}`", err=True)
        else:
            click.echo(f"batch `{name}`, of an earlier run", err=True)
        try:
            ended = _watch(batches, name)
        except KeyboardInterrupt:
            click.echo("\nthe batch stays at the server. Run the command again to find it", err=True)
            raise
        if ended.status == "failed":
            left.forget()
            shown = "; ".join(ended.errors[:SHOWN]) or "the server does not say why"
            raise UserMistake(f"the server refused `{file}`: {shown}", "fix the file, then run it again")
        for source, target in ((ended.output_file, output), (ended.error_file, failures)):
            if source is not None:
                lines = batches.download(source, target)
                click.echo(f"{lines:,} in `{target}`")
        left.forget()
    finally:
        client.close()
    unanswered = ended.total - ended.completed
    if ended.status != "completed":
        raise InflightError(f"the batch is {ended.status}: {unanswered:,} of {ended.total:,} have no answer")
    if unanswered:
        sys.exit(EXIT_LINES)


@batch.command()
@click.argument("name", metavar="BATCH")
@_server_options
def cancel(name: str, url: str, api_key: str | None) -> None:
    """Stop the batch of this name; results so far are kept."""
    from inflight.client.batches import Batches
    from inflight.client.openai import OpenAIClient

    client = OpenAIClient(url, api_key)
    try:
        click.echo(f"batch `{name}` is {Batches(client).cancel(name).status}")
    finally:
        client.close()


class Left:
    """Which batch an unfinished run of a file was about: a small file next to its results."""

    def __init__(self, path: Path, url: str, file: Path) -> None:
        self._path = path
        self._url = url
        self._file = file

    def read(self) -> str | None:
        """The batch, if the run was of this file and this server."""
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return None
        if (
            not isinstance(found, dict)
            or found.get("url") != self._url
            or found.get("sha256") != self._digest()
        ):
            return None
        name = found.get("batch")
        return name if isinstance(name, str) else None

    def write(self, name: str) -> None:
        """Notes the batch."""
        noted = {"batch": name, "url": self._url, "sha256": self._digest()}
        self._path.write_text(json.dumps(noted) + "\n")

    def forget(self) -> None:
        """There is nothing left to find."""
        self._path.unlink(missing_ok=True)

    def _digest(self) -> str:
        digest = hashlib.sha256()
        with self._file.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
        return digest.hexdigest()


def _watch(batches: Batches, name: str) -> Batch:
    """Shows how far a batch is until it has ended; a server that restarts is waited for."""
    from inflight.client.openai import NoServer, Refused

    last_seen = time.monotonic()
    with _progress() as show:
        while True:
            try:
                found = batches.find(name)
            except (NoServer, Refused) as error:
                is_away = isinstance(error, NoServer) or error.status >= 500
                if not is_away or time.monotonic() - last_seen > PATIENCE_S:
                    raise
                time.sleep(LOOK_S)
                continue
            last_seen = time.monotonic()
            show(found)
            if found.is_final:
                return found
            time.sleep(LOOK_S)


@contextmanager
def _progress() -> Iterator[Callable[[Batch], None]]:
    """A bar on a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        shown = 0.0

        def line(found: Batch) -> None:
            nonlocal shown
            if found.is_final or time.monotonic() - shown >= LINE_S:
                shown = time.monotonic()
                click.echo(_text(found), err=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("validating", total=None, failed="")

        def bar(found: Batch) -> None:
            progress.update(
                task,
                description=found.status.replace("_", " "),
                total=found.total or None,
                completed=found.completed + found.failed,
                failed=f"[red]{found.failed:,} failed[/red]" if found.failed else "",
            )

        yield bar


def _text(found: Batch) -> str:
    done = found.completed + found.failed
    failed = f", {found.failed:,} failed" if found.failed else ""
    return f"{found.status.replace('_', ' ')}: {done:,} of {found.total:,}{failed}"
