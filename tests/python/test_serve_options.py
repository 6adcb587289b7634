"""`inflight serve` takes every option of the gateway and of the worker, and hands each to its owner."""

from __future__ import annotations

from collections import Counter

import click
import pytest
from click.testing import CliRunner

from inflight import _native
from inflight.cli.app import inflight
from inflight.cli.gateway_options import NOT_TAKEN, GatewayOption, pass_on
from inflight.cli.serve import serve
from inflight.cli.worker import worker
from inflight.launch import run
from inflight.launch.model import DEMO_DIRECTORY
from inflight.launch.plan import LaunchPlan
from support.processes import InflightProcess

#: Of the worker, and why `serve` does not take it.
FIXED = {
    "host": "the worker asks for no key, so it is for this machine only; the gateway has its own",
    "http-port": "the gateway's port serves KServe over HTTP for every worker",
    "kv-events-port": "several workers have one port each, and this gateway hears them over gRPC",
    "kv-events-replay-port": "the same",
    "kv-events-topic": "the same",
    "kv-events-form": "the same",
    "tls-certificate": "the worker is on this machine; the gateway has its own",
    "tls-key": "the same",
    "tls-client-ca": "the same",
}
#: Of the gateway and the worker, which gets it in its environment as well.
OF_BOTH = {"log", "log-format", "otlp-endpoint", "trace-sampling-ratio"}


def context_of(command: click.Command) -> click.Context:
    # Commands keep the help option that they make first.
    return click.Context(command, help_option_names=["-h", "--help"])


def flags(command: click.Command) -> Counter[str]:
    options = command.get_params(context_of(command))
    return Counter(flag for option in options for flag in option.opts if flag.startswith("--"))


def test_serve_takes_every_option_once() -> None:
    taken = flags(serve)
    wanted = {"--" + option.flag for option in _native.gateway_options() if option.flag not in NOT_TAKEN}
    wanted |= {flag for flag in flags(worker) if flag.removeprefix("--") not in FIXED}
    assert wanted - taken.keys() == set()
    assert [flag for flag, times in taken.items() if times > 1] == []


def started(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> LaunchPlan:
    """The plan with which `inflight serve ARGUMENTS` would start its processes."""
    plans = []

    def supervise(plan: LaunchPlan, _report: object, **_: object) -> int:
        plans.append(plan)
        return 0

    monkeypatch.setattr(run, "supervise", supervise)
    ports = ("--port=0", "--grpc-port=0", "--metrics-port=0")
    result = CliRunner().invoke(inflight, ["serve", *ports, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return plans[0]


#: One value for each kind of option.
EXAMPLES = {
    "HOST": "127.0.0.2",
    "FILE": "keys",
    "ORIGIN": "https://chat.example",
    "KEY": "k",
    "FILTER": "debug",
    "NAME": "none",
    "[MODEL=]NAME": "none",
    "LIMITS": "requests=60",
    "URL": "http://localhost:4317",
    "RATIO": "0.5",
    "ADDRESS/BITS": "10.0.0.0/8",
    "[MODEL=]FILE|NAME": "plain",
}

#: Of options whose values are words of their own.
WORDS = {
    "data-objects": "s3://bucket/prefix",
    "endpoint-fallbacks": "2",
}

#: Options that need another.
NEEDS = {
    "endpoint-port": "--endpoint-picker-port=0",
    "endpoint-fallbacks": "--endpoint-picker-port=0",
    "image-network": "--image-host=images.example",
    "tls-certificate": "--tls-key=keys",
    "tls-key": "--tls-certificate=keys",
    "key-limits": "--api-key-file=keys",
    "data-objects": "--data-dir=data",
}


def test_each_option_reaches_its_owner(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("keys")
    (directory / "keys").write_text("key\n")
    (directory / "7").write_text("# What `--answer` repeats, and a file for `--config`.\n")
    monkeypatch.chdir(directory)
    gateway_flags = [one for one in serve.get_params(context_of(serve)) if isinstance(one, GatewayOption)]
    for option in gateway_flags:
        if option.name in ("port", "api_key"):
            continue
        declared = option.declared
        *_, last = declared.choices or [None]
        value = last or WORDS.get(declared.flag) or EXAMPLES.get(declared.value_name, "7")
        argument = f"--{declared.flag}={value}"
        needed = [NEEDS[declared.flag]] if declared.flag in NEEDS else []
        of_worker, gateway = started(monkeypatch, argument, *needed).processes
        if declared.environment:
            assert gateway.environment[declared.environment] == value
            told = of_worker.environment.get(declared.environment)
            assert told == (value if declared.flag in OF_BOTH else None), declared.flag
        else:
            assert argument in gateway.arguments
    told_otherwise = {
        "executor",
        "device",
        "executor-option",
        "served-model-name",
        "config",
        "help",
        *FIXED,
        *OF_BOTH,
    }
    ports = {"grpc-port", "metrics-port"}
    switches = {
        flag for one in worker.get_params(context_of(worker)) if one.type is click.BOOL for flag in one.opts
    }
    for flag in flags(worker).keys() - {f"--{name}" for name in told_otherwise | ports}:
        own = {
            "--add-model": f"second={DEMO_DIRECTORY}",
            "--adapter-dir": ".",
            "--phases": "context",
            "--register-etcd": "http://etcd:2379/workers/",
        }
        value = "True" if flag in switches else own.get(flag, "7")
        plan = started(monkeypatch, "--executor=simulated", f"{flag}={value}")
        assert any(one in (f"{flag}={value}", f"{flag}=7.0") for one in plan.processes[0].arguments), flag


def test_a_switch_of_the_gateway_needs_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    _, gateway = started(monkeypatch, "--allow-lora-loading").processes
    assert "--allow-lora-loading=true" in gateway.arguments


@pytest.mark.parametrize(
    "flag",
    ["--exclude-input-in-output", "--fill-outputs", "--wrap-token-ids", "--accumulate-tokens"],
)
def test_a_switch_of_the_worker_needs_no_value(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    for given, value in (([flag], "True"), ([flag, "false"], "False"), ([f"{flag}=true"], "True")):
        worker_process, _ = started(monkeypatch, *given).processes
        assert f"{flag}={value}" in worker_process.arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-connections=x"], "invalid value 'x' for '--max-connections <N>'"),
        (["--api-key="], "the key must not be empty"),
        (["--api-key-file=missing"], "missing"),
        (["--log=a=b=c"], "`--log a=b=c` is not a valid filter"),
        (["--num-blocks=4"], "`--num-blocks` has no effect with the executor `reference`"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(inflight, ["serve", *arguments])
    assert result.exit_code == 2
    assert words in result.output


def test_a_key_is_in_the_environment_only() -> None:
    options = serve.gateway_options()
    values: dict[str, object] = {str(one.name): () if one.multiple else None for one in options}
    values["api_key"] = "secret"
    assert pass_on(options, values) == ([], {"INFLIGHT_API_KEY": "secret"})


def test_no_child_shows_the_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    ports = ("--port=0", "--grpc-port=0", "--metrics-port=0")
    process = InflightProcess("serve", *ports, "--executor=simulated", "--api-key=a-secret-key")
    try:
        process.address("http")
        children = process.descendants()
        assert len(children) >= 2
        for pid in children:
            with open(f"/proc/{pid}/cmdline", "rb") as command_line:
                assert b"a-secret-key" not in command_line.read()
        assert "everyone on this machine can read the key of `--api-key`" in process.log
    finally:
        process.stop()
