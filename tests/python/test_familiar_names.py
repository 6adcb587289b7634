"""Names that people know from other servers: the error says what they are here."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from inflight.cli.app import inflight
from inflight.cli.build import build
from inflight.cli.familiar import COMMANDS, OPTIONS
from inflight.cli.serve import serve
from inflight.executors import options_of


def run(*arguments: str) -> str:
    result = CliRunner(catch_exceptions=False).invoke(inflight, arguments)
    assert result.exit_code == 2, result.output
    return result.output


def flags(command: click.Command) -> set[str]:
    context = click.Context(command, help_option_names=["-h", "--help"])
    return {flag for option in command.get_params(context) for flag in option.opts}


@pytest.mark.parametrize("command", ["serve", "worker"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "m"], "No such option '--model': pass MODEL without an option"),
        (["m", "--tensor-parallel-size", "2"], "use `--tp-size`"),
        (["m", "--tensor_parallel_size=2"], "use `--tp-size`."),
        (["m", "--dtype", "bfloat16"], "use `--executor-option dtype=VALUE`"),
        (["m", "--gpu-memory-utilization=0.9"], "kv_cache_free_gpu_mem_fraction=SHARE"),
        (["m", "--max-model-len", "4096"], "use `--max-seq-len`"),
        (["m", "--max_seq_len", "4096"], "No such option '--max_seq_len': use `--max-seq-len`."),
        (["m", "--hf-token=x"], "set the environment variable `HF_TOKEN`"),
        (["m", "--max-batch-sizes", "4"], "'--max-batch-size'"),
    ],
)
def test_another_servers_option_is_answered_with_ours(command: str, arguments: list[str], said: str) -> None:
    assert said in run(command, *arguments)


def test_a_worker_is_not_given_what_only_serve_has() -> None:
    assert "': with `inflight serve`, use `--tp-size`" in run("worker", "--tensor-parallel-size=2")
    assert "': use `--max-seq-len`" in run("worker", "--max-model-len=2")


def test_other_commands_know_nothing_of_it() -> None:
    assert "use `--executor-option" not in run("top", "--dtype=x")


def test_what_is_advised_exists() -> None:
    taken = flags(serve)
    assert not OPTIONS.keys() & taken
    executors = {**options_of("tensorrt_llm"), **options_of("reference")}
    for flag, advice in OPTIONS.items():
        ours = flags(build) if "`inflight build --" in advice else taken
        named = set(re.findall(r"--[a-z-]+", advice))
        assert named <= ours, flag
        assert set(re.findall(r"--executor-option ([a-z_]+)=", advice)) <= executors.keys(), flag
    for name, advice in COMMANDS.items():
        assert inflight.get_command(click.Context(inflight), name) is None
        for ours in re.findall(r"`inflight ([a-z]+)", advice):
            assert inflight.get_command(click.Context(inflight), ours) is not None, name


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("serv", "No such command 'serv'. Did you mean 'serve'?"),
        ("benc", "Did you mean 'bench'?"),
        (
            "run",
            "No such command 'run': use `inflight serve MODEL`, and `inflight chat` in another terminal.",
        ),
        ("pull", "`inflight serve ORG/NAME` downloads the model"),
        ("models", "`/v1/models` lists those that are served"),
        ("xyzzy", "No such command 'xyzzy'.\n"),
    ],
)
def test_an_unknown_command_is_answered_with_near_names(command: str, said: str) -> None:
    assert said in run(command)
