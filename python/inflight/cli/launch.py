"""`inflight launch`: everything that a topology file describes, here. Owns its options and what is checked
before anything starts.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inflight.cli.declared import option

if TYPE_CHECKING:
    from inflight.launch.plan import LaunchPlan
    from inflight.launch.topology import Model, Topology


@click.command()
@click.argument("topology", type=click.Path(path_type=Path))
@option("--plan", "show_plan", is_flag=True, help="Print the processes, and start none")
@option("--json", "as_json", is_flag=True, help="Print the plan as JSON")
@option(
    "--render",
    "plane",
    type=click.Choice(["slurm", "kubernetes", "compose", "systemd"]),
    help="Write the files for this platform instead of starting anything",
)
@option(
    "--reload",
    "is_reload",
    is_flag=True,
    help="Replace what has changed in the running `inflight launch` of this file, one after the other, by"
    " what the file says now; all workers where none has changed; no request fails",
)
@option("--output", type=click.Path(path_type=Path), metavar="DIRECTORY", help="Directory for `--render`")
@click.pass_context
def launch(
    ctx: click.Context,
    topology: Path,
    show_plan: bool,
    as_json: bool,
    plane: str | None,
    is_reload: bool,
    output: Path | None,
) -> None:
    """Run every worker and gateway of a topology.

    Runs on this machine until Ctrl-C. TOPOLOGY is a YAML file; `docs/reference/topology.md` lists its keys.
    """
    from inflight.errors import UserMistake
    from inflight.launch.control import path_of
    from inflight.launch.plan import plan

    if as_json and not show_plan:
        raise UserMistake("`--json` has no effect without `--plan`", "add `--plan`")
    if (plane is None) != (output is None):
        given, missing = ("--render", "--output DIR") if output is None else ("--output", "--render")
        raise UserMistake(f"`{given}` needs `{missing}`", f"add `{missing}`")
    if is_reload and (show_plan or plane is not None):
        raise UserMistake("`--reload` starts nothing new to show or write", "leave the other options out")
    if plane is None:
        _forget_variables()
    described = _read(topology)
    if is_reload:
        ctx.exit(_reload(topology))
    if show_plan:
        worker_file = str(path_of(topology, "workers"))
        _show(plan(described, as_root=os.geteuid() == 0, worker_file=worker_file), as_json=as_json)
        return
    if plane is not None and output is not None:
        _write(described, plane, output)
        return
    ctx.exit(run(described, _require_models(described), file=topology))


def _forget_variables() -> None:
    """The topology alone says what its processes are."""
    from inflight import _native
    from inflight.cli.layers import forget_variables, option_names
    from inflight.cli.worker import worker

    forget_variables(
        [
            *option_names([*worker.params, *worker.worker_options]),
            *(one.flag for one in _native.gateway_options()),
        ]
    )


def run(topology: Topology, model_name: str, file: Path | None = None) -> int:
    """Starts and supervises it; returns the exit code. `model_name` is for the request to paste; with the
    `file` that says it all, processes can be replaced.
    """
    from inflight.cli.output import Output
    from inflight.cli.report import TerminalReport
    from inflight.launch.cautions import cautions
    from inflight.launch.control import path_of
    from inflight.launch.placing import gateway_ports, place
    from inflight.launch.plan import plan
    from inflight.launch.ports import require_free
    from inflight.launch.run import require_launchers, supervise

    as_root = os.geteuid() == 0
    control = None if file is None else path_of(file, "sock")
    worker_file = None if file is None else str(path_of(file, "workers"))
    processes = plan(topology, as_root=as_root, worker_file=worker_file)
    require_launchers(processes)

    def again() -> LaunchPlan:
        assert file is not None
        described = _read(file)
        _require_models(described)
        return plan(described, as_root=as_root, worker_file=worker_file)

    for port in gateway_ports(topology.gateways):
        require_free(topology.gateways.host, port, topology.key("gateways.port"))
    indices = {id(model): index for index, model in enumerate(topology.models)}
    for worker in place(topology):
        where = f"models[{indices[id(worker.model)]}]"
        for name, port in worker.ports.items():
            require_free("127.0.0.1", port, topology.key(f"{where}.{name}"))
    output = Output()
    gateways = topology.gateways
    environment = {**os.environ, **dict(gateways.environment)}
    options = {name.replace("_", "-"): value for name, value in gateways.options}
    for caution in cautions(topology, environment):
        click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {caution}", err=True)
    key = bool({"api-key", "api-key-file"} & options.keys()) or gateways.api_key_file is not None
    log_format = options.get("log-format", environment.get("INFLIGHT_LOG_FORMAT"))
    names = [spec.name for spec in processes.processes]
    report = TerminalReport(
        output,
        names,
        model_name,
        key=key or "INFLIGHT_API_KEY" in environment,
        prefix=log_format != "json",
    )
    key_file = gateways.api_key_file or options.get("api-key-file")
    fixed = environment.get("INFLIGHT_API_KEY") or options.get("api-key")

    def api_key() -> str | None:
        return fixed or (_first_key(Path(key_file)) if key_file else None)

    has_keys = fixed is not None or key_file is not None
    code = supervise(processes, report, control=control, again=again, api_key=api_key if has_keys else None)
    output.flush()
    return code


def _read(file: Path) -> Topology:
    """The topology of the file, with its options checked. Raises `UserMistake`."""
    from inflight import _native
    from inflight.cli.worker import worker
    from inflight.launch.topology_file import check_names, read

    described = read(file)
    check_names(
        described,
        [str(one.name) for one in (*worker.params, *worker.worker_options)],
        [option.flag.replace("-", "_") for option in _native.gateway_options()],
    )
    _check_gateways(described)
    return described


def _reload(file: Path) -> int:
    from inflight.cli.terminal import printable
    from inflight.launch.control import ask_reload, path_of

    problem = ask_reload(path_of(file, "sock"), lambda text: click.echo(printable(text)))
    if problem:
        click.echo(
            f"{click.style('error:', fg='red', bold=True)} the reload failed: {printable(problem)}", err=True
        )
    return 1 if problem else 0


def _first_key(path: Path) -> str | None:
    """As the file has it now: the gateway takes up changes as well."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return None
    return next((line for line in lines if line and not line.startswith("#")), None)


def _require_models(topology: Topology) -> str:
    """Refuses models that no worker could serve, before any starts; the first one's name."""
    from inflight import executors
    from inflight.errors import UserMistake
    from inflight.launch.model import find_model

    for index, model in enumerate(topology.models):
        try:
            executors.require(model.executor)
            found = find_model(
                model.path,
                model.name,
                weights=model.executor in executors.NEED_WEIGHTS,
                executor=model.executor,
            )
            found.executor_options(dict(model.executor_options))
            if found.file is not None:
                _require_ranks(model, found.file)
        except UserMistake as error:
            raise UserMistake(f"`models[{index}]`: {error.what}", error.remedy) from error
    return topology.models[0].served_name


def _require_ranks(model: Model, file: Path) -> None:
    """Refuses a `model.yaml` for several GPUs where the topology plans one for each worker."""
    from inflight.errors import UserMistake
    from inflight.model import llmapi

    held = llmapi.read(file)
    for key, name in (("tp_size", "tensor_parallel_size"), ("pp_size", "pipeline_parallel_size")):
        planned, wanted = getattr(model, key), held.size(name)
        if planned == 1 and wanted > 1:
            raise UserMistake(
                f"`{key}` is `{planned}`, and `{name}` in `{file}` is `{wanted}`",
                f"set `{key}` to `{wanted}`",
            )


def _check_gateways(topology: Topology) -> None:
    """Refuses what a gateway would refuse, before a model is loaded."""
    from inflight import _native
    from inflight.errors import UserMistake
    from inflight.launch.plan import gateway_arguments

    gateways = topology.gateways
    _, *arguments = gateway_arguments(
        topology, ["127.0.0.1:1"], host=gateways.host, port=gateways.port, api_key_file=gateways.api_key_file
    )
    problem = _native.check_gateway_arguments(["inflight gateway", *arguments])
    if problem is not None:
        raise UserMistake(f"`gateways`: {problem}", "correct the value")


def _write(topology: Topology, plane: str, output: Path) -> None:
    from inflight.launch.render import render

    output.mkdir(parents=True, exist_ok=True)
    for name, text in render(topology, plane).items():
        path = output / name
        path.write_text(text, encoding="utf-8")
        click.echo(f"wrote {path}")


def _show(processes: LaunchPlan, *, as_json: bool) -> None:
    import json

    from inflight.cli.terminal import printable
    from inflight.launch.plan import describe

    described = describe(processes)
    if as_json:
        click.echo(json.dumps(described, indent=2))
        return
    for number, process in enumerate(processes.processes, 1):
        shown = described[number - 1]
        click.echo(f"{number}. {click.style(process.name, bold=True)}")
        if process.after:
            click.echo(f"   after    {', '.join(process.after)}")
        for name, value in shown["environment"].items():  # type: ignore[attr-defined]
            click.echo(f"   env      {printable(f'{name}={value}')}")
        click.echo(f"   command  {printable(shlex.join(shown['command']))}")  # type: ignore[arg-type]
        click.echo(f"   ready    {shown['ready']}")
        click.echo(f"   stop     SIGTERM, killed after {process.stop_grace_s:g} s")
