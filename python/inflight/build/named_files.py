"""Files that options name by path: adapters, a draft model, configs of TensorRT-LLM. Owns their fingerprints,
by which a build knows a changed one whatever its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inflight.build.options import OPTIONS, Values
from inflight.build.options.declaration import BuildOption
from inflight.errors import Problem, UserMistake, raise_problems
from inflight.model.shards import fingerprint_file

#: An adapter has a handful; more means that the path is another's.
MAX_FILES = 10_000


def check_named_files(values: Values) -> list[Problem]:
    """Paths given that are not there; reads none."""
    return [_missing(option, path) for option, paths in _named(values) for path in paths if not path.exists()]


def fingerprint_named_files(values: Values) -> dict[str, list[dict[str, str]]]:
    """For each option given: fingerprint by file name, one mapping a path, in the order of the paths.

    Errors: `UserMistake` for a path that is not there or cannot be read.
    """
    return {option.name: [_fingerprint(option, path) for path in paths] for option, paths in _named(values)}


def _named(values: Values) -> Iterator[tuple[BuildOption, list[Path]]]:
    for option in OPTIONS:
        if option.reads and values.is_given(option.name):
            paths = [Path(path) for path in _several(values[option.name])]
            # Text may be the name of a data set instead.
            paths = [path for path in paths if option.kind != "text" or path.exists()]
            if paths:
                yield option, paths


def _missing(option: BuildOption, path: Path) -> Problem:
    return Problem(f"`{option.flag}` is `{path}`, which does not exist", "pass an existing path")


def _several(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (str(value),)


def _fingerprint(option: BuildOption, path: Path) -> dict[str, str]:
    if not path.exists():
        raise_problems([_missing(option, path)])
    try:
        if path.is_file():
            return {path.name: fingerprint_file(path)}
        files: dict[str, str] = {}
        for inner in sorted(path.rglob("*")):
            name = inner.relative_to(path)
            # `.git`, `.cache` and the like shape nothing.
            if any(part.startswith(".") for part in name.parts) or not inner.is_file():
                continue
            if len(files) == MAX_FILES:
                raise UserMistake(
                    f"`{option.flag}` is `{path}`, which holds more than `{MAX_FILES}` files",
                    "pass the directory of these files only",
                )
            files[name.as_posix()] = fingerprint_file(inner)
    except OSError as error:
        raise UserMistake(
            f"`{option.flag}` is `{path}`, which cannot be read: {error.strerror}", "check its permissions"
        ) from error
    return files
