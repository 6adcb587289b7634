"""The process that has the executor: it loads, runs the checks that it is asked for, one at a time, and ends.

Speaks lines of JSON over two pipes, because what an executor prints may be anything. What hangs here is ended
by `run`, which is the other end.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inflight import executors
from inflight.checklist.check import Check, checks
from inflight.checklist.checks import adapters
from inflight.checklist.outcome import Known, Outcome, Skipped
from inflight.checklist.subject import GREEDY, Subject
from inflight.errors import InflightError, UserMistake

#: How long the executor may take to say that it still answers, after a check that failed.
_ALIVE_S = 20.0


def main() -> None:
    """Arguments: the numbers of the pipe to read and of the one to write."""
    asked_fd, answers_fd = map(int, sys.argv[1:3])
    # Processes that an executor starts must not hold them open.
    for descriptor in (asked_fd, answers_fd):
        os.set_inheritable(descriptor, False)
    with (
        os.fdopen(asked_fd, encoding="utf-8") as asked,
        os.fdopen(answers_fd, "w", encoding="utf-8") as answers,
    ):

        def say(**values: Any) -> None:
            answers.write(json.dumps(values, default=str) + "\n")
            answers.flush()

        settings = json.loads(asked.readline())
        began = time.monotonic()
        try:
            subject = _load(settings)
        except UserMistake as error:
            say(refused=error.what, remedy=error.remedy)
            return
        except Skipped as error:
            say(refused=str(error), remedy=None)
            return
        except BaseException as error:
            say(failed=_reason(error), trace=traceback.format_exc())
            raise
        info = asdict(subject.info)
        say(loaded=round(time.monotonic() - began, 2), info=info)
        known = {one.name: one for one in checks()}
        for line in asked:
            wanted = json.loads(line)
            if wanted is None:
                break
            outcome = run_check(subject, known[wanted], settings["load"])
            broken = outcome.state == "failed" and not _answers(subject)
            say(outcome=asdict(outcome), broken=broken)
        began = time.monotonic()
        try:
            subject.executor.shutdown()
        except Exception as error:
            say(failed=_reason(error), trace=traceback.format_exc())
            raise
        say(shut_down=round(time.monotonic() - began, 2))


def run_check(subject: Subject, one: Check, load: str) -> Outcome:
    """What comes of a check; never raises."""
    began = time.monotonic()

    def outcome(
        state: Any, reason: str = "", facts: Mapping[str, Any] | None = None, trace: str = ""
    ) -> Outcome:
        seconds = round(time.monotonic() - began, 2)
        return Outcome(one.name, state, reason, load, seconds, dict(facts or {}), trace)

    try:
        subject.require(*one.needs)
        facts = one.ask(subject)
    except Skipped as skipped:
        return outcome("skipped", str(skipped))
    except Known as known:
        return outcome("note", str(known))
    except Exception as error:  # what an executor raises is without bounds
        return outcome("failed", _reason(error), trace=traceback.format_exc())
    return outcome("held", facts=facts)


def _load(settings: Mapping[str, Any]) -> Subject:
    model_dir, folder = Path(settings["model_dir"]), Path(settings["folder"])
    if settings["load"] == adapters.FOLDER:
        adapters.write(model_dir, folder, adapters.FIRST)
    executor = executors.create(
        settings["executor"],
        executors.ExecutorOptions(
            model_dir=model_dir,
            device=settings["device"],
            vocab_size=settings["vocab_size"],
            values=settings["options"],
        ),
    )
    return Subject(executor, model_dir, kind=settings["executor"], version=settings["version"], folder=folder)


def _answers(subject: Subject) -> bool:
    """Whether the executor still answers."""
    try:
        [answer] = subject.send([subject.request(1, sampling_config=GREEDY)])
        subject.wait([answer], limit_s=_ALIVE_S)
    except Exception:
        return False
    return answer.error is None


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, InflightError):
        text = f"{error.what}; {error.remedy}" if error.remedy else error.what
    kind = "" if isinstance(error, AssertionError | InflightError) and text else f"{type(error).__name__}: "
    return f"{kind}{text}"[:400]


if __name__ == "__main__":
    main()
