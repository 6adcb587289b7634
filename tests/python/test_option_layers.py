"""Options from the environment and from `--config`: a flag wins over a variable, that over the file."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from inflight.cli.app import COMMANDS, inflight
from inflight.cli.layers import RUST, ConfigOption, forget_variables, with_layers


@click.command()
@click.argument("model", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=1)
@click.option("--name", "names", multiple=True)
@click.option("--dry-run", is_flag=True)
@click.option("--kind", type=click.Choice(["a", "b"]), required=True)
def command(model: str | None, port: int, names: tuple[str, ...], dry_run: bool, kind: str) -> None:
    click.echo(json.dumps([model, port, names, dry_run, kind]))


with_layers(command)


def run(*arguments: str, **variables: str) -> tuple[int, str]:
    result = CliRunner(env=variables).invoke(command, arguments)
    return result.exit_code, result.output


def test_each_layer_wins_over_those_below(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text('kind = "a"\nport = 2\nname = ["x", "y"]\ndry_run = true\nmodel = "m"\n')
    config = f"--config={file}"
    for arguments, variables, expected in (
        (["--kind=a"], {}, [None, 1, [], False, "a"]),
        ([config], {}, ["m", 2, ["x", "y"], True, "a"]),
        ([], {"INFLIGHT_CONFIG": str(file), "INFLIGHT_PORT": "3"}, ["m", 3, ["x", "y"], True, "a"]),
        (
            [config, "--port=4", "--name=z", "n"],
            {"INFLIGHT_PORT": "3", "INFLIGHT_NAME": "v", "INFLIGHT_KIND": "b", "INFLIGHT_MODEL": "v"},
            ["n", 4, ["z"], True, "b"],
        ),
        (
            ["--kind=a"],
            {"INFLIGHT_NAME": "v, w", "INFLIGHT_DRY_RUN": "1", "INFLIGHT_PORT": ""},
            [None, 1, ["v", "w"], True, "a"],
        ),
        # What Kubernetes says of a Service called `inflight`.
        (["--kind=a"], {"INFLIGHT_PORT": "tcp://10.0.0.1:80"}, [None, 1, [], False, "a"]),
    ):
        assert run(*arguments, **variables) == (0, json.dumps(expected) + "\n")


def test_mistakes_are_told_like_those_of_flags(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    for text, said in (
        ("port = 99999", "Invalid value for '--port'"),
        ('kind = "c"', "Invalid value for '--kind'"),
        ("port = [1, 2]", "`port` must have one value"),
    ):
        file.write_text(text)
        code, output = run(f"--config={file}", **({} if "kind" in text else {"INFLIGHT_KIND": "a"}))
        assert code == 2
        assert said in output
    code, output = run("--kind=a", INFLIGHT_PORT="x")
    assert code == 2
    assert "Invalid value for '--port'" in output
    for text, said in (
        ("prot = 1", "unknown option `prot`; did you mean `port`?"),
        ("help = true", "unknown option `help`"),
        ("port", "line 1"),
    ):
        file.write_text(text)
        result = CliRunner().invoke(inflight, ["top", f"--config={file}"])
        assert result.exit_code == 2
        assert "error: " in result.output
        if "prot" not in text:
            assert said in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_option(name: str) -> None:
    ctx = click.Context(inflight, **inflight.context_settings)
    found = inflight.get_command(ctx, name)
    assert found is not None
    commands = list(found.commands.values()) if isinstance(found, click.Group) else [found]
    for one in commands:
        shown = CliRunner().invoke(inflight, [name, *([] if one is found else [str(one.name)]), "--help"])
        if name in RUST:
            assert not any(isinstance(option, ConfigOption) for option in one.params)
        else:
            assert shown.output.count("--config FILE") == 1, shown.output


def test_processes_get_no_variables_of_the_command_that_starts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in ("INFLIGHT_GRPC_PORT", "INFLIGHT_LOG", "INFLIGHT_CONFIG", "INFLIGHT_OTHER"):
        monkeypatch.setenv(name, "1")
    forget_variables(["grpc-port", "log"])
    left = {name for name in os.environ if name.startswith("INFLIGHT_")}
    assert {"INFLIGHT_LOG", "INFLIGHT_OTHER"} <= left
    assert not {"INFLIGHT_GRPC_PORT", "INFLIGHT_CONFIG"} & left


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"INFLIGHT_PORT": "abc"}, "Invalid value for '--port' (from `INFLIGHT_PORT`): 'abc'"),
        ({"INFLIGHT_REPLICAS": "0"}, "'--replicas' (from `INFLIGHT_REPLICAS`): 0 is not in the range"),
        ({"INFLIGHT_MAX_CONNECTIONS": "abc"}, "for '--max-connections <N>'"),
        ({"INFLIGHT_MAX_CONNECTIONS": "abc"}, "(from `INFLIGHT_MAX_CONNECTIONS`)"),
    ],
)
def test_a_mistake_in_a_variable_names_it(variables: dict[str, str], said: str) -> None:
    result = CliRunner(env=variables).invoke(inflight, ["serve"])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_a_mistake_in_a_file_names_it_and_one_of_a_flag_does_not(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text("port = 99999")
    result = CliRunner().invoke(inflight, ["serve", f"--config={file}"])
    assert f"Invalid value for '--port' (from `{file}`)" in result.output
    result = CliRunner(env={"INFLIGHT_PORT": "abc"}).invoke(inflight, ["serve", "--port=many"])
    assert "Invalid value for '--port': 'many'" in result.output


def test_a_variable_with_a_slip_in_its_name_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "INFLIGHT_MAX_CONNECTONS": "1",
        "INFLIGHT_PROT": "1",
        # Of other commands, of Kubernetes, and of nobody that is known.
        "INFLIGHT_WORKER": "127.0.0.1:1",
        "INFLIGHT_HTTP_PORT": "1",
        "INFLIGHT_PORT_8000_TCP_PORT": "8000",
        "INFLIGHT_GRPC_SERVICE_PORT": "8001",
        "INFLIGHT_GRPCPORT": "tcp://10.0.0.1:80",
        "INFLIGHT_SOMETHING": "1",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(inflight, ["serve", "--replicas=0"])
    warnings = [line for line in result.output.splitlines() if line.startswith("warning:")]
    assert [line.partition("; ")[2] for line in warnings] == [
        "did you mean `INFLIGHT_MAX_CONNECTIONS`?",
        "did you mean `INFLIGHT_PORT`?",
    ]
    assert "`INFLIGHT_MAX_CONNECTONS`" in warnings[0]
    assert "warning" not in CliRunner().invoke(inflight, ["serve", "--replicas=0"]).output
