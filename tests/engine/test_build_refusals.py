"""What `inflight worker` would refuse, `build` refuses before it writes and `inspect` tells as the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .checkpoints import demo_copy
from .shell import Shell


def config_with(**changes: Any) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        path = model / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return spoil


def header_with(tensor: str, **changes: Any) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        path = model / "model.safetensors"
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        header[tensor].update(changes)
        encoded = json.dumps(header).encode()
        path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content[start:])

    return spoil


def file_with(name: str, content: str) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        (model / name).write_text(content)

    return spoil


def only_sentencepiece(model: Path) -> None:
    (model / "tokenizer.json").rename(model / "tokenizer.model")


def renamed(model: Path) -> None:
    (model / "model.safetensors").rename(model / "weights.safetensors")


QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (config_with(hidden_act="gelu"), "must be `silu` for the reference executor, got `gelu`"),
        (config_with(rope_scaling={"type": "dynamic"}, rope_parameters=None), "scaling `dynamic`"),
        (config_with(rope_theta=-1), "`rope_theta` in `config.json` must be a positive number, got `-1`"),
        (config_with(num_hidden_layers=6), "tensor `model.layers.5.input_layernorm.weight` is missing"),
        (config_with(num_hidden_layers=10**6), "must be at most 100000, got `1000000`"),
        (config_with(vocab_size=7), "but `config.json` implies `[7, "),
        (config_with(quantization_config={"quant_method": "hqq"}), "the method `hqq`, which is not"),
        (header_with(QUERY, dtype="I16"), f"tensor `{QUERY}` has dtype `I16`"),
    ],
)  # fmt: skip
def test_what_the_reference_executor_refuses_is_known_before_anything_is_written(
    spoil: Callable[[Path], None], said: str, shell: Shell
) -> None:
    spoil(demo_copy(shell.folder / "demo"))
    before = sorted(shell.folder.rglob("*"))
    verdicts = shell("inspect", "demo", "--json").json()["runtimes"]
    reference = next(entry for entry in verdicts if entry["runtime"] == "reference")
    assert not reference["can_serve"]
    assert said in reference["verdict"]
    told = shell("build", "demo", "--output", "out", "--runtime", "reference")
    assert told.code == 2, told
    assert said in told.errors
    assert told.errors.count("\n") == 2, told.errors
    assert sorted(shell.folder.rglob("*")) == before
    served = shell("worker", "demo", "--grpc-port=0", "--metrics-port=0")
    assert served.code == 2, served
    assert said in served.errors


def test_shards_without_an_index_are_built_and_not_served(shell: Shell) -> None:
    renamed(demo_copy(shell.folder / "demo"))
    verdicts = shell("inspect", "demo", "--json").json()["runtimes"]
    assert "neither `model.safetensors` nor" in verdicts[-1]["verdict"]
    assert shell("worker", "demo", "--grpc-port=0", "--metrics-port=0").code == 2
    assert shell("build", "demo", "--output", "out", "--runtime", "reference").code == 0


ODD = "Llama\x1b[2J\x07\x9b1m\r\n\u202eForCausalLM"
TOLD = r"Llama\x1b[2J\x07\x9b1m\x0d\x0a\u202eForCausalLM"


@pytest.mark.parametrize(
    ("changes", "arguments", "code"),
    [
        ({"architectures": [ODD]}, ("build", "demo", "--output", "out"), 2),
        ({"architectures": [ODD]}, ("build", "demo", "--output", "out", "--runtime", "pytorch"), 2),
        ({"architectures": [ODD]}, ("inspect", "demo"), 0),
        ({"hidden_act": ODD}, ("inspect", "demo"), 0),
        ({"hidden_act": ODD}, ("worker", "demo", "--grpc-port=0", "--metrics-port=0"), 2),
        ({"quantization_config": {"quant_method": ODD}}, ("inspect", "demo"), 0),
        ({"torch_dtype": ODD}, ("inspect", "demo"), 0),
    ],
)
def test_control_characters_of_a_config_reach_no_terminal(
    changes: dict[str, Any], arguments: tuple[str, ...], code: int, shell: Shell
) -> None:
    config_with(**changes)(demo_copy(shell.folder / "demo"))
    told = shell(*arguments)
    assert told.code == code, told
    shown = told.output + told.errors
    assert TOLD in shown.replace("\n", "").replace(" ", "")
    assert not set(shown) & set("\x1b\x07\x9b\r\u202e")


@pytest.mark.parametrize("runtime", ["reference", "tensorrt", "pytorch"])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (only_sentencepiece, "the tokenizer of `demo` cannot be used: `tokenizer.model` cannot be converted"),
        (file_with("tokenizer.json", "{"), "the model `demo` cannot be served: "),
        (file_with("tokenizer.json", '{"version": "1.0"}'), "the model `demo` cannot be served: "),
        (file_with("tokenizer_config.json", "[]"), "the model `demo` cannot be served: "),
    ],
)
def test_a_tokenizer_that_no_worker_loads_is_refused_for_every_runtime(
    runtime: str, spoil: Callable[[Path], None], said: str, double: Shell
) -> None:
    spoil(demo_copy(double.folder / "demo"))
    served = double("worker", "demo", "--grpc-port=0", "--metrics-port=0")
    assert served.code == 2, served
    assert said in served.errors
    told = double("build", "demo", "--output", "out", "--runtime", runtime)
    assert (told.code, told.errors) == (2, served.errors)
    assert not list(double.folder.glob("*out*"))
    planned = double("build", "demo", "--output", "out", "--runtime", runtime, "--dry-run").output
    assert f"blocked by: {said}" in planned
    verdicts = double("inspect", "demo", "--json").json()["runtimes"]
    against = next(entry["verdict"] for entry in verdicts if entry["runtime"] == runtime)
    assert against.startswith("no: it is not built" if runtime == "tensorrt" else f"no: {said}")


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["real", "dry"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--lora-dir", "adapter", "--lora-dir", "absent"),
            ["`--lora-dir` is `absent`, which does not exist"],
        ),
        (("--model-cls-file", "absent.py"), ["`--model-cls-file` is `absent.py`, which does not exist"]),
        (("--examples-dir", "absent"), ["`--examples-dir` must be a directory, got `absent`"]),
        (
            ("--examples-dir", "demo/config.json"),
            ["`--examples-dir` must be a directory, got `demo/config.json`"],
        ),
        (("--model-cls-file", "a", "--tp-size", "3"), ["`--model-cls-file` is `a`", "`--tp-size 3`"]),
    ],
)
def test_a_path_that_is_not_there_is_refused_with_the_plan(
    arguments: tuple[str, ...], said: list[str], dry: tuple[str, ...], double: Shell
) -> None:
    demo_copy(double.folder / "demo")
    (double.folder / "adapter").mkdir()
    told = double("build", "demo", "--output", "out", "--runtime", "tensorrt", *arguments, *dry)
    assert told.code == 2, told
    for sentence in said:
        assert sentence in told.errors
    assert "`adapter`" not in told.errors
    assert not list(double.folder.glob("*out*"))
