"""Further models of one worker: what `--add-model NAME=MODEL` says, and which model a failure is about.
Knows nothing of executors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from inflight.errors import InflightError, UserMistake
from inflight.executors import ranks
from inflight.launch.model import Model, find_model

#: NAME is a part of KServe's model names, which appear in paths of URLs.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SYNTAX = "pass it as NAME=MODEL, such as `--add-model llama=/models/llama`"


def find_further(
    given: Sequence[str], first: str, *, weights: bool, executor: str | None = None
) -> list[Model]:
    """The models of `given`, found as `find_model` finds the one that is called `first`.

    Raises `UserMistake` where one cannot be there, which it names, where two have one name, and in a job of
    several ranks, each of which runs one engine.
    """
    if given and (size := ranks.find().size) > 1:
        raise UserMistake(
            f"`--add-model` was given to one of `{size}` ranks of a job, which run one model together",
            "start a worker for each model, and put one gateway in front of them",
        )
    models: list[Model] = []
    taken = {first}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise UserMistake(f"`--add-model` must be NAME=MODEL, got `{text}`", _SYNTAX)
        if not _NAME.fullmatch(name):
            raise UserMistake(
                f"`{name}` cannot name a model of `--add-model`",
                "use letters, digits, `.`, `_` and `-`, with a letter or digit first, at most 128 of them",
            )
        if name in taken:
            raise UserMistake(
                f"two models of this worker would be called `{name}`",
                "give each `--add-model` a different name; `--served-model-name` renames the first model",
            )
        taken.add(name)
        with _about(name):
            models.append(find_model(path, name, weights=weights, executor=executor))
    return models


@contextmanager
def named(model: Model, *, of: Sequence[Model]) -> Iterator[None]:
    """Says which model an `InflightError` is about, where there are several."""
    if len(of) == 1:
        yield
        return
    with _about(model.name_for_clients):
        yield


@contextmanager
def _about(name: str) -> Iterator[None]:
    try:
        yield
    except InflightError as error:
        error.what = f"model `{name}`: {error.what}"
        error.args = (error.what,)
        raise
