"""`inflight repository create` and `convert`: which models are written, from which options, and what is said
of them. The commands' own options are `repository`'s; files and rules are `inflight.triton.repository`'s.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from inflight.cli.terminal import echo
from inflight.errors import UserMistake


def create(
    directory: Path, output: Path, backend: str, given: Mapping[str, str], *, prefix: str, force: bool
) -> None:
    """The five models for an engine or a model."""
    from inflight.model.tokenizer import has_tokenizer
    from inflight.triton.repository.create import create as write
    from inflight.triton.repository.options import settings

    if not directory.is_dir():
        raise UserMistake(f"`{directory}` is not a directory", "pass the engine's or the model's directory")
    where = str(directory.resolve())
    found = {"tokenizer_dir": where} if has_tokenizer(directory) else {}
    options = {"engine_dir": where, **found, **given}
    if "tokenizer_dir" not in options:
        raise UserMistake(
            f"`{directory}` has no tokenizer", "pass the tokenizer's directory with `--tokenizer-dir`"
        )
    for name in ("engine_dir", "tokenizer_dir"):
        if options[name]:
            # Triton starts elsewhere.
            options[name] = str(Path(options[name]).resolve())
    write(output, backend, settings(options, backend), prefix=prefix, force=force)
    _say_start(output)


def create_llmapi(
    model: str, output: Path, given: Mapping[str, str], sources: Path | None, *, prefix: str, force: bool
) -> None:
    """TensorRT-LLM's llmapi model, for a checkpoint or a name on the Hub."""
    from inflight.executors.tensorrt_llm import find_runtime
    from inflight.triton.repository.llmapi_create import create as write
    from inflight.triton.repository.llmapi_options import settings
    from inflight.triton.repository.llmapi_tables import CODE, FOLDERS, HELPERS, read_sources

    model = _place(model, "pass a checkpoint's directory or its name on the Hub (ORG/NAME)")
    if Path(model).is_dir() and find_runtime(Path(model)) == "engines":
        raise UserMistake(
            f"`{model}` is an engine, which the llmapi model does not run",
            "pass the Hugging Face checkpoint that it was built from",
        )
    options = dict(given)
    if options.get("tokenizer_dir"):
        hint = "pass a directory with a tokenizer or its name on the Hub (ORG/NAME)"
        options["tokenizer_dir"] = _place(options["tokenizer_dir"], hint)
    found = None if sources is None else read_sources(sources)
    write(output, settings(model, options), found, prefix=prefix, force=force)
    if found is not None:
        _say_start(output)
        return
    start = shlex.join(["inflight", "serve", str(output)])
    click.echo(
        f"wrote {output}; serve it with `{start}`. For Triton, copy {CODE} and {HELPERS} from"
        f" {FOLDERS[0]}/1 of TensorRT-LLM's sources, or pass the sources with `--sources`"
    )


def convert(
    old: Path,
    new: Path,
    checkpoint: Path,
    backend: str,
    sources: Path | None,
    chosen: Mapping[str, str],
    *,
    dry_run: bool,
    force: bool,
) -> None:
    """What becomes of every setting of the old repository; and the new one, if no decision is open."""
    from inflight.triton.repository.convert import convert as for_python
    from inflight.triton.repository.llmapi_convert import convert as for_llmapi

    if not (checkpoint / "config.json").is_file():
        raise UserMistake(f"`{checkpoint}` has no `config.json`", "pass a Hugging Face checkpoint")
    if os.path.realpath(old) == os.path.realpath(new):
        raise UserMistake(f"`{new}` is the old repository", "choose another directory")
    if sources is not None and backend != "llmapi":
        raise UserMistake("`--sources` has no effect without `--backend llmapi`", "leave it out")
    found = (for_llmapi if backend == "llmapi" else for_python)(old, checkpoint, chosen)
    for change in found.changes:
        echo(f"{change.state:<8}  {change.model}: {change.name}: {change.what}")
    write = _writer(backend, checkpoint, found.given, sources)
    open_ = [change.name for change in found.changes if change.state == "ask"]
    if open_ and not dry_run:
        raise UserMistake(
            f"your decision is needed for {', '.join(f'`{name}`' for name in open_)}",
            "pass each with `--set NAME=VALUE`; nothing was written",
        )
    if dry_run:
        return
    write(new, force)
    click.echo(f"wrote {new}; check it with `{shlex.join(['inflight', 'repository', 'check', str(new)])}`")


def _writer(
    backend: str, checkpoint: Path, given: Mapping[str, str], sources: Path | None
) -> Callable[[Path, bool], None]:
    """What writes a converted repository; its options are checked before."""
    if backend == "llmapi":
        from inflight.triton.repository.llmapi_create import create as write_one
        from inflight.triton.repository.llmapi_options import settings as of_llmapi
        from inflight.triton.repository.llmapi_tables import read_sources

        code = None if sources is None else read_sources(sources)
        made = of_llmapi(str(checkpoint), given)
        return lambda new, force: write_one(new, made, code, force=force)
    from inflight.triton.repository.create import create as write_five
    from inflight.triton.repository.options import settings

    values = settings(given, "python")
    return lambda new, force: write_five(new, "python", values, force=force)


def _place(model: str, hint: str) -> str:
    """A directory as Triton finds it, which starts elsewhere; a name on the Hub as it is."""
    from inflight.launch import hub

    if hub.is_hub_id(model):
        return model
    if not Path(model).is_dir():
        raise UserMistake(f"`{model}` is not a directory", hint)
    return str(Path(model).resolve())


def _say_start(output: Path) -> None:
    start = shlex.join(["inflight", "repository", "serve", str(output)])
    click.echo(f"wrote {output}; start it with `{start}`")
