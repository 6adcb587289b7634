"""`inflight serve`: a worker and a gateway in front of it, until Ctrl-C. Owns its options and what people
see; the plan and the loop are `inflight.launch`'s.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from inflight.cli.options import PORT, model_options, named_options
from inflight.cli.output import Output

#: Colours of the log prefixes, by process.
COLOURS = {"worker": "green", "gateway": "blue"}


class TerminalReport:
    """Writes to standard output; implements `inflight.launch.supervisor.Report`."""

    def __init__(self, output: Output, model_name: str, *, key: bool) -> None:
        self._say = output.put
        self._model_name = model_name
        self._key = key

    def line(self, name: str, text: str) -> None:
        """A child's line behind its name."""
        self._say(f"{click.style(f'{name:<7} |', fg=COLOURS.get(name))} {text}")

    def ready(self, addresses: Mapping[str, str]) -> None:
        """The URL and a request to paste."""
        from inflight.launch.plan import example

        self._say("")
        self._say(example(addresses["gateway"], self._model_name, key=self._key))
        self._say("")

    def stopping(self) -> None:
        """Says that the signal was heard, and what the next one does."""
        self._say("stopping: waiting for open requests; press Ctrl-C again to end them", err=True)

    def restarting(self, sentence: str) -> None:
        """One line."""
        self._say(f"{click.style('warning:', fg='yellow', bold=True)} {sentence}", err=True)

    def failed(self, sentence: str) -> None:
        """One sentence."""
        self._say(f"{click.style('error:', fg='red', bold=True)} {sentence}", err=True)


@click.command()
@model_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the HTTP port")
@click.option("--port", type=PORT, default=8000, show_default=True, help="HTTP port; 0 picks a free port")
@click.option(
    "--grpc-port",
    type=PORT,
    default=8001,
    show_default=True,
    help="The worker's KServe gRPC port, on this machine only; 0 picks a free port",
)
@click.option(
    "--metrics-port",
    type=PORT,
    default=8002,
    show_default=True,
    help="The worker's metrics port, on this machine only; 0 picks a free port",
)
@click.option(
    "--executor",
    type=click.Choice(["reference", "simulated", "tensorrt_llm"]),
    default="reference",
    show_default=True,
    help="What generates the tokens",
)
@click.option(
    "--api-key",
    envvar="INFLIGHT_API_KEY",
    show_envvar=True,
    metavar="KEY",
    help="Clients must send this key as a bearer token",
)
@click.pass_context
def serve(
    ctx: click.Context,
    model: str | None,
    served_model_name: str | None,
    device: str,
    host: str,
    port: int,
    grpc_port: int,
    metrics_port: int,
    executor: str,
    executor_options: tuple[str, ...],
    api_key: str | None,
) -> None:
    """Serve a model: worker and gateway together.

    Behind the OpenAI API, until Ctrl-C.
    MODEL is a Hugging Face checkpoint directory or a directory written by `inflight build`;
    without it, the embedded model is served as `inflight-demo`.
    """
    from inflight import executors
    from inflight.launch.model import find_model
    from inflight.launch.plan import ServeOptions, plan_serve
    from inflight.launch.ports import require_free
    from inflight.launch.run import supervise

    # The worker takes them as they are; a mistake is reported before anything starts.
    named_options(executor, executor_options)
    executors.require(executor)
    found = find_model(
        model, served_model_name, weights=executor in executors.NEED_WEIGHTS, executor=executor
    )
    plan = plan_serve(
        ServeOptions(
            model=None if model is None else str(found.directory),
            served_model_name=found.served_name,
            host=host,
            port=port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            executor=executor,
            executor_options=executor_options,
            device=device,
            api_key=api_key,
        )
    )
    require_free(host, port, "--port")
    require_free("127.0.0.1", grpc_port, "--grpc-port")
    require_free("127.0.0.1", metrics_port, "--metrics-port")
    output = Output()
    code = supervise(plan, TerminalReport(output, found.name_for_clients, key=api_key is not None))
    output.flush()
    ctx.exit(code)
