"""`inflight serve`: workers of one model and a gateway in front of them, until Ctrl-C. Owns its options;
they stand for keys of a topology, and the plan and the loop are `inflight.launch`'s.
"""

from __future__ import annotations

from pathlib import Path

import click

from inflight.cli.options import PORT, model_options, named_options

#: Keys of the topology by the options that stand for them, for messages.
SPELLED = (
    ("gateways.port", "--port"),
    *(
        (f"models[0].{name}", f"--{name.replace('_', '-')}")
        for name in ("grpc_port", "metrics_port", "gpus", "tp_size", "pp_size", "replicas", "executor")
    ),
    ("models[0].path", "MODEL"),
    ("models[0].name", "--served-model-name"),
)


@click.command()
@model_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the HTTP port")
@click.option("--port", type=PORT, default=8000, show_default=True, help="HTTP port; 0 picks a free port")
@click.option(
    "--grpc-port",
    type=PORT,
    default=8001,
    show_default=True,
    help="The worker's KServe gRPC port, on this machine only, 2 more for each further worker; 0 picks a free"
    " port",
)
@click.option(
    "--metrics-port",
    type=PORT,
    default=8002,
    show_default=True,
    help="The worker's metrics port, on this machine only, 2 more for each further worker; 0 picks a"
    " free port",
)
@click.option(
    "--executor",
    type=click.Choice(["reference", "simulated", "tensorrt_llm"]),
    default="reference",
    show_default=True,
    help="What generates the tokens",
)
@click.option(
    "--replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Workers of the model"
)
@click.option(
    "--tp-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Tensor parallelism: GPUs that share every layer",
)
@click.option(
    "--pp-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Pipeline parallelism: groups of GPUs with a share of the layers each",
)
@click.option(
    "--gpus",
    metavar="LIST",
    help="GPUs of the workers, by index or UUID, MIG slices too: `0,1;2,3` is for two replicas of two"
    "  [default: all are visible to every worker]",
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
    replicas: int,
    tp_size: int,
    pp_size: int,
    gpus: str | None,
    api_key: str | None,
) -> None:
    """Serve a model: workers and a gateway together.

    Behind the OpenAI API, until Ctrl-C.
    MODEL is a Hugging Face checkpoint directory or a directory written by `inflight build`;
    without it, the embedded model is served as `inflight-demo`.
    """
    from inflight import executors
    from inflight.cli.launch import run
    from inflight.launch.model import find_model
    from inflight.launch.topology import Gateways, GpuOption, Model, Topology, check

    # The worker takes them as they are; a mistake is reported before anything starts.
    named = named_options(executor, executor_options)
    executors.require(executor)
    found = find_model(
        model, served_model_name, weights=executor in executors.NEED_WEIGHTS, executor=executor
    )
    topology = Topology(
        models=(
            Model(
                name=found.served_name,
                path=None if model is None else str(found.directory),
                executor=executor,
                device=device,
                replicas=replicas,
                tp_size=tp_size,
                pp_size=pp_size,
                mode=_mode(executor, found.directory, tp_size * pp_size),
                gpus=None if gpus is None else GpuOption("--gpus", "text", "").parse(gpus),
                grpc_port=grpc_port,
                metrics_port=metrics_port,
                executor_options=tuple(named.items()),
            ),
        ),
        gateways=Gateways(
            host=host,
            port=port,
            environment=() if api_key is None else (("INFLIGHT_API_KEY", api_key),),
        ),
        spelled=SPELLED,
    )
    check(topology)
    ctx.exit(run(topology, found.name_for_clients))


def _mode(executor: str, directory: Path, world_size: int) -> str:
    """Who starts the ranks, as the model needs it."""
    if executor != "tensorrt_llm" or world_size == 1:
        return "leader"
    from inflight.executors.tensorrt_llm import find_runtime

    return "pytorch" if find_runtime(directory) == "pytorch" else "leader"
