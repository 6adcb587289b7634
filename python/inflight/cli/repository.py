"""`inflight repository`: Triton model repositories from the command line. Owns options and exit codes; what
is written and what is wrong is `inflight.triton.repository`'s.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from inflight.cli.terminal import echo
from inflight.errors import UserMistake

#: Flags of their own; every other option is set by `--set` or in the YAML file.
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
    "count": "NUMBER",
    "int": "NUMBER",
    "fraction": "FRACTION",
    "path": "DIRECTORY",
    "bool": "[true|false]",
}


@click.group()
def repository() -> None:
    """Write, check and fill Triton model repositories."""


def _flags(command: Any) -> Any:
    from inflight.triton.repository.options import options

    known = options()
    for flag, option in reversed(FLAGS.items()):
        parameter = known[option]
        default = f"  [default: {parameter.default}]" if parameter.default else ""
        command = click.option(
            "--" + flag.replace("_", "-"),
            flag,
            metavar=KINDS.get(parameter.kind, f"[{parameter.kind}]"),
            help=parameter.meaning[:1].upper() + parameter.meaning[1:] + default,
        )(command)
    return command


@repository.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--output", required=True, type=click.Path(path_type=Path), help="Directory to write the repository to"
)
@click.option(
    "--backend",
    type=click.Choice(["tensorrtllm", "python"]),
    default="python",
    show_default=True,
    help="The core model: NVIDIA's C++ backend, or Inflight's executors in Triton's Python backend",
)
@_flags
@click.option("--options", "file", type=click.Path(path_type=Path), help="Options by name in a YAML file")
@click.option(
    "--set", "pairs", multiple=True, metavar="NAME=VALUE", help="Any option; see `repository options`"
)
@click.option("--force", is_flag=True, help="Replace the models that are there")
def create(
    directory: Path,
    output: Path,
    backend: str,
    file: Path | None,
    pairs: tuple[str, ...],
    force: bool,
    **flags: str | None,
) -> None:
    """Write the five models for DIRECTORY, an engine or a model."""
    from inflight.model.tokenizer import has_tokenizer
    from inflight.triton.repository.create import create as write
    from inflight.triton.repository.options import settings

    if not directory.is_dir():
        raise UserMistake(f"`{directory}` is not a directory", "pass the engine's or the model's directory")
    if os.path.realpath(output) == os.path.realpath(directory):
        raise UserMistake(f"`--output {output}` is the model's own directory", "choose another directory")
    where = str(directory.resolve())
    given = {"engine_dir": where}
    if has_tokenizer(directory):
        given["tokenizer_dir"] = where
    given |= _from_file(file) if file else {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserMistake(f"`--set {pair}` has no `=`", "pass `--set NAME=VALUE`")
        given[name] = value
    given |= {FLAGS[flag]: value for flag, value in flags.items() if value is not None}
    if "tokenizer_dir" not in given:
        raise UserMistake(
            f"`{directory}` has no tokenizer", "pass the tokenizer's directory with `--tokenizer-dir`"
        )
    for name in ("engine_dir", "tokenizer_dir"):
        if given[name]:
            # Triton starts elsewhere.
            given[name] = str(Path(given[name]).resolve())
    write(output, backend, settings(given, backend), force=force)
    start = shlex.join(["tritonserver", f"--model-repository={output}"])
    click.echo(f"wrote {output}; start it with `{start}`")


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
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("substitutions")
@click.option("-i", "--in-place", "--in_place", is_flag=True, help="Change FILE and print nothing")
def fill(file: Path, substitutions: str, in_place: bool) -> None:
    """Fill the `${placeholders}` of FILE with SUBSTITUTIONS, `key:value,key:value`."""
    from inflight.triton.repository import fill as filler

    try:
        template = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserMistake(f"`{file}` cannot be read: {error}", "pass a config.pbtxt template") from error
    filled = filler.fill(template, filler.substitutions(substitutions))
    for key in filled.unused:
        echo(f"note: `{file}` has no placeholder `{key}`", err=True)
    if filled.unset:
        names = ", ".join(f"`{key}`" for key in filled.unset)
        echo(f"note: not set, so the backend uses its defaults: {names}", err=True)
    if in_place:
        _replace(file, filled.text)
    else:
        click.echo(filled.text, nl=False)


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
