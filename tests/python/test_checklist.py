"""`inflight doctor --reference`, whole; what a report contains; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors import safe_open

from inflight.checklist import loads, material, page
from inflight.checklist.check import checks
from inflight.checklist.outcome import Outcome
from inflight.cli.app import inflight
from inflight.executors.tensorrt_llm.adapters import Unloadable, check_adapter
from inflight.launch.model import DEMO_DIRECTORY
from inflight.model.lora import PEFT_WEIGHTS


def test_all_of_it_is_tried_on_the_reference_executor(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    result = CliRunner().invoke(inflight, ["doctor", "--reference", f"--report={report}", "--json"])
    assert result.exit_code == 0, result.stderr
    held = json.loads(result.stdout)
    states = {one["check"]: one["state"] for one in held["outcomes"]}
    # The embedded model sees nothing, and nothing drafts.
    assert {check for check, state in states.items() if state != "held"} == {"images", "drafter"}
    assert set(states) == {one.name for one in checks()} | {"load", "shutdown"}
    assert held["model"]["name"] == "inflight-demo"
    text = report.read_text()
    assert "| model: architectures | ['MistralForCausalLM'] |" in text
    assert "| adapters | adapter | yes |" in text


def test_a_report_has_the_reason_and_the_traceback_of_a_failure(tmp_path: Path) -> None:
    outcomes = [
        Outcome("greedy", "held", seconds=0.5, facts={"first_token_ms": 3.0}),
        Outcome("cancel", "failed", "a | b", trace="Traceback …\n"),
        Outcome("images", "skipped", "not here"),
        Outcome("sampled", "note", "as the page says"),
    ]
    report = page.as_report("tensorrt_llm", {"name": "m"}, {"max_beam_width": "2"}, outcomes)
    assert report["counts"] == {"held": 1, "failed": 1, "skipped": 1, "note": 1}
    text = page.markdown(report)
    assert "| as given | greedy | yes | 0.5 | first_token_ms=3.0 |" in text
    assert "| as given | cancel | **no** | 0 | a \\| b |" in text
    assert "| option max_beam_width | 2 |" in text
    assert "## as given: cancel\n\n~~~text\nTraceback …\n~~~" in text
    page.write(tmp_path / "r.json", report)
    assert json.loads((tmp_path / "r.json").read_text()) == report
    assert page.counts(outcomes) == "1 held, 1 as documented, 1 failed, 1 not tried"


PYTORCH = ("as given", "guides", "logits", "beams", "events")


@pytest.mark.parametrize(
    ("runtime", "given", "names", "left_out"),
    [
        ("pytorch", {}, [*PYTORCH, "adapters"], []),
        ("pytorch", {"max_beam_width": "4"}, ["as given", "guides", "logits", "events", "adapters"], []),
        (
            "pytorch",
            {"lora_adapter_dir": "a"},
            ["as given", "guides", "logits", "beams", "events"],
            ["adapters"],
        ),
        ("engines", {}, ["as given", "guides", "logits", "beams"], ["adapters"]),
        ("reference", {}, ["as given", "events", "adapters"], []),
    ],
)
def test_what_needs_an_option_gets_a_start_with_it(
    tmp_path: Path, runtime: str, given: dict[str, str], names: list[str], left_out: list[str]
) -> None:
    starts, without = loads.plan(runtime, given, tmp_path)
    assert [start.name for start in starts] == names
    assert list(without) == left_out
    # What was given wins.
    assert all(given.items() <= start.options.items() for start in starts)


def test_the_adapter_that_is_made_is_one(tmp_path: Path) -> None:
    config = json.loads((DEMO_DIRECTORY / "config.json").read_text())
    material.write_adapter(tmp_path / "1", config)
    check_adapter(tmp_path / "1", tuple(material.LAYERS), material.RANK)
    with safe_open(tmp_path / "1" / PEFT_WEIGHTS, "numpy") as file:
        names = set(file.keys())
        assert not any(file.get_tensor(name).any() for name in names if "lora_B" in name)
    # Two matrices of two layers in each of five.
    assert len(names) == 20
    material.cut_adapter(tmp_path / "1")
    with pytest.raises(Unloadable, match="truncated"):
        check_adapter(tmp_path / "1", tuple(material.LAYERS), material.RANK)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--report=x.md"], "`--report` has no effect without `--tensorrt-llm` or `--reference`"),
        (["--only=greedy"], "`--only` has no effect"),
        (["--executor-option=a=b"], "`--executor-option` has no effect"),
        (["--tensorrt-llm"], "needs TensorRT-LLM, which is not installed"),
        (["--reference", "--only=nothing of the kind"], "no check's name contains"),
        (["--reference", "--executor-option=a"], "must be NAME=VALUE"),
    ],
)
def test_what_cannot_be_tried_is_one_error(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(inflight, ["doctor", *arguments])
    assert result.exit_code == 2
    assert words in f"{result.output} {result.exception}"
