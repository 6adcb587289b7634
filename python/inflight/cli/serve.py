"""`inflight serve`: workers of one model and a gateway in front of them, until Ctrl-C. Owns its options;
they set keys of a topology, and the plan and the loop are `inflight.launch`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from inflight.cli.declared import option
from inflight.cli.gateway_options import NOT_TAKEN, CommandWithGateway, pass_on
from inflight.cli.layers import forget_variables, option_names
from inflight.cli.options import named_options
from inflight.cli.worker import refuse_foreign, refuse_unpublished, with_executor
from inflight.cli.worker_options import CommandWithWorker, made_of, simulated_names

#: Keys of the topology by the options that set them, for messages.
SPELLED = (
    ("gateways.port", "--port"),
    ("gateways.host", "--host"),
    ("gateways.api_key_file", "--api-key-file"),
    *(
        (f"models[0].{name}", f"--{name.replace('_', '-')}")
        for name in (
            *("grpc_port", "metrics_port", "kv_events_port", "kv_events_replay_port", "kv_events_topic"),
            *("gpus", "tp_size", "pp_size", "replicas", "executor"),
        )
    ),
    ("models[0].path", "MODEL"),
    ("models[0].name", "--served-model-name"),
)
#: Variables that a worker reads as well.
OF_BOTH = (
    "INFLIGHT_LOG",
    "INFLIGHT_LOG_FORMAT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_TRACES_SAMPLER_ARG",
)
PUBLIC_KEY = (
    "everyone on this machine can read the key of `--api-key`; use `INFLIGHT_API_KEY` or `--api-key-file`"
)


class ServeCommand(CommandWithGateway, CommandWithWorker):
    """Starts both, so that it takes the options of both."""

    #: The worker is for this machine only: the gateway has the same options for its own address.
    address: Mapping[str, str | None] = {
        "grpc_port": "The worker's KServe gRPC port, on this machine only, 2 more for each further worker; 0"
        " picks a free port",
        "metrics_port": "The worker's metrics port, on this machine only, 2 more for each further worker; 0"
        " picks a free port",
        "kv_events_port": "Publish what the worker's cache holds, as vLLM does, on this port of this machine,"
        " 2 more for each further worker; 0 picks a free port",
        "kv_events_replay_port": "Port where listeners ask for events that they missed, 2 more for each"
        " further worker; 0 picks a free port",
        "kv_events_topic": "Topic of the events, such as `kv@{worker}@MODEL`: `{worker}` becomes `worker`, or"
        " with `--replicas` `worker-0`, `worker-1` and so on",
        "kv_events_form": None,
    }


@click.command(cls=ServeCommand)
@with_executor
@option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Workers of the model")
@option(
    "--tp-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Tensor parallelism: GPUs that share every layer",
)
@option(
    "--pp-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Pipeline parallelism: groups of GPUs with a share of the layers each",
)
@option(
    "--gpus",
    metavar="LIST",
    help="GPUs of the workers, by index or UUID, MIG slices too: `0,1;2,3` is for two replicas of two"
    "  [default: all are visible to every worker]",
)
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    model: str | None,
    served_model_name: str | None,
    device: str,
    executor: str,
    executor_options: tuple[str, ...],
    add_model: tuple[str, ...],
    replicas: int,
    tp_size: int,
    pp_size: int,
    gpus: str | None,
    grpc_port: int | None,
    metrics_port: int | None,
    kv_events_port: int | None,
    kv_events_replay_port: int | None,
    kv_events_topic: str | None,
    **values: Any,
) -> None:
    """Serve a model behind the OpenAI API.

    Runs workers and a gateway until Ctrl-C.
    MODEL is the directory of a Hugging Face checkpoint, its name on the Hub (ORG/NAME or
    ORG/NAME@REVISION), or a directory written by `inflight build`;
    without it, the embedded model is served as `inflight-demo`.
    A repository of Triton's llmapi model, or its model.yaml, is served by TensorRT-LLM.
    """
    from inflight import _native, executors
    from inflight.cli.launch import run
    from inflight.launch.further import find_further
    from inflight.launch.model import executor_for, find_model
    from inflight.launch.topology import Drain, Gateways, GpuOption, Model, Topology, check
    from inflight.model import llmapi

    assert isinstance(ctx.command, CommandWithGateway)
    options = ctx.command.gateway_options()
    given, environment = pass_on(options, values)
    forget_variables([*option_names(ctx.command.get_params(ctx)), *NOT_TAKEN])
    refuse_unpublished(kv_events_port, kv_events_replay_port, add_model)
    of_gateway = {option.name for option in options}
    own = {name: value for name, value in values.items() if name not in of_gateway and value is not None}
    executor = executor_for(model, executor, is_chosen=_is_given(ctx, "executor"))
    # The worker takes them as they are; a mistake is reported before anything starts.
    refuse_foreign(executor, {name: own[name] for name in simulated_names() if name in own})
    of_worker = {one.name for one in _native.worker_options()}
    bounds = {name: value for name, value in own.items() if name in of_worker}
    ports = {"grpc_port": grpc_port, "metrics_port": metrics_port}
    ports |= {"kv_events_port": kv_events_port, "kv_events_replay_port": kv_events_replay_port}
    defaults = made_of(_native.WorkerOptions, **ports, **bounds)
    named = named_options(executor, executor_options)
    executors.require(executor)
    found = find_model(
        model, served_model_name, weights=executor in executors.NEED_WEIGHTS, executor=executor
    )
    further = find_further(
        add_model, found.name_for_clients, weights=executor in executors.NEED_WEIGHTS, executor=executor
    )
    found.executor_options(named)
    if found.file is not None:
        held = llmapi.read(found.file)
        tp_size = tp_size if _is_given(ctx, "tp_size") else held.size("tensor_parallel_size")
        pp_size = pp_size if _is_given(ctx, "pp_size") else held.size("pipeline_parallel_size")
    drain = Drain(worker_s=own.pop("drain_timeout_s", None), gateway_s=_number(values["shutdown_grace_s"]))
    placed = {"host", "port", "shutdown-grace-s"}
    topology = Topology(
        models=(
            Model(
                name=found.served_name,
                path=None if model is None else str(found.given),
                executor=executor,
                device=device,
                replicas=replicas,
                tp_size=tp_size,
                pp_size=pp_size,
                mode=_mode(executor, found.directory, tp_size * pp_size),
                gpus=None if gpus is None else GpuOption("--gpus", "text", "").parse(gpus),
                grpc_port=defaults.grpc_port,
                metrics_port=defaults.metrics_port,
                kv_events_port=kv_events_port,
                kv_events_replay_port=kv_events_replay_port,
                kv_events_topic=kv_events_topic,
                executor_options=tuple(named.items()),
                worker_options=(
                    *((name, str(value)) for name, value in own.items()),
                    *(("add_model", f"{other.served_name}={other.given}") for other in further),
                ),
                environment=tuple((name, environment[name]) for name in OF_BOTH if name in environment),
            ),
        ),
        gateways=Gateways(
            host=values["host"] or Gateways.host,
            port=Gateways.port if values["port"] is None else values["port"],
            options=tuple((flag, value) for flag, value in given if flag not in placed),
            environment=tuple(environment.items()),
        ),
        drain=drain,
        spelled=SPELLED,
    )
    check(topology)
    if ctx.get_parameter_source("api_key") is ParameterSource.COMMANDLINE:
        click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {PUBLIC_KEY}", err=True)
    ctx.exit(run(topology, found.name_for_clients))


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _mode(executor: str, directory: Path, world_size: int) -> str:
    """Who starts the ranks, as the model needs it."""
    if executor != "tensorrt_llm" or world_size == 1:
        return "leader"
    from inflight.executors.tensorrt_llm import find_runtime

    return "pytorch" if find_runtime(directory) == "pytorch" else "leader"
