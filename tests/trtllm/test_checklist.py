"""`inflight doctor --tensorrt-llm` from end to end over the double of either line; and its faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import double
from support.double.package import write_double
from trtllm.harness import write_engine
from trtllm.pytorch_setup import SEEING, write_checkpoint

BOTH_LINES = True

#: As much of a model as adapters are made for.
SIZES = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
#: Tokens of the prompt, of the answers that guides leave, and the end token; all below the double's own.
WORDS = {
    "[UNK]": 0,
    "</s>": 3,
    "yes": 5,
    '"yes"': 6,
    "The": 10,
    "capital": 11,
    "of": 12,
    "France": 13,
    "is": 14,
}


def write_tokenizer(directory: Path) -> Path:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": 3, "content": "</s>", "special": True, **plain}],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": WORDS, "unk_token": "[UNK]"},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (directory / "model.safetensors").write_bytes(b"weights")
    return directory


def examine(
    tmp_path: Path, model: Path, version: str, *arguments: str, status: int = 0
) -> tuple[dict[tuple[str, str], dict[str, Any]], dict[str, Any], str]:
    """Outcomes by load and check, the whole report, and what people read."""
    report = tmp_path / "report.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "inflight",
            "doctor",
            "--tensorrt-llm",
            str(model),
            f"--report={report}",
            *arguments,
        ],
        env={**os.environ, **write_double(tmp_path / "double", version=version)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == status, done.stdout + done.stderr
    held = json.loads(report.read_text())
    found = {(one["load"], one["check"]): one for one in held["outcomes"]}
    return found, held, done.stdout


def states(found: dict[tuple[str, str], dict[str, Any]], *, of: str) -> set[tuple[str, str]]:
    return {key for key, one in found.items() if one["state"] == of}


def test_all_of_it_is_tried_on_a_checkpoint(line: str, tmp_path: Path) -> None:
    model = write_tokenizer(write_checkpoint(tmp_path / "model", **SIZES))
    found, report, said = examine(tmp_path, model, line)
    reasons = {key: one["reason"] for key, one in found.items() if one["state"] not in ("held", "skipped")}
    # The sampler of 1.2 ignores seeds, which the documentation says.
    assert states(found, of="note") == ({("as given", "sampled")} if line == "1.2.1" else set()), reasons
    assert states(found, of="failed") == set(), reasons
    skipped = {check for _, check in states(found, of="skipped")}
    only_newer = set() if line != "1.2.1" else {"bad words", "penalties", "priority"}
    # No processor sees images here, nothing drafts, and the runtime does not resume.
    assert skipped == {"images", "drafter", "resumed"} | only_newer
    for load in ("as given", "guides", "logits", "beams", "events", "adapters"):
        assert found[load, "load"]["state"] == found[load, "shutdown"]["state"] == "held"
    assert found["as given", "load"]["facts"]["vocab_size"] == double.VOCAB
    assert "LoRA task `3` cannot be used" in found["adapters", "bad adapter"]["facts"]["text"]
    assert set(found["guides", "bad guide"]["facts"]["refusals"]) == {"regex", "ebnf_grammar", "json_schema"}
    assert report["machine"]["packages"]["tensorrt_llm"] == line
    assert report["machine"]["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert report["model"]["architectures"] == ["LlamaForCausalLM"]
    assert f"{report['counts']['held']} held" in said.splitlines()[-1]
    assert not any(one["trace"] for one in report["outcomes"])


def test_all_of_it_is_tried_on_an_engine(line: str, tmp_path: Path) -> None:
    model = write_tokenizer(write_engine(tmp_path / "engine"))
    if line != "1.2.1":
        found, _, _ = examine(tmp_path, model, line, status=1)
        assert "no longer runs engines" in found["as given", "load"]["reason"]
        assert states(found, of="held") == set()
        return
    found, _, _ = examine(tmp_path, model, line)
    assert states(found, of="failed") == set()
    held = {check for _, check in states(found, of="held")}
    assert {"sampled", "bad words", "bad guide", "prompt logits", "output logits", "beams"} <= held
    assert (
        found["adapters", "bad adapter"]["reason"]
        == "this executor takes the weights of adapters in requests"
    )


def test_images_are_tried_where_the_model_sees(line: str, tmp_path: Path) -> None:
    model = write_tokenizer(write_checkpoint(tmp_path / "model", **SIZES, **SEEING, image_token_id=20))
    found, _, _ = examine(tmp_path, model, line, "--only=images")
    assert found["as given", "images"]["state"] == "held"


#: Runs in every interpreter of a test: three checks become one that ends the process, one that hangs and one
#: that does not hold.
FAULTS = """
import dataclasses, os, sys, time
if "inflight.checklist.child" in sys.orig_argv:
    from inflight.checklist import check
    def hold(subject): raise AssertionError("it is not so")
    def end(subject): os._exit(9)
    def hang(subject): time.sleep(60)
    faults = {"whole": end, "replay": hang, "end token": hold}
    check._CHECKS[:] = [
        dataclasses.replace(one, ask=faults.get(one.name, one.ask)) for one in check.checks()
    ]
"""


def test_one_failure_does_not_end_the_rest(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    paths = filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    model = write_tokenizer(write_checkpoint(tmp_path / "model", **SIZES))
    found, report, said = examine(tmp_path, model, line, "--only=as given", "--check-timeout-s=4", status=1)
    assert found["as given", "whole"]["reason"] == "the process ended with status 9"
    assert found["as given", "replay"]["reason"] == "no answer within 8 s"
    assert found["as given", "end token"]["reason"] == "it is not so"
    assert "AssertionError: it is not so" in found["as given", "end token"]["trace"]
    held = {check for _, check in states(found, of="held")}
    assert {"greedy", "together", "stop words", "cancel", "shutdown"} <= held
    assert report["counts"]["failed"] == 3
    assert "FAIL  as given   whole" in said


def test_an_executor_that_does_not_load_is_said_once(line: str, tmp_path: Path) -> None:
    model = write_tokenizer(write_checkpoint(tmp_path / "model", **SIZES))
    found, _, said = examine(tmp_path, model, line, "--executor-option=max_beam_width=two", status=1)
    assert states(found, of="failed") == {("as given", "load")}
    assert "`max_beam_width` must be" in found["as given", "load"]["reason"]
    assert found["guides", "bad guide"]["reason"] == "the executor did not load"
    assert said.count("FAIL") == 1
