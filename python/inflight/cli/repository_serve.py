"""`inflight repository serve`: what has to be there before tritonserver starts, and what is printed."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import click

from inflight.cli.output import Output
from inflight.errors import UserMistake
from inflight.triton.server.plan import LLMAPI_LAUNCH, ServerOptions, conflicts, plan
from inflight.triton.server.run import running
from inflight.triton.server.run import serve as watch

#: Where NVIDIA's images have it.
IN_IMAGES = "/opt/tritonserver/bin/tritonserver"


def serve(
    directory: Path | None,
    model_repo: Path | None,
    *,
    tritonserver: str | None,
    world_size: int,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    log: bool,
    log_file: str,
    core_models: str,
    multi_model: bool,
    disable_spawn_processes: bool,
    pool_bytes: int,
    mpirun: str,
    oversubscribe: bool,
    no_mpi: bool,
    llmapi_launch: bool,
    exit_timeout_s: int | None,
    force: bool,
    drain_timeout_s: float,
    dry_run: bool,
    more: tuple[str, ...],
) -> int:
    """The exit status. Raises `UserMistake` for what cannot start."""
    if model_repo is not None and directory is not None:
        # Behind `--`: the directory was named by the option.
        more, directory = (str(directory), *more), None
    where = directory or model_repo
    if where is None:
        raise UserMistake("there is no repository", "pass its DIRECTORY")
    stray = [one for one in more if not one.startswith("-")]
    if stray:
        raise UserMistake(
            f"`{stray[0]}` is not an option of tritonserver", "pass one repository, and write `--NAME=VALUE`"
        )
    if not any(where.glob("*/config.pbtxt")):
        raise UserMistake(
            f"`{where}` has no `MODEL/config.pbtxt`", "write one with `inflight repository create`"
        )
    if no_mpi and world_size > 1:
        raise UserMistake(
            f"`--no-mpi` with `--world-size {world_size}`: ranks are started by `mpirun`",
            "leave out one of them",
        )
    models = tuple(name.strip() for name in core_models.split(","))
    for model in models if world_size > 1 else ():
        if not (where / model / "config.pbtxt").is_file():
            raise UserMistake(
                f"`{where}` has no model `{model}`", "name the core model with `--tensorrt-llm-model-name`"
            )
    problem = conflicts([http_port, grpc_port, metrics_port])
    if problem is not None:
        raise problem
    program = tritonserver or shutil.which("tritonserver") or IN_IMAGES
    made = plan(
        ServerOptions(
            repository=str(where),
            tritonserver=program,
            world_size=world_size,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            core_models=models,
            log_file=log_file if log else None,
            multi_model=multi_model,
            spawn_processes=not disable_spawn_processes,
            gpus=_count_gpus() if multi_model else 0,
            multimodal_pool_bytes=pool_bytes,
            mpirun=mpirun,
            oversubscribe=oversubscribe,
            llmapi_launch=llmapi_launch,
            exit_timeout_s=exit_timeout_s,
            more=more,
        )
    )
    environment = [f"{name}={value}" for name, value in made.environment.items()]
    if dry_run:
        click.echo(shlex.join([*environment, *made.command]))
        return 0
    programs = {program: "install it, or pass `--tritonserver PATH`"}
    if world_size > 1:
        programs[mpirun] = "install it, or pass `--mpirun PATH`"
    if llmapi_launch:
        programs[LLMAPI_LAUNCH] = "install TensorRT-LLM, which has it, or leave out `--trtllm-llmapi-launch`"
    for needed, hint in programs.items():
        if shutil.which(needed) is None:
            raise UserMistake(f"`{needed}` is not a program on this machine", hint)
    others = [] if force else running()
    if others:
        raise UserMistake(
            f"tritonserver is already running, as process `{', '.join(map(str, others))}`",
            "stop it, or pass `--force` and other ports",
        )
    output = Output()
    try:
        return watch(made, lambda line: output.put(f"tritonserver | {line}"), drain_timeout_s)
    finally:
        output.flush()


def _count_gpus() -> int:
    from inflight.machine import find_installed

    return len(find_installed().gpus)
