"""`inflight repository`: Triton model repositories from the command line. Owns options and exit codes; what
is written and what is wrong is `inflight.repository`'s.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click

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


@click.group()
def repository() -> None:
    """Write, check and fill Triton model repositories."""


def _flags(command: Any) -> Any:
    from inflight.repository.create import options

    known = options()
    for flag, option in reversed(FLAGS.items()):
        parameter = known[option]
        default = f"  [default: {parameter.default}]" if parameter.default else ""
        command = click.option(
            "--" + flag.replace("_", "-"),
            flag,
            metavar="VALUE",
            help=parameter.meaning.capitalize() + "." + default,
        )(command)
    return command


@repository.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Where the repository goes.")
@click.option(
    "--backend",
    type=click.Choice(["tensorrtllm", "python"]),
    default="python",
    show_default=True,
    help="The core model: NVIDIA's C++ backend, or Inflight's executors in Triton's Python backend.",
)
@_flags
@click.option("--options", "file", type=click.Path(path_type=Path), help="Options by name in a YAML file.")
@click.option(
    "--set", "pairs", multiple=True, metavar="NAME=VALUE", help="Any option; see `repository options`."
)
@click.option("--force", is_flag=True, help="Replace the models that are there.")
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
    from inflight.repository import create as writer

    if not directory.is_dir():
        raise UserMistake(f"`{directory}` is not a directory", "give the engine's or the model's directory")
    where = str(directory.resolve())
    given = {"engine_dir": where}
    if (directory / "tokenizer.json").is_file():
        given["tokenizer_dir"] = where
    given |= _from_file(file) if file else {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserMistake(f"`--set {pair}` has no `=`", "write `--set NAME=VALUE`")
        given[name] = value
    given |= {FLAGS[flag]: value for flag, value in flags.items() if value is not None}
    if "tokenizer_dir" not in given:
        raise UserMistake(
            f"`{directory}` has no `tokenizer.json`", "give the tokenizer's with `--tokenizer-dir`"
        )
    given["tokenizer_dir"] = str(Path(given["tokenizer_dir"]).resolve())
    writer.create(output, backend, writer.settings(given, backend), force=force)
    click.echo(f"wrote {output}; start it with `tritonserver --model-repository={output}`")


@repository.command()
def options() -> None:
    """List every option of `create`, with its default."""
    from inflight.repository.create import options as known

    for name, parameter in known().items():
        default = "not set" if parameter.default is None else parameter.default
        click.echo(f"{name}  {parameter.kind}  [{default}]  {parameter.meaning}")


@repository.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.pass_context
def check(ctx: click.Context, directory: Path) -> None:
    """Name every problem of the repository in DIRECTORY; exit status 2 if there is one."""
    from inflight.repository.check import check as find

    found = find(directory)
    for one in found:
        click.echo(f"{one.where}: {'note: ' if one.is_note else ''}{one.what}", err=True)
    problems = [one for one in found if not one.is_note]
    if problems:
        click.echo(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}", err=True)
        ctx.exit(UserMistake.exit_code)
    click.echo(f"{directory}: no problem found")


@repository.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("substitutions")
@click.option("-i", "--in-place", "--in_place", is_flag=True, help="Change FILE and print nothing.")
def fill(file: Path, substitutions: str, in_place: bool) -> None:
    """Fill the `${placeholders}` of FILE with SUBSTITUTIONS, `key:value,key:value`."""
    from inflight.repository import fill as filler

    try:
        template = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserMistake(f"`{file}` cannot be read: {error}", "give a config.pbtxt template") from error
    filled = filler.fill(template, filler.substitutions(substitutions))
    for key in filled.unused:
        click.echo(f"note: `{file}` has no place for `{key}`", err=True)
    if filled.unset:
        names = ", ".join(f"`{key}`" for key in filled.unset)
        click.echo(f"note: not set, the backend takes its own defaults: {names}", err=True)
    if in_place:
        file.write_text(filled.text, encoding="utf-8")
    else:
        click.echo(filled.text, nl=False)


def _from_file(file: Path) -> dict[str, str]:
    yaml: Any = import_module("yaml")
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserMistake(
            f"`{file}` is not YAML that can be read: {error}", "write `name: value` lines"
        ) from error
    if not isinstance(values, dict) or any(isinstance(value, (dict, list)) for value in values.values()):
        raise UserMistake(f"`{file}` does not hold plain options", "write `name: value` lines")
    return {str(name): str(value) for name, value in values.items() if value is not None}
