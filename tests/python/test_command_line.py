"""The command line as people meet it: help, mistakes and their exit codes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from inflight.cli.app import COMMANDS, inflight
from inflight.launch.process import command_line


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory that looks like a checkpoint from the outside."""
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 300}), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"")
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    """Runs a command in this process; returns its exit code and what it said."""
    # Anything but a told error is raised, so that a defect fails its test as itself.
    result = CliRunner(catch_exceptions=False).invoke(inflight, arguments)
    return result.exit_code, result.output


def test_help_lists_every_command_with_one_whole_line() -> None:
    code, output = run("--help")
    assert code == 0
    for name in COMMANDS:
        line = next(line for line in output.splitlines() if line.startswith(f"  {name}"))
        assert not line.endswith("..."), line


@pytest.mark.parametrize("name", ["serve", "worker", "chat"])
def test_every_command_explains_itself(name: str) -> None:
    code, output = run(name, "--help")
    assert code == 0
    assert output.startswith("Usage: ")


def test_help_imports_nothing_heavy() -> None:
    # What makes help slow is imports; a time limit would measure the machine.
    script = (
        "import sys\n"
        "from inflight.cli.app import inflight\n"
        "try: inflight(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'rich', 'asyncio', 'http.client', 'inflight._native', 'safetensors'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert output.splitlines()[-1] == "heavy: []"


def test_the_worker_help_shows_the_defaults_that_rust_owns() -> None:
    from inflight import _native

    _, output = run("worker", "--help")
    words = " ".join(output.split())
    assert f"[default: {_native.WorkerOptions().grpc_port}]" in words
    assert f"[default: {_native.WorkerOptions().max_message_bytes};" in words
    assert f"[default: {_native.SimulatedOptions().step_us:g} when simulated;" in words


@pytest.mark.parametrize(
    ("executor", "option", "other"),
    [
        ("reference", "--num-blocks", "simulated"),
        ("reference", "--step-us", "simulated"),
        ("scripted", "--max-batch-size", "simulated"),
        ("tensorrt_llm", "--prefill-us-per-token", "simulated"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(executor: str, option: str, other: str) -> None:
    code, output = run("worker", "--executor", executor, option, "7")
    assert code == 2
    assert f"`{option}` has no effect with the executor `{executor}`" in output
    assert f"--executor {other}" in output


@pytest.mark.parametrize("command", ["serve", "worker"])
@pytest.mark.parametrize(
    ("executor", "given", "words"),
    [
        (
            "simulated",
            "a=1",
            ("`--executor-option` has no effect with the executor `simulated`", "leave it out"),
        ),
        ("tensorrt_llm", "a", ("`--executor-option` must be NAME=VALUE, got `a`",)),
        ("tensorrt_llm", "=1", ("`--executor-option` must be NAME=VALUE, got `=1`",)),
    ],
)
def test_an_executors_own_option_must_be_one(
    command: str, executor: str, given: str, words: tuple[str, ...]
) -> None:
    code, output = run(command, "--executor", executor, "--executor-option", given)
    assert code == 2
    assert all(one in output for one in words)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a=1", ("`a` is not an option of the reference executor", "dtype")),
        ("dtype=int4", ("option `dtype` must be one of auto, bfloat16", "got `int4`")),
        ("dtype=bfloat16", ("dtype `bfloat16` needs PyTorch", "`backend`")),
    ],
)
def test_the_reference_executor_refuses_an_option_by_name(given: str, words: tuple[str, ...]) -> None:
    code, output = run(
        "worker", "--device", "cpu", "--grpc-port", "0", "--metrics-port", "0", "--executor-option", given
    )
    assert code == 2
    assert all(one in output for one in words)


def test_an_option_reaches_the_reference_executor() -> None:
    # Its own check answers, which names both values.
    code, output = run(
        "worker", "--max-batch-size=64", "--max-num-tokens=63", "--grpc-port=0", "--metrics-port=0"
    )
    assert code == 2
    assert "option `max_num_tokens` must be at least `max_batch_size` (64), got `63`" in output


@pytest.mark.parametrize("name", ["worker", "serve"])
def test_what_rust_refuses_of_an_option_is_a_mistake_of_the_user(name: str) -> None:
    code, output = run(name, "--drain-timeout-s=1e300")
    assert code == 2
    assert "`--drain-timeout-s` is `1e300`, expected fewer seconds" in " ".join(output.split())


def test_the_version_is_that_of_the_core() -> None:
    from inflight import __version__, _native

    assert __version__ == _native.__version__
    assert run("--version") == (0, f"inflight {__version__}\n")


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_missing_directory_is_named(command: str, tmp_path: Path) -> None:
    code, output = run(command, str(tmp_path / "nowhere"))
    assert code == 2
    assert f"the model directory `{tmp_path / 'nowhere'}` does not exist" in output
    assert "hint: " in output


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_directory_without_a_checkpoint_says_what_it_lacks(command: str, tmp_path: Path) -> None:
    code, output = run(command, str(tmp_path))
    assert code == 2
    assert "has no `tokenizer.json` and no `config.json` and no `*.safetensors`" in output


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_an_unknown_executor_is_answered_with_those_of_the_help(command: str) -> None:
    code, output = run(command, "--executor", "vllm")
    assert code == 2
    assert "'vllm' is not one of 'reference', 'simulated', 'tensorrt_llm'." in output
    assert "--num-blocks` has no effect" in run(command, "--executor=scripted", "--num-blocks=4")[1]
    assert "needs TensorRT-LLM" in run(command, "--executor=tensorrt-llm")[1]


def test_ranks_without_what_starts_them_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, output = run("serve", "--tp-size=2", "--port=0", "--grpc-port=0", "--metrics-port=0")
    assert code == 2
    error, hint = output.splitlines()
    assert error == "error: `worker` has several ranks, and `mpirun`, which starts them, is not installed"
    assert hint == "hint: install Open MPI: `apt-get install openmpi-bin`"


@pytest.mark.parametrize(
    ("weights", "model", "sentence", "hint"),
    [
        ("m.gguf", "m.gguf", "m.gguf` is a GGUF file, which is not supported", "safetensors"),
        ("m.gguf", ".", "has its weights as GGUF, which is not supported", "Hugging Face checkpoint"),
        ("pytorch_model.bin", ".", "only safetensors are supported", "`AutoModelForCausalLM."),
        (
            "pytorch_model-00001-of-00002.bin",
            ".",
            "has its weights as `pytorch_model.bin`",
            "save_pretrained",
        ),
    ],
)
def test_weights_of_another_format_are_named(
    weights: str, model: str, sentence: str, hint: str, checkpoint: Path
) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / weights).write_bytes(b"")
    for command in ("serve", "worker"):
        code, output = run(command, str(checkpoint / model))
        assert code == 2
        error, remedy = output.splitlines()
        assert sentence in error
        assert hint in remedy
    # What can be read wins over what lies next to it.
    (checkpoint / "model.safetensors").write_bytes(b"")
    assert "not supported" not in run("worker", str(checkpoint), "--grpc-port=0", "--metrics-port=0")[1]


def test_the_simulated_executor_needs_a_tokenizer_only(tmp_path: Path) -> None:
    code, output = run("worker", str(tmp_path), "--executor", "simulated")
    assert code == 2
    assert "has no `tokenizer.json`, and nothing can be tokenized without it\n" in output


def test_a_file_is_no_directory(checkpoint: Path) -> None:
    code, output = run("serve", str(checkpoint / "config.json"))
    assert code == 2
    assert "is not a directory" in output


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_tensorrt_llm_says_where_it_comes_from(command: str, checkpoint: Path) -> None:
    code, output = run(command, str(checkpoint), "--executor", "tensorrt_llm")
    assert code == 2
    assert "the executor `tensorrt_llm`" in output
    assert "hint: install `tensorrt_llm` from NVIDIA's package index" in output


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("serve", "--port"),
        ("serve", "--grpc-port"),
        ("serve", "--metrics-port"),
        ("worker", "--grpc-port"),
        ("worker", "--metrics-port"),
    ],
)
def test_a_port_in_use_is_found_before_the_model_loads(command: str, option: str, checkpoint: Path) -> None:
    # The checkpoint cannot be loaded: had anybody tried, the message would be another.
    ports = {"--grpc-port": "0", "--metrics-port": "0"}
    if command == "serve":
        ports["--port"] = "0"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports[option] = str(taken.getsockname()[1])
        code, output = run(command, str(checkpoint), *(word for pair in ports.items() for word in pair))
    assert code == 2
    assert f"port `{ports[option]}` on `127.0.0.1` is in use" in output
    assert f"choose another with `{option}`" in output


def test_an_unknown_host_is_named(checkpoint: Path) -> None:
    code, output = run("serve", str(checkpoint), "--host", "203.0.113.7", "--port", "0")
    assert code == 2
    assert "`203.0.113.7` is not an address of this machine" in output


def test_equal_ports_are_refused(checkpoint: Path) -> None:
    code, output = run("serve", str(checkpoint), "--port", "8001")
    assert code == 2
    assert "`--port` and `--grpc-port` are both `8001`" in output


def test_a_config_that_is_not_json_is_told(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{", encoding="utf-8")
    code, output = run(
        "worker", str(checkpoint), "--executor", "simulated", "--grpc-port", "0", "--metrics-port", "0"
    )
    assert code == 2
    assert "is not JSON" in output


@pytest.mark.parametrize("command", [["serve"], ["worker"], ["inspect"], ["build", "--output", "out"]])
def test_what_the_file_system_refuses_is_told(command: list[str]) -> None:
    name = "long" * 100
    code, output = run(*command, name)
    assert code == 2
    assert f"`{name}` cannot be used: File name too long" in output
    assert "hint: " in output


@pytest.mark.parametrize("command", ["gateway", "bench"])
def test_rust_owns_help_and_mistakes_of_its_commands(command: str) -> None:
    for arguments, code in ((["--help"], 0), (["--no-such-option"], 2)):
        done = subprocess.run(
            command_line([command, *arguments]), capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == code, done.stderr
        assert "Usage: " in done.stdout + done.stderr


def test_chat_without_a_server_says_what_to_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    code, output = run("chat", "--url", f"http://127.0.0.1:{port}", "--message", "hello")
    assert code == 1
    assert f"no server answers at `http://127.0.0.1:{port}`" in output
    assert "inflight serve" in output


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:notaport"])
def test_chat_refuses_what_is_no_url(url: str) -> None:
    code, output = run("chat", "--url", url, "--message", "hello")
    assert code == 2
    assert f"`{url}` is not a URL" in output
