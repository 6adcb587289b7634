"""`inflight inspect`: what a directory is, what it needs, whether this machine serves it. Owns the table;
the facts are `inflight.build.inspect`'s.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from typing import Any, TypeVar

import click

from inflight.build.options import BY_NAME
from inflight.cli.declared import option
from inflight.cli.options import Choice, Finite
from inflight.cli.terminal import printable

Command = TypeVar("Command", bound=Callable[..., Any])


def _override(name: str, text: str) -> Callable[[Command], Command]:
    of_build = BY_NAME[name]
    kind: Any = Choice(of_build.choices) if of_build.choices else click.IntRange(min=1)
    return option(of_build.flag, name, type=kind, help=text)


@click.command()
@click.argument("directory", type=click.Path())
@_override("tp_size", "Tensor parallelism to assume  [default: the build's, else 1]")
@_override("pp_size", "Pipeline parallelism to assume  [default: the build's, else 1]")
@_override("quantization", "Format of the weights to assume  [default: the build's]")
@_override("kv_cache_dtype", "Format of the KV cache to assume  [default: the build's]")
@_override("tokens_per_block", "Tokens in a KV cache block  [default: the build's, else 32]")
@option(
    "--gpu-memory",
    # A petabyte: far beyond any GPU, and within what floats count exactly.
    type=Finite(min=0, min_open=True, max=1 << 20),
    metavar="GIB",
    help="Memory of each GPU  [default: this machine's]",
)
@option("--length", type=click.IntRange(min=1), help="Tokens of a sequence  [default: the longest]")
@option("--json", "as_json", is_flag=True, help="Print it as JSON")
def inspect(
    directory: str, gpu_memory: float | None, length: int | None, as_json: bool, **overrides: Any
) -> None:
    """Show what a checkpoint or engine is and needs.

    DIRECTORY is a Hugging Face checkpoint, or what `inflight build` wrote. Shows its weights and KV cache in
    bytes per GPU, what fits, and whether this machine serves it.
    """
    from pathlib import Path

    from inflight.build.inspect import inspect as inspect_directory
    from inflight.machine import find_installed

    found = inspect_directory(
        Path(directory),
        find_installed(),
        overrides={name: value for name, value in overrides.items() if value is not None},
        gpu_memory_bytes=None if gpu_memory is None else int(gpu_memory * (1 << 30)),
        length=length,
    )
    if as_json:
        click.echo(json_module.dumps(found, indent=2))
    else:
        _print_table(found)


def _print_table(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _rows(found):
        table.add_row(name, printable(value))
    Console(highlight=False, markup=False).print(table)


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    from inflight.model.memory import human_bytes

    model, needs, fits = found["model"], found["needs"], found["fits"]
    rows = [
        ("directory", found["directory"]),
        ("is", found["kind"]),
        ("architecture", f"{model['architecture']}, {model['dtype']}"),
        (
            "shape",
            f"{model['num_layers']} layers, hidden {model['hidden_size']}, {model['num_heads']} heads,"
            f" {model['num_kv_heads']} key-value heads, vocabulary {model['vocab_size']}",
        ),
    ]
    if model["num_experts"]:
        rows.append(("experts", f"{model['num_experts']}, {model['experts_per_token']} a token"))
    if found["llm_args"]:
        rows.append(("arguments of LLM", json_module.dumps(found["llm_args"], sort_keys=True)))
    longest = model["max_position_embeddings"]
    rows += [
        ("longest sequence", "not stated" if longest is None else f"{longest} tokens"),
        ("parameters", _count(needs["parameters"])),
        ("files", found["files"]),
        (
            "per GPU",
            f"{human_bytes(needs['weight_bytes'])} of weights,"
            f" {human_bytes(needs['kv_bytes_per_token'])} of KV cache a token"
            f" (tensor parallelism {needs['tp_size']}, pipeline parallelism {needs['pp_size']})",
        ),
    ]
    rows += [
        (
            f"in {human_bytes(fit['memory_bytes'])}",
            f"{fit['blocks']} blocks of {needs['tokens_per_block']} tokens,"
            f" {fit['max_batch_size']} sequences of {fit['length']} tokens"
            if fit["blocks"]
            else "the weights do not fit",
        )
        for fit in fits
    ]
    rows += [(f"serve: {entry['runtime']}", entry["verdict"]) for entry in found["runtimes"]]
    gpus = found["machine"]["gpus"]
    rows.append(("this machine", ", ".join(gpus) if gpus else "no NVIDIA GPU"))
    return rows


def _count(parameters: int) -> str:
    if parameters < 1e9:
        return f"{parameters / 1e6:.1f} million"
    return f"{parameters / 1e9:.1f} billion"
