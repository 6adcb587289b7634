"""`inflight top`: a gateway and its workers now. Owns its options and the screen; what figures mean is
`client.metrics`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from inflight.cli.declared import option
from inflight.errors import InflightError

if TYPE_CHECKING:
    from inflight.client.metrics import Figures, Page, WorkerRow

#: Tenths of a second more than a screen's eye needs, and a scrape costs microseconds.
INTERVAL_S = 1.0
TIMEOUT_S = 5.0
LARGEST_PAGE = 16 << 20
NO_ACCESS = "shows its workers to clients with a key only; pass `--api-key`"


@click.command()
@click.argument("url", default="http://127.0.0.1:8000")
@option("--api-key", envvar="INFLIGHT_API_KEY", show_envvar=True, metavar="KEY", help="Its key")
@option(
    "--worker-metrics",
    "workers",
    multiple=True,
    metavar="HOST:PORT",
    help="Metrics address of a worker, for its KV cache; repeat for several",
)
@option(
    "--interval-s",
    type=click.FloatRange(min=0.1, max=3600),
    default=INTERVAL_S,
    show_default=True,
    help="Seconds between two readings",
)
@option("--count", type=click.IntRange(min=1), help="Readings to print before ending; for scripts")
@option("--json", "as_json", is_flag=True, help="One JSON object for each reading")
def top(
    url: str,
    api_key: str | None,
    workers: tuple[str, ...],
    interval_s: float,
    count: int | None,
    as_json: bool,
) -> None:
    """Show workers, streams, tokens and latencies live.

    URL is a gateway's. Ctrl-C ends. The tokens of an answer that is not streamed count when it ends.
    """
    import json
    import sys
    import time
    from contextlib import nullcontext
    from dataclasses import asdict

    from rich.console import Console
    from rich.live import Live

    from inflight.client.metrics import cache_use, figures

    has_access = _has_access(url, api_key)
    if not has_access:
        click.echo(f"{click.style('warning:', fg='yellow', bold=True)} `{url}` {NO_ACCESS}", err=True)
    console = Console()
    is_live = count is None and not as_json and sys.stdout.isatty()
    before = _page(url, api_key)
    shown = 0
    with Live(console=console, screen=True, auto_refresh=False) if is_live else nullcontext() as live:
        while count is None or shown < count:
            time.sleep(interval_s)
            now = _page(url, api_key)
            found, rows = figures(before, now), _workers(url, api_key, now)
            caches = {address: cache_use(_page(f"http://{address}", None)) for address in workers}
            before, shown = now, shown + 1
            if as_json:
                reading = {**asdict(found), "workers": [asdict(row) for row in rows], "kv_cache": caches}
                click.echo(json.dumps(reading))
            elif live is not None:
                live.update(_screen(url, found, rows, caches, has_access=has_access), refresh=True)
            else:
                console.print(_screen(url, found, rows, caches, has_access=has_access))


def _page(url: str, api_key: str | None) -> Page:
    import time

    from inflight.client.metrics import parse

    return parse(_get(url, "/metrics", api_key).decode("utf-8", "replace"), time.monotonic())


class _KeyRefused(InflightError):
    """The gateway asks for a key, and this is not one."""


def _has_access(url: str, api_key: str | None) -> bool:
    """Whether the gateway shows its workers: to those without a key, it does so only if it asks for none.
    Its metrics are open. Raises `InflightError` for a wrong key.
    """
    try:
        _get(url, "/v1/models", api_key)
    except _KeyRefused:
        if api_key is not None:
            raise
        return False
    return True


def _workers(url: str, api_key: str | None, page: Page) -> list[WorkerRow]:
    import json

    from inflight.client.metrics import GATEWAY, WorkerRow

    active = page.by(GATEWAY + "worker_active", "worker")
    health = json.loads(_get(url, "/health/ready", api_key))
    return [
        WorkerRow(
            address=worker["address"],
            is_ready=worker["ready"],
            active=round(active.get(worker["address"], 0.0)),
            reason=worker.get("reason", ""),
        )
        for worker in health.get("workers", [])
    ]


def _get(url: str, path: str, api_key: str | None) -> bytes:
    """The body, whatever the status: a gateway that is not ready answers 503 with the reasons."""
    import urllib.error
    import urllib.request

    from inflight.errors import UserMistake

    if not url.startswith(("http://", "https://")):
        raise UserMistake(f"`{url}` is not a URL of a server", "write it like `http://127.0.0.1:8000`")
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    request = urllib.request.Request(url.rstrip("/").removesuffix("/v1") + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return bytes(response.read(LARGEST_PAGE))
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return error.read(LARGEST_PAGE)
        if error.code == 401:
            raise _KeyRefused(f"`{url}` refuses the key", "pass a valid `--api-key`") from error
        raise InflightError(f"`{url}{path}` answered `{error.code}`", "is it an Inflight gateway?") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InflightError(
            f"`{url}` does not answer: {reason}", "start one with `inflight serve`, or pass its URL"
        ) from error


def _screen(
    url: str, found: Figures, rows: list[WorkerRow], caches: dict[str, float | None], *, has_access: bool
) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from inflight.cli.terminal import printable

    head = Table(box=None, show_header=False, pad_edge=False)
    for name, value in (
        ("requests", f"{found.requests_per_s:,.1f}/s, {found.open_requests:,} open"),
        ("server errors", f"{found.failed_per_s:,.1f}/s"),
        ("tokens", _tokens(found)),
        ("first token", _latency(found.first_token_s)),
        ("between tokens", _latency(found.between_tokens_s)),
        *((f"KV cache of {address}", _percent(share)) for address, share in caches.items()),
    ):
        head.add_row(Text(name, style="bold"), value)
    table = Table(box=None, pad_edge=False)
    for title in ("worker", "state", "requests"):
        table.add_column(title, justify="right" if title == "requests" else "left")
    for row in rows:
        state = Text("ready", style="green")
        if not row.is_ready:
            state = Text(printable(row.reason) or "not ready", style="yellow")
        table.add_row(printable(row.address), state, f"{row.active:,}")
    missing = "the gateway has no workers" if has_access else f"the gateway {NO_ACCESS}"
    return Group(Text(url, style="bold"), head, Text(""), table if rows else Text(missing))


def _tokens(found: Figures) -> str:
    rates = f"{found.tokens_out_per_s:,.0f}/s generated, {found.tokens_in_per_s:,.0f}/s of prompts"
    # Otherwise a server that works would look like one that hangs.
    waits = found.open_requests > 0 and found.tokens_out_per_s == 0
    return rates + (" (answers that are not streamed count when they end)" if waits else "")


def _latency(both: tuple[float | None, float | None]) -> str:
    half, most = both
    if half is None or most is None:
        return "-"
    return f"{1000 * half:,.1f} ms p50, {1000 * most:,.1f} ms p99"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"
