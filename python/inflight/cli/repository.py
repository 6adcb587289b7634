"""`inflight repository`: Triton model repositories from the command line. Owns options and exit codes; what
is written and what is wrong is `inflight.triton.repository`'s.
"""

from __future__ import annotations

import os
import re
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from inflight.cli.declared import option
from inflight.cli.terminal import echo
from inflight.errors import UserMistake

#: These have their own flags; every other option is set by `--set` or in the YAML file.
FLAGS = {
    "max_batch_size": "triton_max_batch_size",
    "tokenizer_dir": "tokenizer_dir",
    "decoupled": "decoupled_mode",
    "logits_datatype": "logits_datatype",
    "max_beam_width": "max_beam_width",
    "executor": "executor",
    "exclude_input_in_output": "exclude_input_in_output",
    "kv_cache_free_gpu_mem_fraction": "kv_cache_free_gpu_mem_fraction",
}
#: What a kind of `tables.Parameter` is called in the help; other kinds are their values.
KINDS = {
    "count": "N",
    "int": "N",
    "fraction": "RATIO",
    "path": "DIRECTORY",
    "bool": "[true|false]",
}


@click.group()
def repository() -> None:
    """Write, check and fill Triton model repositories."""


def _flags(command: Any) -> Any:
    from inflight.triton.repository.options import options

    known = options()
    for flag, name in reversed(FLAGS.items()):
        parameter = known[name]
        default = f"  [default: {parameter.default}]" if parameter.default else ""
        command = option(
            "--" + flag.replace("_", "-"),
            flag,
            metavar=KINDS.get(parameter.kind, f"[{parameter.kind}]"),
            help=parameter.meaning[:1].upper() + parameter.meaning[1:] + default,
        )(command)
    return command


_sources = option(
    "--sources",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="Checkout of TensorRT-LLM, from which the code and the tensors of the llmapi model are copied",
)


@repository.command()
@click.argument("directory", type=click.Path(path_type=Path))
@option(
    "--output",
    metavar="DIRECTORY",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory to write the repository to",
)
@option(
    "--backend",
    type=click.Choice(["tensorrtllm", "python", "llmapi"]),
    default="python",
    show_default=True,
    help="The core model: NVIDIA's C++ backend, or Inflight's executors in Triton's Python backend;"
    " or NVIDIA's llmapi model alone",
)
@_sources
@_flags
@option(
    "--options",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Options by name in a YAML file",
)
@option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="Any option; see `repository options`")
@option(
    "--prefix",
    metavar="NAME",
    default="",
    help="Add a set of models to the repository, called NAME_ensemble and so on",
)
@option("--force", is_flag=True, help="Replace the models that are there")
def create(
    directory: Path,
    output: Path,
    backend: str,
    file: Path | None,
    pairs: tuple[str, ...],
    sources: Path | None,
    prefix: str,
    force: bool,
    **flags: str | None,
) -> None:
    """Write the five models for DIRECTORY, an engine or a model.

    With --backend llmapi, write TensorRT-LLM's llmapi model for DIRECTORY, a checkpoint or its name on the
    Hub: config.pbtxt and model.yaml.
    """
    if prefix and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", prefix):
        raise UserMistake(
            f"`--prefix {prefix}` is not a name of a model", "use letters, digits, `_`, `.`, `-`"
        )
    given = _from_file(file) if file else {}
    given |= _pairs(pairs)
    given |= {FLAGS[flag]: value for flag, value in flags.items() if value is not None}
    if os.path.realpath(output) == os.path.realpath(directory):
        raise UserMistake(f"`--output {output}` is the model's own directory", "choose another directory")
    from inflight.cli.repository_write import create as write
    from inflight.cli.repository_write import create_llmapi

    if backend == "llmapi":
        create_llmapi(str(directory), output, given, sources, prefix=prefix, force=force)
        return
    if sources is not None:
        raise UserMistake("`--sources` has no effect without `--backend llmapi`", "leave it out")
    write(directory, output, backend, given, prefix=prefix, force=force)


@repository.command()
def options() -> None:
    """List every option of `create`, with its default."""
    from inflight.triton.repository.options import options as known

    for name, parameter in known().items():
        default = "not set" if parameter.default is None else parameter.default
        click.echo(f"{name}  {parameter.kind}  [{default}]  {parameter.meaning}")


@repository.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.pass_context
def check(ctx: click.Context, directory: Path) -> None:
    """Name every problem of the repository in DIRECTORY; exit status 2 if there is one."""
    from inflight.triton.repository.check import check as find

    found = find(directory)
    for one in found:
        echo(f"{one.where}: {'note: ' if one.is_note else ''}{one.what}", err=True)
    problems = [one for one in found if not one.is_note]
    if problems:
        click.echo(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}", err=True)
        ctx.exit(UserMistake.exit_code)
    click.echo(f"{directory}: no problem found")


@repository.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@option(
    "--model",
    "checkpoint",
    metavar="DIRECTORY",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory of the Hugging Face checkpoint that the engine was built from",
)
@option(
    "--backend",
    type=click.Choice(["python", "llmapi"]),
    default="python",
    show_default=True,
    help="What NEW has: the same five models on Inflight's executor, or NVIDIA's llmapi model alone",
)
@_sources
@option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="Any option; see `repository options`")
@option("--dry-run", is_flag=True, help="Say what would change, and write nothing")
@option("--force", is_flag=True, help="Replace the models that are there")
def convert(
    old: Path,
    new: Path,
    checkpoint: Path,
    backend: str,
    sources: Path | None,
    pairs: tuple[str, ...],
    dry_run: bool,
    force: bool,
) -> None:
    """Turn the repository OLD, for an engine, into NEW, for its checkpoint.

    NEW has the same five models with the same tensors; the core model runs TensorRT-LLM's PyTorch runtime.
    With --backend llmapi, NEW has the one model that NVIDIA's backend has kept, and clients change.
    Reports what becomes of every setting. Writes nothing while one needs your decision.
    """
    from inflight.cli.repository_write import convert as write

    write(old, new, checkpoint.resolve(), backend, sources, _pairs(pairs), dry_run=dry_run, force=force)


@repository.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("substitutions")
@option("-i", "--in-place", "--in_place", is_flag=True, help="Change FILE and print nothing")
@option("--strict", is_flag=True, help="Refuse keys that FILE has no placeholder for")
def fill(file: Path, substitutions: str, in_place: bool, strict: bool) -> None:
    """Fill the `${placeholders}` of FILE with SUBSTITUTIONS, `key:value,key:value`."""
    from inflight.triton.repository import fill as filler

    try:
        template = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserMistake(f"`{file}` cannot be read: {error}", "pass a config.pbtxt template") from error
    filled = filler.fill(template, filler.substitutions(substitutions), strict=strict)
    for key in filled.unused:
        echo(f"warning: `{file}` has no placeholder `{key}`; its value is not used", err=True)
    if filled.unset:
        names = ", ".join(f"`{key}`" for key in filled.unset)
        echo(f"note: not set, so the backend uses its defaults: {names}", err=True)
    if in_place:
        _replace(file, filled.text)
    else:
        click.echo(filled.text, nl=False)


def _pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """The options of `--set`."""
    given = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserMistake(f"`--set {pair}` has no `=`", "pass `--set NAME=VALUE`")
        given[name] = value
    return given


def _replace(file: Path, text: str) -> None:
    """Writes the file whole: a full disk leaves the former one."""
    target = os.path.realpath(file)
    try:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(target), prefix=".fill-") as folder:
            fresh = Path(folder) / "filled"
            fresh.write_text(text, encoding="utf-8")
            fresh.chmod(os.stat(target).st_mode)
            fresh.replace(target)
    except OSError as error:
        raise UserMistake(
            f"`{file}` cannot be written: {error.strerror}", "fix this and retry; the file was not changed"
        ) from error


def _from_file(file: Path) -> dict[str, str]:
    yaml: Any = import_module("yaml")
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserMistake(f"`{file}` cannot be read: {error.strerror}", "pass a file of options") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise UserMistake(f"`{file}` is not valid YAML: {said}", "write `name: value` lines") from error
    if not isinstance(values, dict) or any(isinstance(value, (dict, list)) for value in values.values()):
        raise UserMistake(f"`{file}` does not contain plain options", "write `name: value` lines")
    return {str(name): str(value) for name, value in values.items() if value is not None}


@repository.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@option("--model-repo", "--model_repo", type=click.Path(path_type=Path), help="The same as DIRECTORY")
@option(
    "--world-size",
    "--world_size",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Ranks of the engine; one tritonserver each, under mpirun",
)
@option("--tritonserver", metavar="PATH", help="The program  [default: on PATH, or NVIDIA's image's]")
@option("--http-port", "--http_port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@option("--grpc-port", "--grpc_port", type=click.IntRange(1, 65535), default=8001, show_default=True)
@option("--metrics-port", "--metrics_port", type=click.IntRange(1, 65535), default=8002, show_default=True)
@option("--log", is_flag=True, help="Log verbosely, into the file")
@option(
    "--log-file",
    "--log_file",
    metavar="FILE",
    default="triton_log.txt",
    show_default=True,
    help="File for `--log`",
)
@option(
    "--tensorrt-llm-model-name",
    "--tensorrt_llm_model_name",
    "core_models",
    metavar="NAMES",
    default="tensorrt_llm",
    show_default=True,
    help="The core models, with commas; ranks above 0 load only these",
)
@option("--multi-model", "--multi_model", is_flag=True, help="Orchestrator mode: several models with engines")
@option(
    "--disable-spawn-processes",
    is_flag=True,
    help="With `--multi-model`: the ranks are those of the job, and none is started",
)
@option(
    "--multimodal-gpu0-cuda-mem-pool-bytes",
    "--multimodal_gpu0_cuda_mem_pool_bytes",
    "pool_bytes",
    type=click.IntRange(0),
    default=0,
    help="Triton's memory on GPU 0, for tensors between models",
)
@option("--mpirun", metavar="PATH", default="mpirun", show_default=True, help="Open MPI's launcher")
@option("--oversubscribe", is_flag=True, help="More ranks than slots, as some Slurm jobs need")
@option("--no-mpi", "--no_mpi", is_flag=True, help="Refuse more ranks than one, which need mpirun")
@option(
    "--trtllm-llmapi-launch",
    "--trtllm_llmapi_launch",
    "llmapi_launch",
    is_flag=True,
    help="TensorRT-LLM's launcher in front of every rank: only rank 0 is a tritonserver then",
)
@option(
    "--exit-timeout",
    "--exit_timeout",
    "exit_timeout_s",
    type=click.IntRange(0),
    metavar="SECONDS",
    help="How long tritonserver itself waits for its requests at its end  [default: its own]",
)
@option("-f", "--force", is_flag=True, help="Start although another tritonserver is running")
@option(
    "--drain-timeout-s",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="How long a stop may take before everything is killed",
)
@option("--dry-run", is_flag=True, help="Print the command and end")
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def serve(ctx: click.Context, /, directory: Path | None, model_repo: Path | None, **options: Any) -> None:
    """Run tritonserver on the repository in DIRECTORY, one process per rank.

    Arguments behind `--` go to every tritonserver. SIGTERM and Ctrl-C stop rank 0 first, which finishes its
    requests, then the others. The exit status is 0 after such a stop, and not 0 if tritonserver ended by
    itself.
    """
    from inflight.cli.repository_serve import serve as run

    ctx.exit(run(directory, model_repo, **options))
