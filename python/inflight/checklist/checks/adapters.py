"""LoRA adapters of files: one that changes nothing, one that is missing, one that is cut off."""

from __future__ import annotations

from pathlib import Path

from inflight._native import Capability
from inflight.checklist import material
from inflight.checklist.check import check
from inflight.checklist.outcome import Facts, Skipped, expect, expect_equal
from inflight.checklist.subject import Answer, Subject
from inflight.model.config import text_values
from inflight.model.files import load_json

#: Where adapters are put, below the folder of a run.
FOLDER = "adapters"

#: The adapter that is there at the start, because executors may look only then.
FIRST = 1

_NEEDS = (Capability.LORA,)


def write(model_dir: Path, folder: Path, task_id: int) -> Path:
    """An adapter for the model of `model_dir`. Errors: `Skipped` where the sizes are not known."""
    directory = folder / FOLDER / str(task_id)
    try:
        if not directory.exists():
            material.write_adapter(directory, text_values(load_json(model_dir / "config.json")))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise Skipped(f"`config.json` lacks a size that an adapter needs: {error!r}") from error
    return directory


def _ask(subject: Subject, task_id: int) -> Answer:
    return subject.ask(8, tensors=[material.numbers("lora_task_id", "UINT64", task_id)])


@check("adapter", "an adapter whose changes are zero changes no token", needs=_NEEDS, load="adapters")
def adapter(subject: Subject) -> None:
    expected = subject.ask(8).require().first
    expect_equal("tokens", _ask(subject, FIRST).require().first, expected)
    expect_equal("tokens of a request without it", subject.ask(8).require().first, expected)


@check("missing adapter", "an adapter that does not exist is refused", needs=_NEEDS, load="adapters")
def missing(subject: Subject) -> Facts:
    return _refused(subject, 2)


@check("bad adapter", "an adapter whose weights are cut off is refused", needs=_NEEDS, load="adapters")
def bad(subject: Subject) -> Facts:
    material.cut_adapter(write(subject.model_dir, subject.folder, 3))
    return _refused(subject, 3)


def _refused(subject: Subject, task_id: int) -> Facts:
    answer = _ask(subject, task_id)
    expect(answer.error is not None, f"it was answered with {len(answer.first)} tokens")
    assert answer.error is not None
    expect_equal("tokens of the next request", len(subject.ask(4).require().first), 4)
    return {"status": answer.error[0].name, "text": answer.error[1][:200]}
