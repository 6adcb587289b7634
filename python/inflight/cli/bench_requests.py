"""`inflight bench requests`: options, progress and exit codes; the run is `inflight.bench`'s."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inflight.cli.declared import option
from inflight.cli.options import Finite, connection_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from inflight.bench.run import Measured
    from inflight.bench.workload import Planned
    from inflight.client.kserve import Connection

#: A threshold was not kept; 1 is for requests that failed, 2 for a mistaken command line.
EXIT_THRESHOLD = 3
#: How often progress is printed, to a terminal and to a log.
TERMINAL_S, LOG_S = 0.5, 10.0


@click.command()
@connection_options
@option("--model", "--model-name", default="tensorrt_llm", show_default=True, help="Name of the core model")
@option("--dataset", type=click.Path(path_type=Path), metavar="FILE", help="File of requests in JSON")
@option(
    "--tokenizer",
    "--tokenizer-dir",
    "tokenizer",
    metavar="DIRECTORY",
    help="Tokenize a dataset's text with its `tokenizer.json`  [default: the server's `preprocessing`]",
)
@option(
    "--tokens-per-word",
    "--op-tokens-per-word",
    "per_word",
    type=Finite(0, min_open=True),
    default=1.3,
    show_default=True,
    help="Tokens to generate for each word of a dataset's expected answers",
)
@option(
    "--input-mean",
    metavar="TOKENS",
    type=Finite(1),
    default=128,
    show_default=True,
    help="Mean prompt length in tokens",
)
@option(
    "--input-stdev",
    metavar="TOKENS",
    type=Finite(0),
    default=0,
    show_default=True,
    help="Its standard deviation",
)
@option(
    "--output-mean",
    metavar="TOKENS",
    type=Finite(1),
    default=64,
    show_default=True,
    help="Mean tokens to generate",
)
@option(
    "--output-stdev",
    metavar="TOKENS",
    type=Finite(0),
    default=0,
    show_default=True,
    help="Its standard deviation",
)
@option(
    "--lengths",
    type=click.Choice(["normal", "exponential"]),
    default="normal",
    show_default=True,
    help="Distribution of both lengths",
)
@option(
    "--histogram",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw both lengths from buckets in JSON or CSV instead, as NVIDIA's `token-from-histogram`",
)
@option(
    "--vocab-size",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Exclusive upper bound of the ids in random prompts",
)
@option(
    "--max-input-len",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Skip longer prompts, as NVIDIA's script does",
)
@option(
    "-n", "--num-requests", type=click.IntRange(1), help="Requests to send  [default: the file's; else 100]"
)
@option(
    "-c",
    "--concurrency",
    type=click.IntRange(1, 1024),
    default=128,
    show_default=True,
    help="Most requests that run at the same time",
)
@option(
    "--request-rate",
    type=float,
    help="Requests a second  [default: each as another ends; with `replay`, the dataset's pace]",
)
@option(
    "--arrivals",
    "--time-delay-dist",
    type=click.Choice(["constant", "exponential", "exponential_dist", "replay"]),
    default="exponential",
    show_default=True,
    help="Distribution of the times between requests; `replay` takes the dataset's `timestamp`",
)
@option("--streaming/--no-streaming", default=True, show_default=True, help="Also measure first tokens")
@option(
    "--warmup", type=click.IntRange(0), default=0, show_default=True, help="Requests before the measured ones"
)
@option(
    "--seed",
    type=click.IntRange(0),
    default=420,
    show_default=True,
    help="Random seed of lengths, ids and arrivals",
)
@option(
    "--timeout-s",
    type=Finite(0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds to wait for a response",
)
@option(
    "--fail-above",
    multiple=True,
    metavar="METRIC=VALUE",
    help="Exit with 3 if METRIC is above VALUE, as p99=2s",
)
@option(
    "--fail-below",
    multiple=True,
    metavar="METRIC=VALUE",
    help="Exit with 3 if it is below, as output-tokens-per-s=100",
)
@option("--html", type=click.Path(path_type=Path), metavar="FILE", help="File for a report with curves")
@option(
    "--csv",
    "--op-stats-csv",
    "csv",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File for a row per request",
)
@option("--json", "as_json", is_flag=True, help="Print JSON")
@option("-q", "--quiet", is_flag=True, help="Print no progress")
def requests(**options: Any) -> int:
    """Send requests to a core model at a rate, and report the latency of whole requests.

    Prompts come from a dataset, or are random ids of random lengths. Latency
    counts from the time when a request was due.

    Metrics of thresholds: avg, p50, p90, p99 and max of the latency, ttft-p99
    and the like of the first token, itl-p99 and the like of the time per token,
    all in milliseconds; failed, requests-per-s, output-tokens-per-s. The exit
    status is 1 if a request failed and 3 if a threshold was not kept.
    """
    import numpy as np

    from inflight.bench import page, report
    from inflight.bench.run import Sender, run
    from inflight.bench.workload import due
    from inflight.client.connect import connect
    from inflight.errors import UserMistake

    thresholds = [report.Threshold.parse(text, is_upper=True) for text in options["fail_above"]]
    thresholds += [report.Threshold.parse(text, is_upper=False) for text in options["fail_below"]]
    rate = options["request_rate"]
    if rate is not None and rate < 0:
        # NVIDIA's -1: all at once.
        rate = None
    if rate == 0:
        raise UserMistake("`--request-rate 0` sends nothing", "pass a rate above 0, or none")

    def open_connection() -> Connection:
        return connect(options["protocol"], options["url"], options["api_key"], options["timeout_s"])

    random = np.random.default_rng(options["seed"])
    planned = _planned(options, random, open_connection)
    arrivals = options["arrivals"].removesuffix("_dist")
    planned = due(planned, rate, arrivals, random)
    sender = Sender(open_connection, options["model"], options["streaming"])
    if options["warmup"]:
        before = due(planned[: options["warmup"]], None, "constant", random)
        run(before, sender, options["concurrency"], lambda _ended, _running: None, LOG_S)
    shown = _Progress(len(planned), quiet=options["quiet"])
    measured = run(planned, sender, options["concurrency"], shown.show, shown.every_s)
    summary = report.summarize(measured)
    if options["as_json"]:
        click.echo(json.dumps(summary.object()))
    else:
        rows = report.table(summary)
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            click.echo(f"{name:<{width}}  {value}")
    if options["html"] is not None:
        asked = [
            (name, str(value))
            for name, value in options.items()
            if name != "api_key" and value not in (None, ())
        ]
        options["html"].write_text(page.page(measured, summary, asked), encoding="utf-8")
    if options["csv"] is not None:
        options["csv"].write_text(report.as_csv(measured), encoding="utf-8")
    broken = [said for threshold in thresholds if (said := threshold.broken(summary)) is not None]
    for said in broken:
        click.echo(f"threshold: {said}", err=True)
    if broken:
        return EXIT_THRESHOLD
    return 1 if summary.failed or len(measured) < len(planned) else 0


def _planned(options: dict[str, Any], random: np.random.Generator, open_connection: Any) -> list[Planned]:
    """The requests, with their ids."""
    from dataclasses import replace

    from inflight.bench import dataset, histogram
    from inflight.bench.workload import lengths, random_requests
    from inflight.client.text import LocalText, ServerText
    from inflight.errors import UserMistake

    if options["dataset"] is not None and options["histogram"] is not None:
        raise UserMistake("`--dataset` and `--histogram` were given", "pass one of them")
    longest = options["max_input_len"]
    count = options["num_requests"]
    if options["dataset"] is None:
        if options["histogram"] is not None:
            pairs = histogram.read(options["histogram"]).pairs(count, random)
        else:
            count = count or 100
            kind = options["lengths"]
            inputs = lengths(count, options["input_mean"], options["input_stdev"], kind, random)
            outputs = lengths(count, options["output_mean"], options["output_stdev"], kind, random)
            pairs = list(zip(inputs, outputs, strict=True))
        kept = [pair for pair in pairs if longest is None or pair[0] <= longest]
        found = random_requests([i for i, _ in kept], [o for _, o in kept], options["vocab_size"], random)
    else:
        found = dataset.read(options["dataset"], options["vocab_size"], random, options["per_word"])[:count]
        if any(one.text is not None for one in found):
            connection = open_connection()
            try:
                text = LocalText(options["tokenizer"]) if options["tokenizer"] else ServerText(connection)
                found = [
                    one if one.text is None else replace(one, ids=tuple(text.encode([one.text])[0]))
                    for one in found
                ]
            finally:
                connection.close()
        found = [one for one in found if longest is None or len(one.ids) <= longest]
    if not found:
        raise UserMistake(f"no prompt has at most `{longest}` tokens", "pass a larger `--max-input-len`")
    return found


class _Progress:
    """One line that changes in a terminal; now and then a line in a log."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet
        self._is_terminal = sys.stderr.isatty()
        self.every_s = TERMINAL_S if self._is_terminal else LOG_S

    def show(self, ended: Sequence[Measured], running: int) -> None:
        """How far the run is."""
        if self._quiet:
            return
        failed = sum(one.error is not None for one in ended)
        done = [one for one in ended if one.error is None]
        latency = (
            f", {sum(one.latency_s for one in done) / len(done) * 1e3:.0f} ms on average" if done else ""
        )
        line = f"{len(ended)} of {self._total} requests, {failed} failed{latency}"
        end = "\r" if self._is_terminal and running else "\n"
        click.echo(f"\x1b[2K{line}{end}" if self._is_terminal else f"{line}\n", err=True, nl=False)
