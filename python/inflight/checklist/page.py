"""What came of the checks, as JSON and as Markdown: what people attach when they report a fault.

Owns what a report contains: versions, GPUs, the model's sizes, options, outcomes. No prompt of a user and no
name of a directory but those in options, logs and tracebacks. Pure, but for the look at the machine.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inflight import machine
from inflight.checklist.outcome import Outcome

#: Packages whose versions a fault may depend on.
PACKAGES = (
    "inflight-llm",
    "tensorrt_llm",
    "tensorrt",
    "torch",
    "transformers",
    "xgrammar",
    "llguidance",
    "flashinfer-python",
    "mpi4py",
    "nvidia-nccl-cu13",
    "nvidia-nccl-cu12",
    "numpy",
)
#: What `config.json` says of a model that matters to an executor.
_SIZES = (
    "architectures",
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "sliding_window",
    "torch_dtype",
    "dtype",
    "quantization_config",
)
WORDS = {"held": "yes", "note": "no, as documented", "failed": "**no**", "skipped": "not tried"}


def describe_machine() -> dict[str, Any]:
    """Versions and GPUs."""
    versions = {name: machine.package_version(name) for name in PACKAGES}
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: version for name, version in versions.items() if version is not None},
        "gpus": [asdict(gpu) for gpu in machine.find_gpus() or ()],
    }


def describe_model(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's name and sizes. `config`: its `config.json`, that of a nested text model over the outer."""
    return {"name": name, **{key: config[key] for key in _SIZES if key in config}}


def as_report(
    executor: str, model: Mapping[str, Any], options: Mapping[str, Any], outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "format": 1,
        "executor": executor,
        "machine": describe_machine(),
        "model": dict(model),
        "options": dict(options),
        "counts": dict(Counter(outcome.state for outcome in outcomes)),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }


def counts(outcomes: Sequence[Outcome]) -> str:
    """How many held, did not and were not tried, in words."""
    found: Counter[str] = Counter(outcome.state for outcome in outcomes)
    words = {"held": "held", "note": "as documented", "failed": "failed", "skipped": "not tried"}
    return ", ".join(f"{found[state]} {word}" for state, word in words.items())


def markdown(report: Mapping[str, Any]) -> str:
    """The same report for people."""
    found, model = report["machine"], report["model"]
    lines = [
        f"# Checklist of the executor `{report['executor']}`",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(version)} |" for name, version in found["packages"].items()),
        f"| Python | {found['python']} |",
        f"| system | {_cell(found['system'])} |",
        *(
            f"| GPU {index} | {gpu['name']}, {gpu['memory_bytes'] >> 20} MiB, {gpu['architecture']} |"
            for index, gpu in enumerate(found["gpus"])
        ),
        *(f"| model: {name} | {_cell(value)} |" for name, value in model.items()),
        *(f"| option {name} | {_cell(value)} |" for name, value in report["options"].items()),
        "",
        "| started | check | held | seconds | |",
        "|---|---|---|---|---|",
    ]
    for outcome in report["outcomes"]:
        facts = outcome["facts"]
        said = "; ".join([outcome["reason"]] if outcome["reason"] else [f"{k}={v}" for k, v in facts.items()])
        lines.append(
            f"| {outcome['load']} | {outcome['check']} | {WORDS[outcome['state']]} | {outcome['seconds']:g} "
            f"| {_cell(said)} |"
        )
    for outcome in report["outcomes"]:
        if outcome["trace"]:
            title = f"{outcome['load']}: {outcome['check']}"
            lines += ["", f"## {title}", "", "~~~text", outcome["trace"].rstrip(), "~~~"]
    return "\n".join(lines) + "\n"


def write(path: Path, report: Mapping[str, Any]) -> None:
    """Writes the report by the file's ending: `.json`, or Markdown."""
    import json

    text = json.dumps(report, indent=2) + "\n" if path.suffix == ".json" else markdown(report)
    path.write_text(text, encoding="utf-8")


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
